"""Log probabilities in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepwarm.chat.events import LogprobOf, TokenReport
from keepwarm.dialects.body import JsonBody

_MAX_TOP_LOGPROBS = 20
_LOWEST = -9999.0  # JSON has no infinity


def read_num_top_logprobs(fields: JsonBody) -> int | None:
    """How many of the most likely tokens are wanted at each place. Raises `BadField`."""
    return fields.integer("top_logprobs", low=0, high=_MAX_TOP_LOGPROBS)


def logprob_entries(reports: Sequence[TokenReport]) -> list[dict[str, Any]]:
    """One entry a sampled token."""
    return [
        {**_logprob(report.chosen), "top_logprobs": [_logprob(top) for top in report.top]}
        for report in reports
    ]


def _logprob(logprob: LogprobOf) -> dict[str, Any]:
    return {
        "token": logprob.token,
        "logprob": max(logprob.logprob, _LOWEST),
        "bytes": list(logprob.token_bytes),
    }
