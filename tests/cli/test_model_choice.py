"""What is refused before a process is started for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepwarm.cli.embedded_model import MODEL_NAME
from keepwarm.cli.model_choice import choose_model
from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.core.errors import BadModel, BadSetting

pytestmark = pytest.mark.engine


def test_the_embedded_model_is_the_default() -> None:
    chosen = choose_model(ServeSettings())

    assert chosen.name == MODEL_NAME
    assert chosen.path.suffix == ".gguf"


def test_the_served_name_wins() -> None:
    assert choose_model(ServeSettings(served_model_name="mine")).name == "mine"


def test_a_context_the_model_was_not_made_for_is_refused() -> None:
    with pytest.raises(BadSetting, match="--max-model-len 8193: this model was made for up to 8192 tokens"):
        choose_model(ServeSettings(max_model_len=8193))


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"config\.json"):
        choose_model(ServeSettings(model=tmp_path))


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mystery"}))

    with pytest.raises(BadModel, match="mystery is not supported"):
        choose_model(ServeSettings(model=tmp_path))


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"not one")

    with pytest.raises(BadModel, match="GGUF"):
        choose_model(ServeSettings(model=tmp_path / "weights.gguf"))


def test_a_script_speaks_in_the_words_of_the_model_in_a_context_of_any_length(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text("[[answers]]\nsay = 'hello'\n")

    chosen = choose_model(ServeSettings(engine="scripted", script=script, max_model_len=200_000))

    assert chosen.name == MODEL_NAME


def test_a_script_that_cannot_be_read_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--script .*none\.toml: .*No such file"):
        choose_model(ServeSettings(engine="scripted", script=tmp_path / "none.toml"))


def test_a_script_for_an_engine_that_computes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--script .* is for --engine scripted; --engine is torch"):
        ServeSettings(script=tmp_path / "script.toml")
