"""Conversations on disk, with the embedded model: after a restart of everything they go on as if read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepwarm.backend.disk_budget import look_up
from tests.e2e.served import Served, serve
from tests.e2e.test_warm_turns import RULES

pytestmark = pytest.mark.engine

OPTIONS = ("--device-cache-gb", "0.5", "--host-cache-gb", "0.5", "--disk-cache-gb", "1")
QUESTIONS = ("List the files, please.", "Which rule is the shortest?", "Sum up rule 7.")


def ask(served: Served, question: str, *, bypass: bool = False) -> tuple[str, dict[str, int]]:
    """The answer, and where the prompt's cached tokens were found."""
    body: dict[str, Any] = {
        "model": served.model,
        "max_tokens": 24,
        "temperature": 0,
        "system": RULES,
        "messages": [{"role": "user", "content": question}],
    }
    with served.client() as client:
        headers = {"x-keepwarm-cache": "bypass"} if bypass else {}
        answer = client.post("/v1/messages", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    tiers = dict(part.split("=") for part in answer.headers["x-keepwarm-cached-tokens"].split(", "))
    return answer.json()["content"][0]["text"], {name: int(count) for name, count in tiers.items()}


def test_after_a_restart_of_everything_answers_are_those_of_a_cold_read(tmp_path: Path) -> None:
    if (refusal := look_up(tmp_path).refusal()) is not None:
        pytest.skip(f"{tmp_path} lies on {refusal}")
    with serve(tmp_path, *OPTIONS) as served:
        key = served.key
        cold = [ask(served, question, bypass=True)[0] for question in QUESTIONS]
        for question in QUESTIONS:
            ask(served, question)
        warm = [ask(served, question) for question in QUESTIONS]
    (tmp_path / "ready.json").unlink()
    with serve(tmp_path, *OPTIONS) as served:
        again = replace(served, key=key)
        from_disk = [ask(again, question) for question in QUESTIONS]
    assert [text for text, _ in warm] == [text for text, _ in from_disk] == cold
    for (_, in_memory), (_, tiers) in zip(warm, from_disk, strict=True):
        assert sum(tiers.values()) == in_memory["l0"] > 200
        assert tiers["l1"] == 0
    first = from_disk[0][1]
    assert first["disk"] == sum(first.values())  # the others find the rules on the device by then
