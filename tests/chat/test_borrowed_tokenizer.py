"""A template that came alone, on another model's tokenizer."""

from __future__ import annotations

import pytest

from keepwarm.chat.borrowed_tokenizer import with_template
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.chat.tokenizer_parts import TokenizerParts
from tests.chat.families import GEMMA, LLAMA3, MISTRAL, byte_level


def _borrowed(template: str) -> Tokenizer:
    parts = TokenizerParts(origin="tiny", backend=byte_level(), bos_token="<|im_start|>", adds_bos=True)
    return Tokenizer(with_template(parts, template))


@pytest.mark.parametrize(
    ("template", "bos", "spelled"),
    [
        (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
        (GEMMA, "<bos>", "<end_of_turn>"),
        (MISTRAL, "<s>", "[INST]"),
    ],
    ids=["llama3", "gemma", "mistral"],
)
def test_the_template_s_tokens_are_control_tokens(template: str, bos: str, spelled: str) -> None:
    tokenizer = _borrowed(template.replace("{{ bos_token }}", f"{{{{ bos_token }}}}{{# {bos} #}}"))

    assert tokenizer.bos_token == bos
    assert tokenizer.control_id(spelled) is not None
    assert tokenizer.control_id("<|im_start|>") is not None


@pytest.mark.parametrize("template", [LLAMA3, GEMMA, MISTRAL], ids=["llama3", "gemma", "mistral"])
def test_answers_end_where_the_template_ends_them(template: str) -> None:
    assert ChatRenderer(_borrowed(template)).program.place.closes
