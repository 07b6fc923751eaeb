"""A client at a terminal, and a person who types."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROWS, _COLUMNS = 50, 160
_CONTROL_SEQUENCE = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_READ_S = 0.5
_END_LIMIT_S = 10.0


@dataclass(slots=True, kw_only=True)
class Terminal:
    """What the client draws, as one long text: nothing is ever wiped out."""

    process: subprocess.Popen[bytes]
    own_end: int
    drawn: bytes = b""

    def shown(self) -> str:
        """Without colours and cursor movements."""
        return _CONTROL_SEQUENCE.sub(b" ", self.drawn).decode("utf-8", "replace")

    def type(self, text: str) -> None:
        os.write(self.own_end, text.encode())

    def wait_for(self, text: str, *, limit_s: float = 30.0) -> None:
        """Until the words of the text were drawn, whatever moves lie between them."""
        pattern = re.compile(r"\s+".join(map(re.escape, text.split())))
        deadline = time.monotonic() + limit_s
        while not pattern.search(self.shown()):
            assert time.monotonic() < deadline, f"{text!r} never came:\n{self.shown()[-5000:]}"
            self._read()

    def end(self) -> int:
        """Ctrl-C until it is gone; its exit status."""
        deadline = time.monotonic() + _END_LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.shown()[-5000:]}"
            self.type("\x03")
            self._read()
        return self.process.returncode

    def _read(self) -> None:
        ready, _, _ = select.select([self.own_end], [], [], _READ_S)
        with contextlib.suppress(OSError):  # the other end is closed
            self.drawn += os.read(self.own_end, 65536) if ready else b""


@contextlib.contextmanager
def terminal(command: Path, *, folder: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Killed at the end if it still runs."""
    own_end, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        [str(command)],
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    )
    os.close(its_end)
    try:
        yield Terminal(process=process, own_end=own_end)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(own_end)
