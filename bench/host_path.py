"""What a warm turn costs the host, from the received body to the first plan, against doing it all again.

Conversations of real text (system, tools, then rounds of an answer and a tool's result, about 1,000
tokens a round) grow by one round a turn, through HTTP, against a server whose device is scripted.
Counted are the CPU seconds of gateway, front and rank together: from the request's first byte to
`message_start`, which is sent when the turn is in its first plan; and for the whole turn. Baseline,
in the same run: parse the body, render the template, tokenise the whole (the call that `transformers`
makes), name all blocks, with the same libraries.

    python -m bench.host_path [--json FILE] [--tokens 20000 100000 450000 1000000] [--sessions 100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.serving import Target, own_server, real_text
from keepwarm.chat.chain import chain_on, chain_root
from keepwarm.chat.known_conversations import KnownConversation
from keepwarm.chat.messages import Chat, Message, Text
from keepwarm.chat.prompt_writer import PromptWriter
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.request import KnownBeginning
from keepwarm.chat.template import ChatTemplate
from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.hashing import BlockHasher, root_hash
from keepwarm.core.ids import TenantId, TokenIds, token_ids
from keepwarm.dialects import anthropic

SIZES = (20_000, 100_000, 450_000, 1_000_000)
TARGET_AT = 450_000
TARGET_RATIO = 60.0
TARGET_TOKENISING_RATIO = 500.0
CHARS_PER_TOKEN = 3.8
ANSWER_CHARS = 216 * 4
RESULT_CHARS = 784 * 4
NUM_TOOLS = 12
BLOCK_TOKENS = 16
TENANT = TenantId("bench")
KEY = b"k" * 32


class Conversation:
    """Grows by one round at a time; the text never repeats within one."""

    def __init__(self, tokens: int, *, salt: int = 0) -> None:
        self._text = real_text(int(tokens * 5) + 400_000, salt=salt)
        self._at = 0
        self._system = [{"type": "text", "text": self._piece(16_000)}]
        self._tools = [_tool(number, self._piece(900)) for number in range(NUM_TOOLS)]
        self.messages: list[dict[str, Any]] = [
            _user([{"type": "text", "text": f"Task {salt}: " + self._piece(400)}])
        ]
        while self._at < tokens * CHARS_PER_TOKEN:
            self.add_round(self._piece(ANSWER_CHARS))

    def add_round(self, answer: str) -> None:
        call = f"toolu_{len(self.messages):06d}"
        use = {"type": "tool_use", "id": call, "name": "tool_1", "input": {"path": f"/src/{call}.py"}}
        result = {"type": "tool_result", "tool_use_id": call, "content": self._piece(RESULT_CHARS)}
        self.messages += [
            {"role": "assistant", "content": [{"type": "text", "text": answer}, use]},
            _user([result]),
        ]

    def body(self, model: str, *, max_tokens: int) -> bytes:
        """As Claude Code writes it: the cache mark stands on the last message only."""
        last = self.messages[-1]
        marked = _user([{**last["content"][0], "cache_control": {"type": "ephemeral"}}])
        return json.dumps(
            {
                "model": model,
                "messages": [*self.messages[:-1], marked],
                "system": self._system,
                "tools": self._tools,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()

    def _piece(self, num_chars: int) -> str:
        piece = self._text[self._at : self._at + num_chars]
        self._at += num_chars
        return piece


def _user(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _tool(number: int, description: str) -> dict[str, Any]:
    parameters = {
        name: {"type": "string", "description": description[:80]} for name in ("path", "pattern", "mode")
    }
    schema = {"type": "object", "properties": parameters, "required": ["path"]}
    return {"name": f"tool_{number}", "description": description, "input_schema": schema}


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Of one server, each with its CPU time in nanoseconds from the kernel's scheduler."""

    pids: dict[str, int]

    @classmethod
    def of(cls, server_pid: int) -> Processes:
        front = next(child for child in psutil.Process(server_pid).children())
        (rank,) = front.children()
        return cls(pids={"gateway": server_pid, "front": front.pid, "rank": rank.pid})

    def cpu_s(self) -> dict[str, float]:
        return {name: _cpu_s(pid) for name, pid in self.pids.items()}


def _cpu_s(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """CPU seconds by process: until the first plan, and of the whole turn."""

    until_plan: dict[str, float]
    whole: dict[str, float]
    prompt_tokens: int
    cached_tokens: int
    answer: str


def one_turn(client: httpx.Client, target: Target, processes: Processes, body: bytes) -> TurnCost:
    before = processes.cpu_s()
    planned: dict[str, float] = {}
    usage: dict[str, int] = {}
    pieces: list[str] = []
    headers = {**target.headers, "content-type": "application/json", "x-claude-code-session-id": "bench"}
    with client.stream("POST", f"{target.url}/v1/messages", content=body, headers=headers) as response:
        if response.status_code != 200:
            raise SystemExit(f"{response.status_code}: {response.read().decode()[:500]}")
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            if event["type"] == "message_start":
                planned = processes.cpu_s()
                usage = event["message"]["usage"]
            if event["type"] == "error":
                raise SystemExit(line)
            pieces.append(event.get("delta", {}).get("text", ""))
    time.sleep(0.3)  # what is done after the last byte belongs to the turn too
    after = processes.cpu_s()
    return TurnCost(
        until_plan={name: planned[name] - before[name] for name in before},
        whole={name: after[name] - before[name] for name in before},
        prompt_tokens=usage["input_tokens"] + usage["cache_read_input_tokens"],
        cached_tokens=usage["cache_read_input_tokens"],
        answer="".join(pieces),
    )


def warm_turns(target: Target, tokens: int, *, rounds: int, salt: int) -> tuple[list[TurnCost], bytes]:
    """After one cold turn and one that is thrown away; the last body comes too."""
    assert target.pid is not None
    processes = Processes.of(target.pid)
    conversation = Conversation(tokens, salt=salt)
    costs: list[TurnCost] = []
    with httpx.Client(timeout=900) as client:
        for _ in range(rounds + 2):
            body = conversation.body(target.model, max_tokens=400)
            costs.append(one_turn(client, target, processes, body))
            conversation.add_round(costs[-1].answer)
    return costs[2:], body


def baseline(body: bytes, *, repeats: int) -> dict[str, float]:
    """CPU seconds of each part, the least of `repeats`, as a server without a memory would do it."""
    tokenizer = load_tokenizer(str(find_embedded_model()))
    backend = tokenizer._backend  # the library's own object: nothing of ours stands in between
    backend.encode_special_tokens = False
    template = ChatTemplate(
        tokenizer.chat_template or "",
        variables={"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token},
    )
    hasher = BlockHasher(key=KEY, block_size=BLOCK_TOKENS)
    root = root_hash(KEY, TENANT)
    turn, parse_s = _timed(lambda: anthropic.parse_turn(body), repeats)
    messages = _as_template_takes_them(turn.chat)
    text, render_s = _timed(
        lambda: template.render(messages, tools=None, add_generation_prompt=True), repeats
    )
    ids, tokenise_s = _timed(lambda: token_ids(backend.encode(text, add_special_tokens=False).ids), repeats)
    _, hash_s = _timed(lambda: hasher.extend_joined(root, ids), repeats)
    return {"parse_s": parse_s, "render_s": render_s, "tokenise_s": tokenise_s, "hash_s": hash_s}


def _as_template_takes_them(chat: Chat) -> list[dict[str, str]]:
    """Plain strings, made beforehand and not counted."""
    written = []
    for message in chat.messages:
        words = [
            json.dumps(part, default=str) if not hasattr(part, "text") else part.text
            for part in message.parts
        ]
        words += [
            "".join(getattr(piece, "text", "") for piece in getattr(part, "parts", ()))
            for part in message.parts
        ]
        written.append({"role": message.role, "content": "\n".join(words)})
    return written


def _timed(job: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    times, result = [], None
    for _ in range(repeats):
        started = time.process_time()
        result = job()
        times.append(time.process_time() - started)
    return result, min(times)


class Spying:
    """A renderer of which the tokenising and the naming are timed."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.renderer = ChatRenderer(load_tokenizer(str(find_embedded_model())))
        writer: PromptWriter = self.renderer._writer
        encode = writer.encode

        def timed(*arguments: Any, **options: Any) -> TokenIds:
            started = time.process_time()
            ids = encode(*arguments, **options)
            self.spent_s += time.process_time() - started
            return ids

        writer.encode = timed  # type: ignore[method-assign] # a bench looks inside


def tokenising_alone(tokens: int, *, rounds: int, salt: int) -> float:
    """CPU seconds of tokenising and naming in a warm turn, as the front does it; the median."""
    spying, conversation = Spying(), Conversation(tokens, salt=salt)
    hasher, root = BlockHasher(key=KEY, block_size=BLOCK_TOKENS), root_hash(KEY, TENANT)
    known: KnownBeginning | None = None
    spent: list[float] = []
    sent = 0
    for _ in range(rounds + 1):
        chat = anthropic.parse_turn(conversation.body("m", max_tokens=1)).chat
        chains = chain_on(chain_root(chat.tools), chat.messages)
        rest = Chat(messages=chat.messages[sent:], tools=chat.tools)
        spying.spent_s = 0.0
        prompt = spying.renderer.render(TENANT, rest, known=known)
        started = time.process_time()
        prompt.block_names(hasher, root)
        spent.append(spying.spent_s + time.process_time() - started)
        sent = len(chat.messages)
        known = KnownBeginning(chain=chains[-1], num_messages=sent)
        answer = conversation._piece(ANSWER_CHARS)
        ids = spying.renderer._tokenizer.encode(answer, after_control_token=True).tolist()
        conversation.add_round(answer)
        said = anthropic.parse_turn(conversation.body("m", max_tokens=1)).chat.messages[-2]
        spying.renderer.remember(TENANT, prompt, said.parts, ids)
    return statistics.median(spent[1:])


def many_sessions(num_sessions: int, tokens: int) -> dict[str, float]:
    """Bytes of the memory of conversations with so many known: counted, and by the kernel."""
    renderer = ChatRenderer(load_tokenizer(str(find_embedded_model())))
    conversation = Conversation(tokens, salt=7)
    base = anthropic.parse_turn(conversation.body("m", max_tokens=1)).chat
    hasher, root = BlockHasher(key=KEY, block_size=BLOCK_TOKENS), root_hash(KEY, TENANT)
    renderer.render(TENANT, base)
    before = psutil.Process().memory_info().rss
    for number in range(num_sessions):
        opening = Message(role="user", parts=(*base.messages[1].parts, Text(text=f"session {number}")))
        chat = Chat(messages=(base.messages[0], opening, *base.messages[2:]), tools=base.tools)
        prompt = renderer.render(TENANT, chat)
        prompt.block_names(hasher, root)
        assert isinstance(prompt.known, KnownConversation)
    after = psutil.Process().memory_info().rss
    return {
        "sessions": num_sessions,
        "tokens_each": len(prompt.tokens),
        "known": len(renderer._known),
        "counted_mb": renderer._known.held_bytes / 1e6,
        "limit_mb": renderer._known.max_bytes / 1e6,
        "resident_mb": (after - before) / 1e6,
    }


def measure(target: Target, sizes: list[int], *, rounds: int) -> Iterator[dict[str, Any]]:
    for salt, tokens in enumerate(sizes):
        costs, body = warm_turns(target, tokens, rounds=rounds, salt=salt)
        parts = baseline(body, repeats=2)
        baseline_s = sum(parts.values())
        warm = {
            name: statistics.median(cost.until_plan[name] for cost in costs) for name in costs[0].until_plan
        }
        warm_s = statistics.median(sum(cost.until_plan.values()) for cost in costs)
        tokenising_s = tokenising_alone(tokens, rounds=rounds, salt=salt)
        yield {
            "tokens": costs[-1].prompt_tokens,
            "new_tokens": costs[-1].prompt_tokens - costs[-1].cached_tokens,
            "body_mb": len(body) / 1e6,
            "baseline_s": baseline_s,
            "warm_s": warm_s,
            "ratio": baseline_s / warm_s,
            "tokenising_ratio": (parts["tokenise_s"] + parts["hash_s"]) / tokenising_s,
            "parts": {
                "baseline": parts,
                "warm": {f"{name}_s": seconds for name, seconds in warm.items()},
                "warm_tokenise_and_hash_s": tokenising_s,
                "whole_turn_s": statistics.median(sum(cost.whole.values()) for cost in costs),
            },
        }


SCRIPT = """\
[[answers]]
say = '''{answer}'''
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=100, help="0: leave the many sessions out")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    answer = real_text(ANSWER_CHARS, salt=3).replace("'''", '"""').replace("\\", "/")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as script:
        script.write(SCRIPT.format(answer=answer))
        script.flush()
        most = str(int(max(arguments.tokens) * 1.5) + 50_000)
        options = ("--engine", "scripted", "--script", script.name, "--max-model-len", most)
        with own_server(*options, "--max-num-batched-tokens", "8192") as target:
            sizes = []
            for size in measure(target, arguments.tokens, rounds=arguments.rounds):
                print(
                    f"{size['tokens']:>9,} tokens: baseline {size['baseline_s'] * 1e3:8.1f} ms, "
                    f"warm {size['warm_s'] * 1e3:6.1f} ms CPU (1/{size['ratio']:.0f}), "
                    f"tokenising and hashing 1/{size['tokenising_ratio']:.0f}, {size['parts']['warm']}"
                )
                sizes.append(size)
    report: dict[str, Any] = {"tool": "host_path", "settings": {"rounds": arguments.rounds}, "sizes": sizes}
    if arguments.sessions:
        report["memory"] = many_sessions(arguments.sessions, min(TARGET_AT, max(arguments.tokens)))
    at_target = [size for size in sizes if size["tokens"] >= TARGET_AT * 0.9] or sizes[-1:]
    report["pass"] = (
        at_target[0]["ratio"] >= TARGET_RATIO and at_target[0]["tokenising_ratio"] >= TARGET_TOKENISING_RATIO
    )
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    return 0 if report["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
