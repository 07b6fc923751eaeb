"""Weights into memory, once, from local files only; which layers attend how.

Models are `transformers`' own definitions; only their attention is replaced (`attention`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import GgufHeader, GgufTensor
from keepwarm.engine.attention import ATTENTION_NAME, register_attention
from keepwarm.engine.checkpoint import CheckpointSpec
from keepwarm.engine.gguf_families import FAMILIES, ROPE_FACTORS_TENSOR, GgufFamily, config_from_gguf
from keepwarm.engine.gguf_file import read_gguf_header


def load_model(spec: CheckpointSpec, dtype: torch.dtype, *, attention: str = ATTENTION_NAME) -> nn.Module:
    """The model in evaluation mode, with tied embeddings held once. Raises `BadModel`.

    `attention` is a name `transformers` knows; tests compare ours with "sdpa".
    """
    register_attention()
    with _quiet_transformers():
        if spec.kind == "gguf":
            model = _load_gguf(spec.path, dtype, attention)
        else:
            model = _load_folder(spec.path, dtype, attention)
    return model.eval().requires_grad_(False)


def _load_folder(folder: Path, dtype: torch.dtype, attention: str) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModel(f"{folder} cannot be loaded: {error}") from error
    _check_report(folder, report)
    result: nn.Module = model
    return result


def _check_report(path: Path, report: dict[str, Any]) -> None:
    """Weights that are missing would be random numbers."""
    missing = sorted(str(key) for key in report["missing_keys"])
    if missing:
        raise BadModel(f"{path} lacks {len(missing)} weights: {', '.join(missing[:4])}")
    if report["mismatched_keys"]:
        raise BadModel(f"{path}: weights of the wrong shape: {list(report['mismatched_keys'])[:4]}")


def _load_gguf(path: Path, dtype: torch.dtype, attention: str) -> nn.Module:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    header = read_gguf_header(path)
    config_values = config_from_gguf(header)
    config = AutoConfig.for_model(**config_values)
    weights = _GgufWeights(header, dtype, config_values)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model, report = model_class.from_pretrained(
        None,
        config=config,
        state_dict=dict(weights.named()),
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
    )
    _check_report(path, report)
    weights.apply_rope_factors(model)
    result: nn.Module = model
    return result


class _GgufWeights:
    """The tensors of a GGUF file as `transformers` wants them, dequantised one at a time."""

    def __init__(self, header: GgufHeader, dtype: torch.dtype, config: dict[str, Any]) -> None:
        self._family: GgufFamily = FAMILIES[str(header.metadata["general.architecture"])]
        self._header = header
        self._dtype = dtype
        self._num_heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        self._file = np.memmap(header.path, mode="r", dtype=np.uint8)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, entry in self._header.tensors.items():
            parameter = self._family.parameter_name(name)
            if parameter is not None:
                yield parameter, self._weight(name, entry)

    def apply_rope_factors(self, model: nn.Module) -> None:
        entry = self._header.tensors.get(ROPE_FACTORS_TENSOR)
        if entry is None:
            return
        factors = self._dequantised(entry)
        model.get_submodule("model.rotary_emb").get_buffer("inv_freq").div_(factors)

    def _weight(self, name: str, entry: GgufTensor) -> torch.Tensor:
        weight = self._dequantised(entry)
        part = name.split(".")[-2]
        if self._family.interleaved_rotary and part in self._num_heads:
            weight = _halves_from_pairs(weight, self._num_heads[part])
        if self._family.norms_hold_one_more and part.endswith("norm"):
            weight = weight - 1.0
        return weight.to(self._dtype).contiguous()

    def _dequantised(self, entry: GgufTensor) -> torch.Tensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        kind = GGMLQuantizationType(entry.type_id)
        values_per_block, block_bytes = GGML_QUANT_SIZES[kind]
        num_bytes = entry.num_values // values_per_block * block_bytes
        raw = self._file[entry.offset_bytes : entry.offset_bytes + num_bytes]
        try:
            values = dequantize(raw.reshape(entry.num_values // entry.shape[-1], -1), kind)
        except NotImplementedError as error:
            raise BadModel(
                f"{self._header.path}: {entry.name} has the unsupported type {kind.name}"
            ) from error
        return torch.from_numpy(np.array(values, dtype=np.float32)).reshape(entry.shape)


def _halves_from_pairs(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of each head from (x0, y0, x1, y1, ..) to (x0, x1, .., y0, y1, ..)."""
    half = weight.shape[0] // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars: a backend's log is read by machines."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
