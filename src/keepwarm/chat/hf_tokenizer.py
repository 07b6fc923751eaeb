"""The tokenizer of a Hugging Face folder: tokenizer.json, and what stands around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from keepwarm.chat.dsml_template import TEMPLATES_BY_MODEL_TYPE
from keepwarm.chat.tokenizer_parts import TokenizerParts, stop_tokens
from keepwarm.core.errors import BadModel


def read_hf_tokenizer(folder: Path) -> TokenizerParts:
    """Raises `BadModel` naming the file that is missing or damaged."""
    backend = _read_backend(folder / "tokenizer.json")
    settings = _read_json(folder / "tokenizer_config.json")
    special = {**_read_json(folder / "special_tokens_map.json"), **settings}
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    bos, eos = _token_text(special.get("bos_token")), _token_text(special.get("eos_token"))
    named = [backend.token_to_id(eos)] if eos else []
    for source in (config, _text_part(config), generation):
        named += _as_ids(source.get("eos_token_id"))
    return TokenizerParts(
        origin=str(folder),
        backend=backend,
        bos_token=bos,
        eos_token=eos,
        stop_tokens=stop_tokens(backend, named),
        chat_templates=_chat_templates(folder, settings, config),
        adds_bos=bool(bos) and _begins_with_bos(backend, bos),
        max_position=_max_position(config),
    )


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise BadModel(f"{path.parent}: tokenizer.json is missing")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise BadModel(f"{path}: damaged: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """An object; empty when there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise BadModel(f"{path}: damaged: {error}") from error


def _token_text(value: Any) -> str:
    """A special token stands as its text, or as an object with its flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _as_ids(value: Any) -> list[int]:
    return [token for token in (value if isinstance(value, list) else [value]) if type(token) is int]


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Models that also see or hear keep what is said of text apart."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else {}


def _begins_with_bos(backend: Backend, bos: str) -> bool:
    return backend.encode("a").ids[:1] == [backend.token_to_id(bos)]


def _max_position(config: dict[str, Any]) -> int | None:
    for source in (config, _text_part(config)):
        value = source.get("max_position_embeddings")
        if isinstance(value, int):
            return value
    return None


def _chat_templates(folder: Path, settings: dict[str, Any], config: dict[str, Any]) -> dict[str, str]:
    """The newest place wins: chat_template.jinja, chat_template.json, tokenizer_config.json; then
    ours, for families whose checkpoints bring code instead."""
    templates = _named_templates(settings.get("chat_template"))
    templates.update(_named_templates(_read_json(folder / "chat_template.json").get("chat_template")))
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            templates["default"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadModel(f"{path}: damaged: {error}") from error
    ours = TEMPLATES_BY_MODEL_TYPE.get(str(config.get("model_type")))
    if ours is not None:
        templates.setdefault("default", ours)
    return templates


def _named_templates(value: Any) -> dict[str, str]:
    """One source, or a list of {"name", "template"}."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    entries = [entry for entry in value if isinstance(entry, dict)]
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }
