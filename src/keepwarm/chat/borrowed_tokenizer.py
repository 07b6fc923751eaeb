"""Another model's tokenizer for a template that came alone: it gets the control tokens that the
template spells, so that turns begin and end as they would with the template's own model."""

from __future__ import annotations

import re
from dataclasses import replace

from tokenizers import AddedToken

from keepwarm.chat.tokenizer_parts import TokenizerParts, stop_tokens

_SPELLED = re.compile(
    r"<[|｜][^<>|｜\s'\"]+[|｜]>|</?s>|<(?:bos|eos)>|<\w+_of_turn>|<\|turn>|<turn\|>|</?think>|\[/?[A-Z_]+\]"
)
_BOS, _EOS = "<s>", "</s>"
_OTHER_BOS = ("<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>", "[gMASK]")


def with_template(parts: TokenizerParts, template: str) -> TokenizerParts:
    """The parts with this template and its tokens. `bos_token` and `eos_token` are not those of the
    parts' model, which mean something to it alone."""
    spelled = dict.fromkeys((_BOS, _EOS, *_SPELLED.findall(template)))
    backend = parts.backend
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in spelled])
    return replace(
        parts,
        bos_token=next((token for token in _OTHER_BOS if token in spelled), _BOS),
        eos_token=_EOS,
        stop_tokens=stop_tokens(backend, [*parts.stop_tokens, backend.token_to_id(_EOS)]),
        chat_templates={"default": template},
        adds_bos=False,
    )
