"""What the harness reads in a log, and calls a missed turn."""

from __future__ import annotations

from tests.clients.scripted_server import BLOCK_TOKENS, LoggedRequest, missed, requests_in

LINE = (
    "2026-12-01 00:00:00,000 INFO keepwarm.gateway.requests: request request_id=req_1 session=s agent=a "
    "route=/v1/messages stream=True status=200 prompt_tokens=100 cached_tokens=32 output_tokens=7 outcome=ok"
)


def turn(prompt: int, cached: int, output: int = 10) -> LoggedRequest:
    return LoggedRequest(
        fields={"prompt_tokens": str(prompt), "cached_tokens": str(cached), "output_tokens": str(output)}
    )


def test_a_line_of_the_request_log_is_read() -> None:
    (request,) = requests_in(f"something else\n{LINE}\n")
    assert (request.route, request.status, request.session) == ("/v1/messages", 200, ("s", "a"))
    assert [request.tokens(kind) for kind in ("prompt", "cached", "output")] == [100, 32, 7]
    assert request.is_turn()


def test_a_turn_may_miss_a_block_and_no_more() -> None:
    earlier = turn(prompt=1000, cached=0, output=24)
    assert missed([earlier, turn(prompt=1100, cached=1024 - BLOCK_TOKENS)]) == []
    assert len(missed([earlier, turn(prompt=1100, cached=1024 - BLOCK_TOKENS - 1)])) == 1
