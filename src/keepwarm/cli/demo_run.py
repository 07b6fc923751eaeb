"""What `keepwarm demo` does and says: a server of its own, the driver of `measure`, two tables, a verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvloop
from rich.console import Console

from keepwarm import __version__
from keepwarm.cli.data_dir import keys_file
from keepwarm.cli.demo import DemoOptions
from keepwarm.cli.demo_tables import LinePerTurn, print_verdict
from keepwarm.cli.output import (
    check_json_target,
    console_beside,
    print_backend_trouble,
    start_logging,
    write_json,
)
from keepwarm.cli.serve_settings import ServeSettings
from keepwarm.cli.serving import RunningServer, running_server
from keepwarm.control.keys import FileKeys
from keepwarm.measure.demo import DemoReport, DemoSettings, run_demo
from keepwarm.measure.messages_api import MessagesApi
from keepwarm.measure.report import encode_report


def demo(options: DemoOptions) -> bool:
    """Whether the cache told the truth. Raises `SetupError` where the server cannot be started."""
    check_json_target(options.json)
    start_logging("warning")
    console = console_beside(options.json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_serve_and_drive(options, console))
    print_verdict(console, report)
    if options.json is not None:
        write_json(encode_report(report), options.json)
    return report.passed


async def _serve_and_drive(options: DemoOptions, console: Console) -> DemoReport:
    with TemporaryDirectory(prefix="keepwarm-demo-") as folder:
        data_dir = Path(folder)
        keys = FileKeys(keys_file(data_dir))
        secret, _ = keys.create("demo")
        settings = ServeSettings(port=0, model=options.model, engine=options.engine)
        console.print("starting …", style="dim")
        async with running_server(
            settings, data_dir=data_dir, keys=keys, on_backend_log=print_backend_trouble
        ) as server:
            console.print(f"{server.replica.model} answers at {server.url}", style="dim")
            return await _drive(options, server, secret, console)


async def _drive(options: DemoOptions, server: RunningServer, secret: str, console: Console) -> DemoReport:
    settings = DemoSettings(
        model=server.replica.model,
        block_size=server.block_size,
        num_agents=options.agents,
        num_turns=options.turns,
        max_output_tokens=options.max_tokens,
    )
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        api = MessagesApi(client, key=secret)
        return await run_demo(api, settings, version=__version__, watcher=LinePerTurn(console))
