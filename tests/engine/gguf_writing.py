"""Tiny GGUF files out of tiny folders, the way llama.cpp converts them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from keepwarm.engine.gguf_families import FAMILIES

_NAMES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
}


def write_gguf(family: str, folder: Path, file: Path, *, leave_out: Collection[str] = ()) -> Path:
    """The folder's model as a GGUF file of that family, unquantised."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(str(file), family)
    _write_metadata(writer, family, config)
    known = FAMILIES.get(family, FAMILIES["llama"])
    names = ["output.weight", *known.needed_tensors(config["num_hidden_layers"])]
    for name in names:
        parameter = known.parameter_name(name)
        if name in leave_out or parameter not in weights:
            continue
        weight = weights[parameter]
        if known.interleaved_rotary and (".attn_q." in name or ".attn_k." in name):
            weight = _pairs_from_halves(weight, _head_dim(config))
        if known.norms_hold_one_more and "norm" in name:
            weight = weight + 1
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_metadata(writer: Any, family: str, config: dict[str, Any]) -> None:
    for key, name in _NAMES.items():
        writer.add_uint32(f"{family}.{key}", config[name])
    writer.add_uint32(f"{family}.attention.key_length", _head_dim(config))
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    if config.get("sliding_window"):
        writer.add_uint32(f"{family}.attention.sliding_window", config["sliding_window"])
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_array("tokenizer.ggml.tokens", [f"token-{i}" for i in range(config["vocab_size"])])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _pairs_from_halves(weight: Any, head_dim: int) -> Any:
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)
