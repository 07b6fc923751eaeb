"""The key/value section of a GGUF file, and nothing behind it.

`gguf.GGUFReader` makes an array object of every string and maps every tensor: seconds for a
vocabulary. This reads the same section with the same value types in tens of milliseconds.

Source: ggml `docs/gguf.md`, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGUF_MAGIC, GGUFValueType

from keepwarm.core.errors import BadModel

_VERSIONS = (2, 3)
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_FORMATS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every key with its value; arrays as lists. Raises `BadModel` naming what is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _KeyValues(mapped).read_all()
    except (struct.error, UnicodeDecodeError, ValueError, IndexError) as error:
        raise BadModel(f"{path}: damaged GGUF metadata: {error}") from error
    except OSError as error:
        raise BadModel(f"{path}: cannot be read: {error.strerror}") from error


class _KeyValues:
    """A place in the mapped file that moves forward."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self._at = 0

    def read_all(self) -> dict[str, Any]:
        if self._uint32() != GGUF_MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._uint32()
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, known are {_VERSIONS}")
        self._uint64()  # number of tensors
        num_pairs = self._uint64()
        values: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string()
            values[key] = self._value(GGUFValueType(self._uint32()))
        return values

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is GGUFValueType.ARRAY:
            return self._array()
        layout = _FORMATS[kind]
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return value

    def _array(self) -> list[Any]:
        kind = GGUFValueType(self._uint32())
        length = self._uint64()
        if length > len(self._mapped) - self._at:
            raise ValueError(f"array of {length} values at byte {self._at} runs past the end of the file")
        if kind is GGUFValueType.STRING:
            return self._strings(length)
        if kind is GGUFValueType.ARRAY:
            return [self._array() for _ in range(length)]
        dtype = np.dtype(_FORMATS[kind])
        values: list[Any] = np.frombuffer(self._take(length * dtype.itemsize), dtype).tolist()
        return values

    def _strings(self, count: int) -> list[str]:
        """The hot loop: a vocabulary has 10^5 strings."""
        mapped, at, end = self._mapped, self._at, len(self._mapped)
        unpack_length = _UINT64.unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + unpack_length(mapped, at)[0]
            if at > end:
                raise ValueError(f"string at byte {start} runs past the end of the file")
            strings.append(mapped[start:at].decode())
        self._at = at
        return strings

    def _string(self) -> str:
        return self._take(self._uint64()).decode()

    def _uint32(self) -> int:
        value: int = _UINT32.unpack(self._take(4))[0]
        return value

    def _uint64(self) -> int:
        value: int = _UINT64.unpack(self._take(8))[0]
        return value

    def _take(self, length: int) -> bytes:
        piece = self._mapped[self._at : self._at + length]
        if len(piece) != length:
            raise ValueError(f"{length} bytes at byte {self._at} run past the end of the file")
        self._at += length
        return piece
