"""How a process ended, in words."""

from __future__ import annotations

import signal


def describe_exit(status: int) -> str:
    """`status` as Python gives it: negative for the number of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-status}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
