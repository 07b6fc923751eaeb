"""`keepwarm doctor --template` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chat.lint_templates import DROPS_AFTER_A_QUESTION, STABLE, TOOLS_LAST
from tests.chat.tiny_tokenizers import byte_level_backend, write_folder
from tests.cli.command import run

pytestmark = pytest.mark.engine


def _report(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def _costs(report: dict[str, Any]) -> dict[str, int]:
    return {finding["id"]: finding["tokens_a_turn"] for finding in report["findings"]}


def test_the_embedded_model_passes(tmp_path: Path) -> None:
    looked = run("doctor", "--json", str(tmp_path / "report.json"))

    report = _report(tmp_path / "report.json")
    assert looked.returncode == 0
    assert "PASS" in looked.stdout
    assert report["tool"] == "doctor"
    assert report["pass"] is True
    assert report["problems"] == []
    assert report["settings"]["template"].endswith(".gguf")
    assert report["settings"]["tokenizer_borrowed"] is False
    assert not any(_costs(report).values())


def test_a_jinja_file_alone_is_tried_with_the_embedded_tokenizer(tmp_path: Path) -> None:
    template = tmp_path / "thinks.jinja"
    template.write_text(DROPS_AFTER_A_QUESTION)

    looked = run("doctor", "--template", str(template), "--json", str(tmp_path / "report.json"))

    report = _report(tmp_path / "report.json")
    assert looked.returncode == 1
    assert "tokens counted with the embedded model's tokenizer" in looked.stdout
    assert "thoughts-dropped-after-question" in looked.stdout
    assert report["pass"] is False
    assert report["settings"]["tokenizer_borrowed"] is True
    assert _costs(report)["thoughts-dropped-after-question"] > 500
    (problem,) = report["problems"]
    assert "After a new question the template leaves out" in problem


def test_a_model_s_folder_is_tried_with_its_own_tokenizer(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "model", byte_level_backend(), chat_template=TOOLS_LAST, eos_token="<|im_end|>"
    )

    looked = run("doctor", "--template", str(folder), "--json", "-")

    report = json.loads(looked.stdout)
    assert looked.returncode == 1
    assert _costs(report)["tools-move"] > 500
    assert report["settings"]["tokenizer"] == str(folder)
    assert "FAIL" in looked.stderr


def test_a_stable_template_passes(tmp_path: Path) -> None:
    (tmp_path / "stable.jinja").write_text(STABLE)

    assert run("doctor", "--template", str(tmp_path / "stable.jinja")).returncode == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file or folder"),
        (b"\xff\xfe\x00", "neither a GGUF file nor a template in UTF-8"),
        (b"{% for %}", "the model's chat template does not compile"),
        (b"Read me", "the model's chat template does not render a single user message"),
        (b"GGUF", "GGUF"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "given"
    if content is not None:
        file.write_bytes(content)

    refused = run("doctor", "--template", str(file))

    assert refused.returncode == 2
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
