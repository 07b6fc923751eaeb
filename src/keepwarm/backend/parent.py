"""Whether whoever started this process still lives: it holds the other end of standard input."""

from __future__ import annotations

import asyncio
import os
import stat

_STDIN_FD = 0


def stdin_belongs_to_a_parent() -> bool:
    """A pipe or a socket does; a terminal, a file or /dev/null says nothing about anyone's life."""
    try:
        mode = os.fstat(_STDIN_FD).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


async def stdin_closed() -> None:
    """Returns at the end of standard input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _protocol = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(_STDIN_FD), "rb", buffering=0)
    )
    try:
        while await reader.read(4096):
            pass
    finally:
        transport.close()
