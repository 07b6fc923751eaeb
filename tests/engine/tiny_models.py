"""Tiny models with random weights, written to a folder, and what plain `transformers` says they generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

VOCAB_SIZE: Final = 199
CONTEXT_TOKENS: Final = 512
WINDOW_TOKENS: Final = 16

_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,  # so that the best token is clearly the best
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**_SHAPE, tie_word_embeddings=True)


def _llama_untied_with_scaled_rope() -> Any:
    from transformers import LlamaConfig

    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    return LlamaConfig(**_SHAPE, tie_word_embeddings=False, rope_parameters=rope)


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**_SHAPE)


def _qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**_SHAPE, head_dim=32)


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**_SHAPE, sliding_window=WINDOW_TOKENS)


def _gemma3() -> Any:
    from transformers import Gemma3TextConfig

    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    return Gemma3TextConfig(
        **_SHAPE, head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW_TOKENS, layer_types=layers
    )


def _gemma3_as_gguf() -> Any:
    """What a GGUF file leaves out, as it is taken to be: five window layers, then a full one."""
    from transformers import Gemma3TextConfig

    shape = _SHAPE | {"num_hidden_layers": 6}
    return Gemma3TextConfig(**shape, head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW_TOKENS)


CONFIGS: Final[dict[str, Callable[[], Any]]] = {
    "llama": _llama,
    "llama_untied_with_scaled_rope": _llama_untied_with_scaled_rope,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma3": _gemma3,
    "gemma3_as_gguf": _gemma3_as_gguf,
}


MORE_CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "arcee": {},
    "cohere": {},
    "cohere2": {"sliding_window": WINDOW_TOKENS},
    "exaone4": {"sliding_window": WINDOW_TOKENS},
    "gemma": {"head_dim": 32},
    "glm4": {},
    "granite": {},
    "ministral": {"sliding_window": WINDOW_TOKENS, "head_dim": 16},
    "ministral3": {},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW_TOKENS},
    "phi3": {},
    "seed_oss": {},
    "smollm3": {},
    "starcoder2": {"sliding_window": WINDOW_TOKENS},
}
"""Further kinds, by `model_type`: what to change in the shape above."""


def config_for(name: str) -> Any:
    from transformers import AutoConfig

    return CONFIGS[name]() if name in CONFIGS else AutoConfig.for_model(name, **_SHAPE, **MORE_CONFIGS[name])


def write_model(name: str, folder: Path, *, max_shard_size: str = "5GB") -> Path:
    """A complete folder with random weights, the same ones every time."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(20)
    model = AutoModelForCausalLM.from_config(config_for(name))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def plain_greedy(model: nn.Module, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What `transformers`' own `generate` answers, greedily; it may stop at an end token, which is kept."""
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False, max_new_tokens=num_tokens, eos_token_id=None, pad_token_id=0, bos_token_id=None
    )
    ids = torch.tensor([list(prompt)])
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    answer = generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return [int(token) for token in answer[0, len(prompt) :]]


def assert_same_tokens(model: nn.Module, prompt: Sequence[int], ours: Sequence[int]) -> None:
    """Fail with the margin by which `transformers` chose, where the two part."""
    theirs = plain_greedy(model, prompt, len(ours))
    if list(ours[: len(theirs)]) == theirs:  # the executor leaves stopping to the scheduler
        assert len(theirs) == len(ours) or theirs[-1] == 2
        return
    index = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *theirs[:index]]]), use_cache=False).logits[0, -1]
    top = logits.topk(2)
    raise AssertionError(
        f"token {index} of a prompt of {len(prompt)}: ours {ours[index]}, transformers {theirs[index]}; "
        f"its best two are {top.indices.tolist()}, {float(top.values[0] - top.values[1]):.2e} apart"
    )
