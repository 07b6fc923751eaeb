"""Opens a GGUF file for the engine; `core.gguf` reads it."""

from __future__ import annotations

import mmap
from pathlib import Path

from keepwarm.core.errors import BadModel
from keepwarm.core.gguf import GgufHeader, parse_gguf_header


def read_gguf_header(path: Path) -> GgufHeader:
    """Everything but the weights. Raises `BadModel` when it is no GGUF file, or cut off."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return parse_gguf_header(path, raw)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise BadModel(f"{path} cannot be read: {error}") from error
