"""What a checkpoint says about its tokenizer, whatever file it stood in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend

_END_OF_TURN_NAMES = (
    "<|im_end|>",  # ChatML: SmolLM, Qwen
    "<|endoftext|>",
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",  # Gemma
    "<turn|>",
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "<|END_OF_TURN_TOKEN|>",  # Command R
    "<|return|>",  # gpt-oss: ends an answer, and
    "<|call|>",  # a tool call
    "<|endofturn|>",
    "<|user|>",  # GLM stops where the next speaker would begin
    "<|observation|>",
)
_END_OF_TURN_UNLESS = {
    "<|end|>": "<|return|>",  # Phi ends a turn with it, gpt-oss only one of several channels
    "<|user|>": "<|end|>",  # Phi has one too, and ends a turn before it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """`backend` belongs to whoever takes these parts, who may change it."""

    origin: str
    """The file or folder, for messages."""
    backend: Backend
    bos_token: str = ""
    eos_token: str = ""
    stop_tokens: tuple[int, ...] = ()
    """The model's turn is over with any of these."""
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Jinja sources by name; "default", and "tool_use" where there is one for tools."""
    adds_bos: bool = False
    """Whether text without a template begins with `bos_token`."""
    max_position: int | None = None


def stop_tokens(backend: Backend, named: Iterable[int | None]) -> tuple[int, ...]:
    """The ids a checkpoint names, then those of known end-of-turn names it has as whole tokens."""
    added = {token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items()}
    known = [
        added.get(name)
        for name in (*_END_OF_TURN_NAMES, "<|end|>")
        if _END_OF_TURN_UNLESS.get(name) not in added
    ]
    return tuple(dict.fromkeys(token for token in (*named, *known) if token is not None))
