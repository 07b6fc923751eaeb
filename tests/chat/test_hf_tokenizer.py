from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.core.errors import BadModel
from tests.chat.tiny import CHATML, GEMMA_TOKENS, LLAMA3_TOKENS, byte_level, sentencepiece


def _folder(path: Path, **files: Any) -> Path:
    """A folder with a ChatML tokenizer and these JSON files."""
    byte_level().save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_stop_tokens_come_from_every_place_that_names_some(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
        config={"eos_token_id": 7, "max_position_embeddings": 4096},
        generation_config={"eos_token_id": [8, 9]},
    )
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.stop_tokens == (2, 7, 8, 9, 0)
    assert tokenizer.max_position == 4096
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("special", "name"), [(LLAMA3_TOKENS, "<|eot_id|>"), (GEMMA_TOKENS, "<end_of_turn>")]
)
def test_known_end_of_turn_names_stop_even_where_no_file_says_so(
    tmp_path: Path, special: tuple[str, ...], name: str
) -> None:
    backend = byte_level(special)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).stop_tokens == (backend.token_to_id(name),)


def test_special_tokens_map_fills_in_and_text_config_is_looked_into(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        special_tokens_map={"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"},
        config={"text_config": {"eos_token_id": 5, "max_position_embeddings": 99}},
    )
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.bos_token, tokenizer.stop_tokens, tokenizer.max_position) == (
        "<|im_start|>",
        (2, 5, 0),
        99,
    )


def test_a_chat_template_is_found_wherever_it_may_stand(tmp_path: Path) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "tools"}]
    folder = _folder(tmp_path, tokenizer_config={"chat_template": named})
    assert load_tokenizer(str(folder)).chat_templates == {"default": CHATML, "tool_use": "tools"}
    _folder(tmp_path, tokenizer_config={"chat_template": "one"})
    assert load_tokenizer(str(folder)).chat_template == "one"
    _folder(tmp_path, chat_template={"chat_template": "two"})
    assert load_tokenizer(str(folder)).chat_template == "two"
    (tmp_path / "chat_template.jinja").write_text("three")
    assert load_tokenizer(str(folder)).chat_template == "three"


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).encode("The cache").tolist() == byte_level().encode("The cache").ids


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"tokenizer\.json is missing"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadModel, match=r"tokenizer\.json: damaged"):
        load_tokenizer(str(tmp_path))
    _folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(BadModel, match=r"tokenizer_config\.json: damaged"):
        load_tokenizer(str(tmp_path))


def test_a_decoder_that_generates_no_text_is_named(tmp_path: Path) -> None:
    description = json.loads(sentencepiece().to_str())
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(BadModel, match="decoder is WordPiece; supported are"):
        load_tokenizer(str(tmp_path))
