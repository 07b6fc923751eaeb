"""What lies at a model's path, checked before anything is loaded.

Reads names, sizes and metadata, never a weight, and imports no torch. Every reason not to serve
a checkpoint that can be known this early is a `BadModel` here, naming what is missing or wrong.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import GGUF_MAGIC, GgufHeader
from keepwarm.engine.gguf_families import FAMILIES, config_from_gguf
from keepwarm.engine.gguf_file import read_gguf_header

DENSE_DECODERS: Final = frozenset(
    {
        *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "gemma3_text"),
        *("arcee", "cohere", "cohere2", "exaone4", "glm4", "granite", "olmo2", "olmo3", "phi3"),
        *("seed_oss", "smollm3", "starcoder2"),
    }
)
"""`model_type`s whose greedy output the tests compare with plain `transformers`."""

_WEIGHTS_FILE: Final = "model.safetensors"
_WEIGHTS_INDEX: Final = "model.safetensors.index.json"
_NEEDED_KEYS: Final = ("num_hidden_layers", "max_position_embeddings", "vocab_size")
_BATCH_DEPENDENT_ROPE: Final = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """A checkpoint that can be loaded, as far as names and sizes can tell."""

    path: Path
    kind: Literal["gguf", "folder"]
    architecture: str
    """The `model_type` of `transformers`."""
    num_layers: int
    max_position: int
    """Tokens the model was made for."""
    vocab_size: int
    weights_bytes: int
    """On disk."""
    eos_token_ids: tuple[int, ...]


def inspect_checkpoint(path: str) -> CheckpointSpec:
    """What lies at `path`. Raises `BadModel` naming exactly what is missing or not supported."""
    place = Path(path)
    if not place.exists():
        raise BadModel(f"model {path} does not exist")
    if place.is_dir():
        return _inspect_folder(place)
    with place.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise BadModel(
                f"model {path} is neither a folder nor a GGUF file (it does not start with 'GGUF')"
            )
    return _inspect_gguf(place)


# --- GGUF ---------------------------------------------------------------------------------------


def _inspect_gguf(path: Path) -> CheckpointSpec:
    header = read_gguf_header(path)
    config = config_from_gguf(header)
    _check_tensors_are_there(header, int(config["num_hidden_layers"]))
    return CheckpointSpec(
        path=path,
        kind="gguf",
        architecture=str(config["model_type"]),
        num_layers=int(config["num_hidden_layers"]),
        max_position=int(config["max_position_embeddings"]),
        vocab_size=int(config["vocab_size"]),
        weights_bytes=sum(_tensor_bytes(header, name) for name in header.tensors),
        eos_token_ids=tuple(
            value
            for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
            if isinstance(value := header.metadata.get(key), int)
        ),
    )


def _check_tensors_are_there(header: GgufHeader, num_layers: int) -> None:
    family = FAMILIES[str(header.metadata["general.architecture"])]
    missing = [name for name in family.needed_tensors(num_layers) if name not in header.tensors]
    if missing:
        raise BadModel(f"{header.path} lacks {len(missing)} tensors: {_some(missing)}")
    file_bytes = header.path.stat().st_size
    needed_bytes = max(
        entry.offset_bytes + _tensor_bytes(header, name) for name, entry in header.tensors.items()
    )
    if file_bytes < needed_bytes:
        raise BadModel(f"{header.path} is incomplete: {file_bytes:,} of {needed_bytes:,} bytes are there")


def _tensor_bytes(header: GgufHeader, name: str) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # 0.2 s; folders do not need it

    entry = header.tensors[name]
    try:
        values_per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(entry.type_id)]
    except (KeyError, ValueError) as error:
        raise BadModel(f"{header.path}: {name} has the unknown GGML type {entry.type_id}") from error
    return int(entry.num_values // values_per_block * block_bytes)


# --- Hugging Face folders -----------------------------------------------------------------------


def _inspect_folder(folder: Path) -> CheckpointSpec:
    config = _read_json(folder, "config.json")
    architecture = _check_architecture(folder, config)
    weights_bytes = sum(_safetensors_bytes(file) for file in _weight_files(folder))
    config = _with_defaults(folder, config)
    return CheckpointSpec(
        path=folder,
        kind="folder",
        architecture=architecture,
        num_layers=int(config["num_hidden_layers"]),
        max_position=int(config["max_position_embeddings"]),
        vocab_size=int(config["vocab_size"]),
        weights_bytes=weights_bytes,
        eos_token_ids=_eos_token_ids(folder, config),
    )


def _check_architecture(folder: Path, config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    supported = ", ".join(sorted(DENSE_DECODERS))
    if not isinstance(model_type, str):
        raise BadModel(f"{folder}/config.json has no model_type; supported are {supported}")
    if model_type not in DENSE_DECODERS:
        raise BadModel(f"{folder}: architecture {model_type} is not supported; supported are {supported}")
    if config.get("quantization_config"):
        raise BadModel(f"{folder}: quantised weights (quantization_config in config.json) are not supported")
    if config.get("attn_logit_softcapping") is not None:
        raise BadModel(f"{folder}: attn_logit_softcapping in config.json is not supported")
    _check_rope(folder, config)
    return model_type


def _check_rope(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse rotary kinds whose angles depend on a batch's longest sequence: cached KV would be wrong."""
    ropes = [rope for key in ("rope_parameters", "rope_scaling") if isinstance(rope := config.get(key), dict)]
    nested = [value for rope in ropes for value in rope.values() if isinstance(value, dict)]
    for part in ropes + nested:
        kind = part.get("rope_type", part.get("type"))
        if kind in _BATCH_DEPENDENT_ROPE:
            raise BadModel(f"{folder}: rope type {kind} in config.json is not supported")


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _WEIGHTS_FILE).is_file():
        return [folder / _WEIGHTS_FILE]
    if not (folder / _WEIGHTS_INDEX).is_file():
        raise BadModel(f"{folder} has no weights: neither {_WEIGHTS_FILE} nor {_WEIGHTS_INDEX} is there")
    weight_map = _read_json(folder, _WEIGHTS_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadModel(f"{folder}/{_WEIGHTS_INDEX} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BadModel(f"{folder} lacks {len(missing)} of {len(names)} weight files: {_some(missing)}")
    return [folder / name for name in names]


def _safetensors_bytes(file: Path) -> int:
    """Bytes of the tensors in one file. Raises `BadModel` when some are not there.

    Source: https://github.com/huggingface/safetensors#format
    """
    file_bytes = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (header_bytes,) = struct.unpack("<Q", stream.read(8))
            if header_bytes > file_bytes:
                raise ValueError("header longer than the file")
            header = json.loads(stream.read(header_bytes))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"{file} is no complete safetensors file ({file_bytes:,} bytes)") from error
    if file_bytes < 8 + header_bytes + end:
        raise BadModel(f"{file} is incomplete: {file_bytes:,} of {8 + header_bytes + end:,} bytes are there")
    return end


def _with_defaults(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config file may leave out what equals its class's default; then `transformers` knows it."""
    if all(key in config for key in _NEEDED_KEYS):
        return config
    from transformers import AutoConfig  # seconds; most folders name everything

    resolved: dict[str, Any] = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    return resolved


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation = (
        _read_json(folder, "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    )
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    file = folder / name
    if not file.is_file():
        raise BadModel(f"{folder} has no {name}")
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise BadModel(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadModel(f"{file} is not a JSON object")
    return content


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
