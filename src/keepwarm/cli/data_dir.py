"""Where Keepwarm keeps what must outlive it: keys, the cache's secret. Names files; opens none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from keepwarm.cli.settings_command import option
from keepwarm.core.errors import BadSetting

DEFAULT_TEXT = "~/.local/share/keepwarm"

DataDirOption = Annotated[
    Path | None,
    option(
        "--data-dir",
        help="Folder for keys (hashed) and the cache's secret; made when missing.",
        show_default=DEFAULT_TEXT,
    ),
]


def find_data_dir(chosen: Path | None) -> Path:
    """The same folder for those who only look or take away: never made, so that a wrong name is heard of.

    Raises `BadSetting` when it is missing.
    """
    folder = _absolute(chosen)
    if not folder.is_dir():
        raise BadSetting(f"--data-dir {folder}: no such folder")
    return folder


def resolve_data_dir(chosen: Path | None) -> Path:
    """The chosen folder, or one in the user's own data folder; made, for its owner only.

    Raises `BadSetting` when it is no folder or cannot be written.
    """
    folder = _absolute(chosen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"--data-dir {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadSetting(f"--data-dir {folder}: not writable for this user")
    return folder


def _absolute(chosen: Path | None) -> Path:
    folder = chosen or Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share", "keepwarm")
    return folder.expanduser().absolute()


def keys_file(data_dir: Path) -> Path:
    """The file of hashed keys."""
    return data_dir / "keys.json"
