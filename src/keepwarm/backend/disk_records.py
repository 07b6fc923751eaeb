"""A front's records in a file, from one clean end of the service to the next start.

    [ magic: 8 bytes │ version: 4 │ blake3 of the rest: 16 │ msgpack: [[key, value], …], oldest first ]

Written whole and renamed into place. A file that is damaged or of another version is as good as none.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

logger = logging.getLogger(__name__)

Record = tuple[bytes, bytes]
"""Key and value, which mean nothing here."""

_FILE_NAME = "records"
_MAGIC = b"KWRECORD"
_VERSION = 1
_HEADER = struct.Struct("<8sI16s")
_DECODER = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def save_records(folder: Path, records: Iterable[Record]) -> None:
    """Raises nothing: without records some turns are read again, and the log says so."""
    body = msgspec.msgpack.encode(list(records))
    draft = folder / f".{_FILE_NAME}.{os.getpid()}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, _digest(body)) + body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _FILE_NAME)
    except OSError as error:
        logger.warning("the records of answers are not kept in %s: %s", folder, error.strerror or error)
        draft.unlink(missing_ok=True)


def load_records(folder: Path) -> Sequence[Record]:
    """What the last clean end saved; nothing where there is no file to be believed."""
    path = folder / _FILE_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        logger.warning("%s is not used: %s", path, error.strerror or error)
        return ()
    body = raw[_HEADER.size :]
    if raw[: _HEADER.size] != _HEADER.pack(_MAGIC, _VERSION, _digest(body)):
        logger.warning("%s is not used: it is damaged or of another version", path)
        return ()
    return _DECODER.decode(body)


def _digest(body: bytes) -> bytes:
    return blake3(body).digest(16)
