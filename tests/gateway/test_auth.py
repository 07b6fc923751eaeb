"""Keys in two headers: who is let in, and what those are told who are not."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from keepwarm.core.errors import Unauthorized
from keepwarm.gateway.auth import authenticate
from tests.gateway.doors import KEY, OTHER_KEY, SECOND_KEY, KnownKeys


@pytest.mark.parametrize(
    ("headers", "key_id", "ignored"),
    [
        ({"x-api-key": KEY}, "key_1", None),
        ({"authorization": f"Bearer {KEY}"}, "key_1", None),
        ({"authorization": f"bearer   {KEY} "}, "key_1", None),
        ({"x-api-key": KEY, "authorization": f"Bearer {KEY}"}, "key_1", None),
        ({"x-api-key": KEY, "authorization": f"Bearer {SECOND_KEY}"}, "key_1", None),
        ({"x-api-key": KEY, "authorization": "Bearer sk-ant-leftover"}, "key_1", "authorization"),
        ({"x-api-key": KEY, "authorization": "Basic abc"}, "key_1", "authorization"),
        ({"x-api-key": KEY, "authorization": "Bearer"}, "key_1", "authorization"),
        ({"x-api-key": "leftover", "authorization": f"Bearer {OTHER_KEY}"}, "key_2", "x-api-key"),
        ({"x-api-key": "", "authorization": f"Bearer {OTHER_KEY}"}, "key_2", None),
        ({"x-api-key": KEY, "authorization": ""}, "key_1", None),
    ],
)
async def test_a_key_of_ours_lets_in_whatever_else_is_sent(
    headers: dict[str, str], key_id: str, ignored: str | None
) -> None:
    admission = await authenticate(Headers(headers), KnownKeys())

    assert (admission.principal.key_id, admission.ignored_header) == (key_id, ignored)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no key: send one as x-api-key, or as Authorization: Bearer KEY"),
        ({"x-api-key": " "}, "no key: send one as x-api-key, or as Authorization: Bearer KEY"),
        ({"x-api-key": "wrong"}, "the key in x-api-key is not known here, or was revoked"),
        ({"authorization": "Bearer wrong"}, "the key in Authorization is not known here, or was revoked"),
        ({"authorization": f"Basic {KEY}"}, "Authorization is not of the form 'Bearer KEY'"),
        ({"authorization": KEY}, "Authorization is not of the form 'Bearer KEY'"),
        ({"authorization": "Bearer "}, "Authorization is not of the form 'Bearer KEY'"),
        (
            {"x-api-key": "wrong", "authorization": KEY},
            "the key in x-api-key is not known here, or was revoked; "
            "Authorization is not of the form 'Bearer KEY'",
        ),
        (
            {"x-api-key": "wrong", "authorization": "Bearer wrong"},
            "neither the key in x-api-key nor the one in Authorization is known here; revoked ones are not",
        ),
        (
            {"x-api-key": KEY, "authorization": f"Bearer {OTHER_KEY}"},
            "x-api-key and Authorization carry keys of different owners: send only one of them "
            "(Claude Code: unset ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN)",
        ),
    ],
)
async def test_who_is_not_let_in_is_told_what_was_tried_and_never_a_secret(
    headers: dict[str, str], message: str
) -> None:
    with pytest.raises(Unauthorized) as raised:
        await authenticate(Headers(headers), KnownKeys())

    assert str(raised.value) == message
