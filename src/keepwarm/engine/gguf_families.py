"""What the names in a GGUF file mean, for each family of models we read from one.

Turns metadata into a `transformers` configuration (as a plain dict) and tensor names into parameter
names. Knows no torch; what has to be done to a weight is named, and `model_loading` does it.

Source: `gguf-py/gguf/tensor_mapping.py` and `convert_hf_to_gguf.py` of llama.cpp, for the names, the
order of the rotary dimensions (llama) and the one added to norm weights (gemma3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import GgufHeader

_MODEL_TENSORS: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_HEAD_TENSOR: Final = "output.weight"
ROPE_FACTORS_TENSOR: Final = "rope_freqs.weight"
"""Divides each rotary frequency (Llama 3.1 and later); absent elsewhere."""

_LAYER_TENSORS: Final = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
}
_FFN_NORM: Final = {"ffn_norm.weight": "post_attention_layernorm.weight"}
_QKV_BIAS: Final = {f"attn_{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkv"}
_QK_NORM: Final = {f"attn_{part}_norm.weight": f"self_attn.{part}_norm.weight" for part in "qk"}
_GEMMA_NORMS: Final = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """One value of `general.architecture`."""

    model_type: str
    layer_tensors: dict[str, str]
    interleaved_rotary: bool = False
    """Rows of q and k lie in pairs (x0, y0, x1, ..); `transformers` wants halves (x0, x1, .., y0, y1, ..)."""
    norms_hold_one_more: bool = False
    """Norm weights were stored with 1 added."""

    def needed_tensors(self, num_layers: int) -> Iterator[str]:
        """Names that a complete file has."""
        yield from _MODEL_TENSORS
        for layer in range(num_layers):
            yield from (f"blk.{layer}.{name}" for name in self.layer_tensors)

    def parameter_name(self, tensor_name: str) -> str | None:
        """The `transformers` parameter a tensor becomes; None for tensors that are not weights."""
        if tensor_name == _HEAD_TENSOR:
            return "lm_head.weight"
        if tensor_name in _MODEL_TENSORS:
            return _MODEL_TENSORS[tensor_name]
        block, _, rest = tensor_name.partition(".")
        layer, _, name = rest.partition(".")
        if block != "blk" or name not in self.layer_tensors:
            return None
        return f"model.layers.{layer}.{self.layer_tensors[name]}"


FAMILIES: Final = {
    "llama": GgufFamily(
        model_type="llama", layer_tensors=_LAYER_TENSORS | _FFN_NORM, interleaved_rotary=True
    ),
    "qwen2": GgufFamily(model_type="qwen2", layer_tensors=_LAYER_TENSORS | _FFN_NORM | _QKV_BIAS),
    "qwen3": GgufFamily(model_type="qwen3", layer_tensors=_LAYER_TENSORS | _FFN_NORM | _QK_NORM),
    "gemma3": GgufFamily(
        model_type="gemma3_text",
        layer_tensors=_LAYER_TENSORS | _GEMMA_NORMS | _QK_NORM,
        norms_hold_one_more=True,
    ),
}


def config_from_gguf(header: GgufHeader) -> dict[str, Any]:
    """The model's configuration in `transformers`' words. Raises `BadModel` naming what is missing."""
    family_name = str(header.metadata.get("general.architecture", "(none)"))
    if family_name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise BadModel(f"{header.path}: architecture {family_name} is not supported; supported are {known}")
    return _Metadata(header, family_name).config()


@dataclass(frozen=True, slots=True)
class _Metadata:
    header: GgufHeader
    family_name: str

    def config(self) -> dict[str, Any]:
        num_heads = int(self._number("attention.head_count"))
        hidden_size = int(self._number("embedding_length"))
        config: dict[str, Any] = {
            "model_type": FAMILIES[self.family_name].model_type,
            "hidden_size": hidden_size,
            "intermediate_size": int(self._number("feed_forward_length")),
            "num_hidden_layers": int(self._number("block_count")),
            "num_attention_heads": num_heads,
            "num_key_value_heads": int(self._number("attention.head_count_kv", num_heads)),
            "head_dim": int(self._number("attention.key_length", hidden_size // num_heads)),
            "max_position_embeddings": int(self._number("context_length")),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "vocab_size": self._vocab_size(),
            "tie_word_embeddings": _HEAD_TENSOR not in self.header.tensors,
        }
        for special in ("bos", "eos"):
            config[f"{special}_token_id"] = self.header.metadata.get(f"tokenizer.ggml.{special}_token_id")
        return config | (self._gemma3(config) if self.family_name == "gemma3" else self._plain_rope())

    def _plain_rope(self) -> dict[str, Any]:
        theta = self._number("rope.freq_base", 10_000.0)
        return {"rope_parameters": {"rope_theta": theta} | self._rope_scaling()}

    def _rope_scaling(self) -> dict[str, Any]:
        kind = self.header.metadata.get(f"{self.family_name}.rope.scaling.type", "none")
        if kind == "none":
            return {"rope_type": "default"}
        factor = self._number("rope.scaling.factor")
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn":
            original = int(self._number("rope.scaling.original_context_length"))
            return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        raise BadModel(f"{self.header.path}: rope scaling {kind} is not supported")

    def _gemma3(self, config: dict[str, Any]) -> dict[str, Any]:
        """What Gemma 3 files leave out: five window layers, then a full one; local rotary base 10,000.

        The 27B model alone scales queries by hidden_size / num_heads instead of head_dim.
        """
        is_27b = config["num_hidden_layers"] == 62
        return {
            "sliding_window": int(self._number("attention.sliding_window")),
            "query_pre_attn_scalar": (
                config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
            ),
            "rope_parameters": {
                "full_attention": {"rope_theta": self._number("rope.freq_base", 1e6)} | self._rope_scaling(),
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        }

    def _vocab_size(self) -> int:
        embedding = self.header.tensors.get("token_embd.weight")
        if embedding is not None:
            return embedding.shape[0]
        tokens = self.header.metadata.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list) else 0

    def _number(self, name: str, default: float | None = None) -> float:
        key = f"{self.family_name}.{name}"
        value = self.header.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise BadModel(f"{self.header.path}: the metadata has no number {key}")
        return value
