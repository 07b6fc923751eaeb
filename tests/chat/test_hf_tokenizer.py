"""A Hugging Face folder: what stands where, which place wins, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.core.errors import BadModel
from tests.chat.tiny_tokenizers import byte_level_backend, pieces_backend, write_folder


def test_a_template_stands_as_a_string(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_folder(tmp_path, byte_level_backend(), chat_template="one")))

    assert tokenizer.chat_templates == {"default": "one"}
    assert tokenizer.chat_template == "one"


def test_templates_stand_as_a_list_by_name(tmp_path: Path) -> None:
    templates: list[Any] = [
        {"name": "default", "template": "one"},
        {"name": "tool_use", "template": "two"},
        {"name": 3},
        "?",
    ]

    tokenizer = load_tokenizer(str(write_folder(tmp_path, byte_level_backend(), chat_template=templates)))

    assert tokenizer.chat_templates == {"default": "one", "tool_use": "two"}


def test_the_newest_place_of_a_template_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_backend(), chat_template="oldest")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert load_tokenizer(str(folder)).chat_template == "older"

    (folder / "chat_template.jinja").write_text("newest ü", encoding="utf-8")
    assert load_tokenizer(str(folder)).chat_template == "newest ü"


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_tokenizer(str(write_folder(tmp_path, byte_level_backend()))).chat_template is None


def test_stop_tokens_come_from_every_file_that_names_some(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path, byte_level_backend(), eos_token={"content": "<|im_end|>", "lstrip": False}
    )
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2]}))

    tokenizer = load_tokenizer(str(folder))

    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.stop_tokens == (2, 7, 9, 0)


def test_special_tokens_may_stand_in_their_own_map(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, pieces_backend())
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))

    tokenizer = load_tokenizer(str(folder))

    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.stop_tokens) == ("<s>", "</s>", (2,))


@pytest.mark.parametrize("adds", [True, False])
def test_a_bos_token_is_known_by_what_the_tokenizer_puts_first(tmp_path: Path, adds: bool) -> None:
    backend = pieces_backend()
    if adds:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])

    tokenizer = load_tokenizer(str(write_folder(tmp_path, backend, bos_token="<s>", eos_token="</s>")))

    assert tokenizer.adds_bos is adds
    assert 1 not in tokenizer.encode("hello")


@pytest.mark.parametrize(
    "config", [{"max_position_embeddings": 99}, {"text_config": {"max_position_embeddings": 99}}]
)
def test_the_context_is_the_configs(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = write_folder(tmp_path, byte_level_backend())
    (folder / "config.json").write_text(json.dumps(config))

    assert load_tokenizer(str(folder)).max_position == 99


def test_truncation_in_the_file_cuts_no_prompt(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=8)

    tokenizer = load_tokenizer(str(write_folder(tmp_path, backend)))

    assert tokenizer.decode(tokenizer.encode("hello there hello")) == "hello there hello"


def test_a_folder_without_a_tokenizer_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"tokenizer\.json is missing"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "config.json",
        "generation_config.json",
        "chat_template.json",
    ],
)
@pytest.mark.parametrize("content", [b"", b'{"a":', b"[1]", b"\xff\xfe"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_folder(tmp_path, byte_level_backend())
    (folder / name).write_bytes(content)

    with pytest.raises(BadModel, match=rf"{name}: damaged"):
        load_tokenizer(str(folder))


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_backend())
    (folder / "chat_template.jinja").write_bytes(b"\xff")

    with pytest.raises(BadModel, match=r"chat_template\.jinja: damaged"):
        load_tokenizer(str(folder))


def test_a_config_whose_text_part_is_no_object_says_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level_backend())
    (folder / "config.json").write_text(json.dumps({"text_config": "none", "eos_token_id": True}))

    tokenizer = load_tokenizer(str(folder))

    assert tokenizer.max_position is None
    assert 1 not in tokenizer.stop_tokens
