"""What names of prefixes are made from: this installation's secret, and which model it serves."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from blake3 import blake3

from keepwarm.core.errors import BadSetting
from keepwarm.core.hashing import KEY_BYTES

logger = logging.getLogger(__name__)

_KEY_FILE = "cache.key"


def load_or_create_key(data_dir: Path) -> bytes:
    """The secret in `data_dir`; two processes that start at once get the same. Raises `BadSetting`."""
    path = data_dir / _KEY_FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _create(path)
        key = path.read_bytes()
        if path.stat().st_mode & 0o077:
            logger.warning("%s was open to others: closed", path)
            path.chmod(0o600)
    except OSError as error:
        raise BadSetting(f"--data-dir {data_dir}: {error}") from error
    if len(key) != KEY_BYTES:
        raise BadSetting(f"{path} holds {len(key)} bytes instead of {KEY_BYTES}; remove it to get a new one")
    return key


def _create(path: Path) -> None:
    """Written whole under another name first: a reader never sees half a key."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was first: its key counts
            os.link(draft, path)
    finally:
        os.unlink(draft)


def model_identity(model_path: str, dtype: str) -> bytes:
    """Changes when the model's files do; equal for the same files at the same place.

    Sizes and times stand for the contents: hashing gigabytes at each start would not pay.
    """
    root = Path(model_path)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    digest = blake3(f"{root.resolve()}\0{dtype}".encode())
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            digest.update(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.digest(16)
