"""What `keepwarm serve` does and says from its first line to its last."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
from collections.abc import Callable
from functools import partial

import msgspec
import uvloop
from rich.console import Console

from keepwarm.cli.client_environment import claude_code_environment, context_warning
from keepwarm.cli.data_dir import keys_file, resolve_data_dir
from keepwarm.cli.output import (
    check_json_target,
    console_beside,
    print_backend_line,
    start_logging,
    write_json,
)
from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.cli.serving import RunningServer, running_server
from keepwarm.cli.settings_command import refuse_unknown_variables
from keepwarm.control.keys import FileKeys

_SHORT_SESSION_TOKENS = 4096
"""The session length that the memory line speaks of beside the full context."""


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM. Raises `SetupError` before it answers."""
    refuse_unknown_variables(ServeSettings, os.environ)
    check_json_target(settings.json)
    start_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_stopped(settings))


async def _serve_until_stopped(settings: ServeSettings) -> None:
    console = console_beside(settings.json)
    data_dir = resolve_data_dir(settings.data_dir)
    keys = FileKeys(keys_file(data_dir))
    signals = _Signals()
    try:
        console.print("starting …", style="dim")
        async with running_server(
            settings, data_dir=data_dir, keys=keys, on_backend_log=print_backend_line
        ) as server:
            new_key = None if keys.list() else keys.create("first start")[0]
            announce(console, server, new_key)
            if settings.json is not None:
                write_json(ready_document(server, new_key), settings.json)
            gc.freeze()  # what was loaded lives as long as we do: no collection need look at it again
            signals.loaded(cut_short=partial(setattr, server.http, "force_exit", True))
            await signals.stop.wait()
            console.print("stopping: running answers may end; once more ends them now", style="dim")
    except asyncio.CancelledError:
        if not signals.stop.is_set():
            raise  # not ours
        console.print("stopped while starting", style="dim")
    finally:
        signals.close()


def announce(console: Console, server: RunningServer, new_key: str | None) -> None:
    """What a person needs to use the server, once it answers."""
    replica = server.replica
    console.print(f"\n[bold]Keepwarm serves {replica.model} at {server.url}[/bold]")
    console.print(memory_line(server))
    if new_key is None:
        console.print("keys    as made before; another: keepwarm keys create")
    else:
        console.print(f"key     {new_key}   (shown only now; another: keepwarm keys create)")
    console.print("\nFor Claude Code:")
    environment = claude_code_environment(
        url=server.url,
        key=new_key or "<your key>",
        model=replica.model,
        max_context_tokens=replica.max_model_len,
    )
    for name, value in environment.items():
        console.print(f"  export {name}={shlex.quote(value)}", markup=False)
    warning = context_warning(replica.max_model_len)
    if warning is not None:
        console.print(f"\n[yellow]warning[/yellow] {warning}")


def memory_line(server: RunningServer) -> str:
    """What the cache holds: blocks, tokens, and sessions of a short and of the longest length."""
    replica = server.replica
    lengths = sorted({min(_SHORT_SESSION_TOKENS, replica.max_model_len), replica.max_model_len})
    num_ranks = replica.num_ranks
    sessions = ", ".join(
        f"{replica.cache_tokens // num_ranks // length * num_ranks:,} sessions of {length:,} tokens"
        for length in lengths
    )
    num_blocks = replica.cache_tokens // server.block_size
    return (
        f"cache   {num_blocks:,} blocks of {server.block_size} = {replica.cache_tokens:,} tokens: {sessions}"
    )


def ready_document(server: RunningServer, new_key: str | None) -> bytes:
    """The JSON of `serve --json`; `key` is null when it was made at an earlier start."""
    document = {
        "url": server.url,
        "key": new_key,
        "model": server.replica.model,
        "max_context_tokens": server.replica.max_model_len,
        "pid": os.getpid(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


class _Signals:
    """SIGINT and SIGTERM. While loading, the first ends the start; afterwards the first sets `stop`
    and the second cuts the drain short."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._starting = asyncio.current_task()
        self._cut_short: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._heard)

    def loaded(self, *, cut_short: Callable[[], None]) -> None:
        """The start is over."""
        self._starting = None
        self._cut_short = cut_short

    def close(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(number)

    def _heard(self) -> None:
        if self.stop.is_set():
            self._cut_short()
            return
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()
