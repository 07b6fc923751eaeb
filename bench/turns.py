"""A conversation's second turn against its first, through HTTP.

Cold: a conversation of `--tokens` tokens that nobody has seen. Warm: its second turn, which adds
about `--new` tokens. Median time to first token of each over `--rounds` conversations.

    python bench/turns.py [--json FILE]                                 # starts our server
    python bench/turns.py --url http://127.0.0.1:8001 --model NAME      # any other, e.g. vLLM
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path

import httpx

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.serving import Answer, Target, ask, own_server, real_text

ANSWER_TOKENS = 16
LIMIT_RATIO = 1 / 25


def chars_per_token(client: httpx.Client, target: Target) -> float:
    """Measured on the same kind of text, so that no tokenizer is needed here."""
    sample = real_text(6_000, salt=999)
    answer = ask(client, target, [{"role": "user", "content": sample}], max_tokens=1)
    return len(sample) / answer.prompt_tokens


def two_turns(client: httpx.Client, target: Target, text: str, more: str) -> tuple[Answer, Answer]:
    messages = [{"role": "user", "content": text}]
    cold = ask(client, target, messages, max_tokens=ANSWER_TOKENS)
    messages += [{"role": "assistant", "content": cold.text}, {"role": "user", "content": more}]
    return cold, ask(client, target, messages, max_tokens=ANSWER_TOKENS)


def measure(target: Target, *, tokens: int, new: int, rounds: int) -> dict[str, object]:
    pairs: list[tuple[Answer, Answer]] = []
    with httpx.Client(timeout=600) as client:
        ratio = chars_per_token(client, target)
        for salt in range(rounds):
            text = real_text(int(tokens * ratio), salt=salt)
            more = real_text(int(max(8, new - ANSWER_TOKENS - 12) * ratio), salt=salt + 500)
            pairs.append(two_turns(client, target, text, more))
            print(f"round {salt}: cold {pairs[-1][0].ttft_s:.3f} s, warm {pairs[-1][1].ttft_s:.3f} s")
    cold_s = statistics.median(cold.ttft_s for cold, _warm in pairs)
    warm_s = statistics.median(warm.ttft_s for _cold, warm in pairs)
    return {
        "tool": "turns",
        "settings": {"tokens": tokens, "new": new, "rounds": rounds, "model": target.model},
        "prompt_tokens": [(cold.prompt_tokens, warm.prompt_tokens) for cold, warm in pairs],
        "cached_tokens": [(cold.cached_tokens, warm.cached_tokens) for cold, warm in pairs],
        "cold_ttft_p50_s": cold_s,
        "warm_ttft_p50_s": warm_s,
        "warm_to_cold": warm_s / cold_s,
        "limit": LIMIT_RATIO,
        "pass": warm_s / cold_s <= LIMIT_RATIO,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--new", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", default=None, help="a running server; none: start ours")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="default")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if arguments.url:
            target = Target(url=arguments.url.rstrip("/"), key=arguments.key, model=arguments.model)
        else:
            target = stack.enter_context(own_server())
        report = measure(target, tokens=arguments.tokens, new=arguments.new, rounds=arguments.rounds)
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
