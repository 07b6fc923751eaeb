"""What a GGUF file says before its weights: metadata, and where each tensor lies.

Parses bytes that somebody else opened; knows the container, not what the names mean. Written
because `gguf.GGUFReader` makes an array object of every vocabulary entry: 3.5 s for 49K tokens,
against 0.1 s here, twice at each start (the tokenizer's process and the engine's).

Source: ggml `docs/gguf.md`, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from keepwarm.core.errors import BadModel

GGUF_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_STRING: Final = 8
_ARRAY: Final = 9
_FORMATS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Value types by their number in the file, as `struct` formats."""

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor; `shape` as torch has it (rows first), `type_id` a GGML type's number."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int
    """From the start of the file."""

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Everything but the weights. Arrays of the metadata are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def parse_gguf_header(path: Path, raw: mmap.mmap | bytes) -> GgufHeader:
    """The header of the file at `path`, whose bytes `raw` is. Raises `BadModel` saying what is wrong."""
    try:
        return _Cursor(raw).header(path)
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise BadModel(f"{path} is no whole GGUF file: {error}") from error


class _Cursor:
    """A place in the file that moves forward as values are read."""

    def __init__(self, raw: mmap.mmap | bytes) -> None:
        self._raw = raw
        self._at = 0

    def header(self, path: Path) -> GgufHeader:
        if self._take(4) != GGUF_MAGIC:
            raise ValueError("it does not start with 'GGUF'")
        version = self._uint32()
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version}; versions 2 and 3 are supported")
        num_tensors, num_values = self._count(), self._count()
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            metadata[key] = self._value(self._uint32())
        entries = [self._tensor() for _ in range(num_tensors)]
        return GgufHeader(path=path, metadata=metadata, tensors=self._placed(entries, metadata))

    def _placed(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
    ) -> dict[str, GgufTensor]:
        """Offsets count from the first aligned byte behind the header."""
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"general.alignment is {alignment!r}")
        first = -(-self._at // alignment) * alignment
        return {
            name: GgufTensor(name=name, shape=shape, type_id=type_id, offset_bytes=first + offset)
            for name, shape, type_id, offset in entries
        }

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        shape = tuple(self._uint64() for _ in range(self._uint32()))
        return name, shape[::-1], self._uint32(), self._uint64()

    def _value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array()
        layout = _FORMATS[type_id]
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _array(self) -> list[Any]:
        type_id, length = self._uint32(), self._count()
        if type_id == _STRING:
            return self._strings(length)
        if type_id == _ARRAY:
            return [self._array() for _ in range(length)]
        dtype = np.dtype(_FORMATS[type_id])
        values: list[Any] = np.frombuffer(self._take(length * dtype.itemsize), dtype).tolist()
        return values

    def _strings(self, count: int) -> list[str]:
        """The hot loop: a vocabulary has 10^5 strings."""
        raw, at, end = self._raw, self._at, len(self._raw)
        length_at = _UINT64.unpack_from
        strings: list[str] = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(raw, at)[0]
            if at > end:
                raise ValueError(f"the string at byte {start} runs past the end of the file")
            strings.append(raw[start:at].decode())
        self._at = at
        return strings

    def _string(self) -> str:
        return self._take(self._uint64()).decode()

    def _count(self) -> int:
        """How many things follow, each at least a byte long."""
        value = self._uint64()
        if value > len(self._raw) - self._at:
            raise ValueError(f"the {value} entries at byte {self._at} run past the end of the file")
        return value

    def _uint32(self) -> int:
        value: int = _UINT32.unpack(self._take(4))[0]
        return value

    def _uint64(self) -> int:
        value: int = _UINT64.unpack(self._take(8))[0]
        return value

    def _take(self, length: int) -> bytes:
        piece = self._raw[self._at : self._at + length]
        if len(piece) != length:
            raise ValueError(f"{length} bytes at byte {self._at} run past the end of the file")
        self._at += length
        return piece
