"""Keys in a file: who may ask. Holds hashes only; a secret is shown once, when it is made.

    {"version": 1, "keys": [{"id", "label", "tenant", "secret_sha256", "created_at", "revoked_at"}]}

Written whole and renamed into place (mode 0600), under a lock that other processes take too, and
read again whenever it changed, so that `keepwarm keys` works beside a running server.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from keepwarm.core.errors import BadSetting, NotFound
from keepwarm.core.ids import TenantId
from keepwarm.core.principal import Principal

_LOG = logging.getLogger("keepwarm.control")

SECRET_PREFIX = "ik_live_"
DEFAULT_TENANT = TenantId("default")

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ALPHABET = string.ascii_letters + string.digits
_SECRET_CHARACTERS = 43
"""62^43 > 2^256: nothing to guess, so a plain sha256 is enough and a slow hash is not needed."""

_Stamp = tuple[int, int, int, int]


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without its secret. Instants are Unix seconds."""

    id: str
    label: str
    tenant: TenantId
    secret_sha256: str
    created_at: int
    revoked_at: int | None = None


class _KeysFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    keys: tuple[KeyRecord, ...]


def tenant_id(name: str) -> TenantId:
    """A tenant's name as a person gave it. Raises `BadSetting`."""
    if not _TENANT.fullmatch(name):
        raise BadSetting(
            f"--tenant {name!r}: must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter "
            "or a digit"
        )
    return TenantId(name)


def check_label(label: str) -> None:
    """Raises `BadSetting` for a label that would show as nothing in a list."""
    if not label.strip() or not label.isprintable():
        raise BadSetting(f"--label {label!r}: must say whose key it is, in characters that can be seen")


class FileKeys:
    """The keys in one file, which need not exist yet. Any number of processes may hold it."""

    def __init__(self, path: str | Path) -> None:
        """Raises `BadSetting` when the file is there and cannot be read."""
        self._path = Path(path)
        self._stamp: _Stamp | None = None
        self._active: tuple[tuple[bytes, Principal], ...] = ()
        self._reload()

    async def verify(self, secret: str) -> Principal | None:
        """Whose key this is. A file that was broken since lets nobody in, and the log says so."""
        try:
            self._reload()
        except BadSetting:
            _LOG.exception("the keys cannot be read; nobody is let in")
            return None
        digest = _digest(secret).encode()
        found: Principal | None = None
        for known, principal in self._active:  # all of them, whichever matches
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def create(self, label: str, *, tenant: TenantId = DEFAULT_TENANT) -> tuple[str, KeyRecord]:
        """A new key: its secret, which is kept nowhere, and its record. Raises `BadSetting`."""
        secret = SECRET_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_CHARACTERS))
        record = KeyRecord(
            id=f"key_{secrets.token_hex(6)}",
            label=label,
            tenant=tenant,
            secret_sha256=_digest(secret),
            created_at=int(time.time()),
        )
        with self._locked() as records:
            self._write((*records, record))
        return secret, record

    def list(self) -> tuple[KeyRecord, ...]:
        """All keys, revoked ones too, oldest first. Raises `BadSetting`."""
        return self._read()

    def revoke(self, key_id: str) -> KeyRecord:
        """Let this key in no more, at once, in every process. Raises `NotFound`, `BadSetting`."""
        with self._locked() as records:
            found = next((record for record in records if record.id == key_id), None)
            if found is None:
                raise NotFound(f"there is no key {key_id!r} in {self._path}")
            revoked = msgspec.structs.replace(found, revoked_at=found.revoked_at or int(time.time()))
            self._write(tuple(revoked if record.id == key_id else record for record in records))
        return revoked

    def _reload(self) -> None:
        """Take the file in again where it is another one than last time."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._active = ()
        self._active = tuple(
            (record.secret_sha256.encode(), Principal(tenant=record.tenant, key_id=record.id))
            for record in self._read()
            if record.revoked_at is None
        )
        self._stamp = stamp

    def _stamp_now(self) -> _Stamp | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadSetting(f"keys file {self._path}: {error.strerror or error}") from error
        return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size

    def _read(self) -> tuple[KeyRecord, ...]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise BadSetting(f"keys file {self._path}: {error.strerror or error}") from error
        try:
            return msgspec.json.decode(raw, type=_KeysFile).keys
        except msgspec.DecodeError as error:
            raise BadSetting(f"keys file {self._path} cannot be read: {error}") from error

    @contextmanager
    def _locked(self) -> Iterator[tuple[KeyRecord, ...]]:
        """The records as they are, while no other process changes them."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadSetting(f"keys file {self._path}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(lock)

    def _write(self, records: tuple[KeyRecord, ...]) -> None:
        """Whole or not at all: a crash leaves the old file or the new one."""
        raw = msgspec.json.format(msgspec.json.encode(_KeysFile(version=1, keys=records)), indent=2)
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise BadSetting(f"keys file {self._path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
