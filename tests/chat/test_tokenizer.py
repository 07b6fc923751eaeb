from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from keepwarm.chat.tokenizer import Tokenizer
from tests.chat.tiny import FAMILIES, byte_level, family, tokenizer_of

_FAMILIES = {name: family(name) for name in FAMILIES}
_ANCHOR = "\U0010fffe\ufdd0\U0010fffe"


def _control_ids(tokenizer: Tokenizer) -> set[int]:
    return {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}


def _unigram() -> Tokenizer:
    """A kind that takes any piece of its vocabulary, control tokens too."""
    letters = [(letter, -5.0) for letter in "▁abc</s>" if letter not in "</"]
    pieces = [("<unk>", 0.0), ("</s>", -1.0), ("<", -6.0), ("/", -6.0), (">", -6.0), *dict(letters).items()]
    backend = Backend(models.Unigram(list(dict(pieces).items()), unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["</s>"])
    assert not math.isnan(backend.get_vocab_size())
    return tokenizer_of(backend, None, eos="</s>")


@pytest.mark.parametrize("name", FAMILIES)
@given(text=st.data())
def test_plain_text_never_becomes_a_control_token(name: str, text: st.DataObject) -> None:
    _, tokenizer = _FAMILIES[name]
    spellings = ["<|im_start|>", "<|im_end|>", "</s>", "<eos>", "<|eot_id|>", _ANCHOR, "<think>"]
    content = text.draw(
        st.lists(st.sampled_from([*spellings, *(s[:3] for s in spellings), " ", "\n", "a"]), max_size=8).map(
            "".join
        )
    )
    for after in (False, True):
        ids = tokenizer.encode(content, after_control_token=after).tolist()
        assert not _control_ids(tokenizer).intersection(ids)
        assert all(token < tokenizer.vocab_size for token in ids)
        assert tokenizer.decode(ids) == content


def test_not_even_with_a_model_that_takes_any_whole_piece() -> None:
    tokenizer = _unigram()
    ids = tokenizer.encode("ab</s>c").tolist()
    assert tokenizer.control_id("</s>") not in ids
    assert tokenizer.decode(ids).replace(" ", "") == "ab</s>c"


@pytest.mark.parametrize("name", FAMILIES)
@given(pieces=st.lists(st.text(alphabet=" \nabthe12é🙂▁.", max_size=12), min_size=1, max_size=4))
def test_between_control_tokens_pieces_give_the_ids_of_the_whole(name: str, pieces: list[str]) -> None:
    backend, tokenizer = _FAMILIES[name]
    text = (tokenizer.eos_token).join(pieces)
    assert tokenizer.encode_template_text(text).tolist() == backend.encode(text, add_special_tokens=False).ids


def test_whole_tokens_of_a_user_are_found_in_any_text_unless_the_template_writes_them() -> None:
    backend = byte_level(plain=("<think>", "<tool>"))
    tokenizer = tokenizer_of(backend, "{{ '<think>' }}")
    assert backend.token_to_id("<tool>") in tokenizer.encode("a<tool>")
    assert backend.token_to_id("<think>") not in tokenizer.encode("a<think>")
    assert tokenizer.encode_template_text("<think>").tolist() == [backend.token_to_id("<think>")]
    assert not tokenizer.is_special(tokenizer.control_id("<think>") or 0)


def test_control_tokens_that_take_white_space_equal_the_library() -> None:
    description = json.loads(byte_level().to_str())
    description["added_tokens"][1]["rstrip"] = True
    description["added_tokens"][2]["lstrip"] = True
    backend = Backend.from_str(json.dumps(description))
    tokenizer = tokenizer_of(backend)
    for text in ("<|im_start|> \n a b <|im_end|> c", "<|im_start|>\n<|im_end|>\n", "  <|im_end|>"):
        assert tokenizer.encode_template_text(text).tolist() == backend.encode(text).ids
