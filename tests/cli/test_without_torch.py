"""A machine without torch, transformers and tokenizers: everything but a real model works."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.cli.command import run, serving

REFUSE_IMPORTS = """
import sys

class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "tokenizers", "safetensors", "gguf"}:
            raise ModuleNotFoundError(f"refused by the test: {name}", name=name)

sys.meta_path.insert(0, Refuse)
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing them raises, in every process started from here."""
    folder = tmp_path / "refuses"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(REFUSE_IMPORTS)
    source = Path(__file__).parents[2] / "src"
    return {"PYTHONPATH": f"{folder}:{source}"}


def test_the_environment_does_refuse(bare: dict[str, str], tmp_path: Path) -> None:
    refused = run("serve", "--port", "0", "--data-dir", str(tmp_path), "--model", str(tmp_path), more=bare)

    assert refused.returncode == 2
    assert "this installation has no engine: run `pip install 'keepwarm[engine]'`" in refused.stderr


@pytest.mark.parametrize(
    "command",
    [
        "",
        "serve",
        "demo",
        "doctor",
        "keys",
        "keys create",
        "keys list",
        "keys revoke",
        "backend",
        "hostcache",
    ],
)
def test_help_works(bare: dict[str, str], command: str) -> None:
    helped = run(*command.split(), "--help", more=bare)

    assert helped.returncode == 0, helped.stderr
    assert "Usage: keepwarm" in helped.stdout


def test_the_doctor_says_what_it_lacks(bare: dict[str, str]) -> None:
    refused = run("doctor", more=bare)

    assert refused.returncode == 2
    assert "this installation has no tokenizers: run `pip install 'keepwarm[engine]'`" in refused.stderr


def test_the_version_works(bare: dict[str, str]) -> None:
    assert run("--version", more=bare).stdout.startswith("keepwarm 0.")


def test_keys_work(bare: dict[str, str], tmp_path: Path) -> None:
    made = run("keys", "create", "--data-dir", str(tmp_path), more=bare)
    listed = run("keys", "list", "--data-dir", str(tmp_path), more=bare)

    assert made.stdout.startswith("ik_live_")
    assert made.stderr.split()[1] in listed.stdout


def test_a_server_with_made_up_tokens_works_in_all_its_processes(
    bare: dict[str, str], tmp_path: Path
) -> None:
    with serving(tmp_path, more=bare) as server:
        answer = httpx.post(
            f"{server.url}/v1/messages",
            json={"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]},
            headers={"x-api-key": server.ready["key"]},
            timeout=60,
        )

        assert answer.status_code == 200
