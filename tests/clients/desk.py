"""A person's place for one test: an empty home, a project folder, a client to run in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.installed import client_command, search_path
from tests.clients.outside import ClosedDoor

RUN_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A client that has ended."""

    command: tuple[str, ...]
    status: int | None
    """None: it was killed at the limit."""
    stdout: str
    stderr: str
    took_s: float

    def lines(self) -> list[dict[str, Any]]:
        """Standard output, where it is a JSON object a line."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    def __str__(self) -> str:
        return (
            f"$ {' '.join(self.command)}\n(status {self.status} after {self.took_s:.1f} s)\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


@dataclass(slots=True, kw_only=True)
class Desk:
    """Clients run here with an environment of their own and nothing of the tester's."""

    home: Path
    project: Path
    door: ClosedDoor
    ran: list[Done] = field(default_factory=list)
    """What a failing test shows."""

    def run(
        self,
        client: str,
        *arguments: str,
        environment: Mapping[str, str],
        stdin: str = "",
        limit_s: float = RUN_LIMIT_S,
        through_door: bool = True,
    ) -> Done:
        """One run of a client to its end; fails when it has not ended after the limit."""
        command = (str(client_command(client)), *arguments)
        started_at = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environment(environment, through_door=through_door),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        status: int | None
        try:
            stdout, stderr = process.communicate(stdin, timeout=limit_s)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            status = None
        took_s = time.monotonic() - started_at
        done = Done(command=(client, *arguments), status=status, stdout=stdout, stderr=stderr, took_s=took_s)
        self.ran.append(done)
        assert status is not None, f"{client} had not ended after {limit_s:.0f} s"
        return done

    def environment(self, environment: Mapping[str, str], *, through_door: bool = True) -> dict[str, str]:
        """All that a client gets to see."""
        fixed = {"PATH": search_path(), "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb"}
        return {**fixed, **(self.door.environment() if through_door else {}), **environment}
