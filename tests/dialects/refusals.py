"""Bodies that a dialect refuses, and how it says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.core.errors import BadRequest
from keepwarm.dialects.dialect import Dialect


def assert_refused(dialect: Dialect, body: dict[str, Any], field: str, said: str) -> Any:
    """The refusal begins with the field's path and says this; returns its JSON."""
    with pytest.raises(BadRequest) as caught:
        dialect.parse_turn(json.dumps(body).encode())
    assert str(caught.value).startswith(f"{field}: ")
    assert said in str(caught.value)
    return json.loads(dialect.error_reply(caught.value, "req_1").body)["error"]
