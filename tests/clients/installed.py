"""Where the real clients lie, and what is missing. `make clients` installs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_COMMANDS = Path(__file__).parent / "node_modules" / ".bin"


class NotInstalled(Exception):
    """A client, or what it runs on, is not here."""


def client_command(name: str) -> Path:
    """The command as its package installs it. Raises `NotInstalled`."""
    command = _COMMANDS / name
    if not command.exists():
        raise NotInstalled(f"{name} is not installed: run `make clients`")
    return command


def search_path() -> str:
    """PATH for a client: Node of this environment before the system's, and the system's tools.

    Raises `NotInstalled`.
    """
    folders = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    if shutil.which("node", path=folders) is None:
        raise NotInstalled("Node is not installed: run `make clients`")
    return folders


def must_be_installed() -> bool:
    """In CI a client that is missing is a failure."""
    return bool(os.environ.get("CI"))
