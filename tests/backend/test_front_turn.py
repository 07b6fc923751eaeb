"""One turn in the front: whatever goes wrong is its own end, told once, and its rank stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from keepwarm.backend.answer import OutputLimit
from keepwarm.backend.front_turn import FrontTurn, PreparedTurn, TurnPorts
from keepwarm.backend.rank_port import Listener, RankView, RankWatcher
from keepwarm.backend.scripted_words import ByteTurnWords
from keepwarm.chat.events import Accepted, Admitted, ChatEvent, Failed, Finished, TextDelta
from keepwarm.chat.messages import Chat
from keepwarm.chat.request import ChatRequest
from keepwarm.core import rank_messages
from keepwarm.core.errors import BadRequest, KeepwarmError, NotReady
from keepwarm.core.ids import RequestId, TenantId, token_ids
from keepwarm.core.rank_messages import Ready, Submit
from keepwarm.core.sampling import GREEDY
from keepwarm.core.session import NO_SESSION, SessionKey

ID = RequestId("r1")


class NotedRank:
    """A rank that notes what it is told; the test speaks for it."""

    ready: Ready | None = None
    ranks: Sequence[RankView] = ()

    def __init__(self) -> None:
        self.refusal: KeepwarmError | None = None
        self.listener: Listener | None = None
        self.aborted: list[RequestId] = []
        self.cuts: list[int] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def unready_reason(self) -> str | None:
        return None

    def watch(self, watcher: RankWatcher) -> None: ...

    def submit(self, turn: Submit, listener: Listener, *, session: SessionKey = NO_SESSION) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.listener = listener

    def abort(self, request_id: RequestId) -> None:
        self.aborted.append(request_id)

    def cut(self, request_id: RequestId, num_output_tokens: int) -> None:
        self.cuts.append(num_output_tokens)

    def say_tokens(self, text: str) -> None:
        assert self.listener is not None
        self.listener(rank_messages.Tokens(request_id=ID, tokens=tuple(text.encode())))

    def admit(self) -> None:
        assert self.listener is not None
        self.listener(rank_messages.Admitted(request_id=ID, cached_tokens=0))

    def end(self) -> None:
        assert self.listener is not None
        self.listener(rank_messages.Ended(request_id=ID, reason="stop"))


class BreakableWords(ByteTurnWords):
    """Words that fail when they are told to."""

    breaks_on_add = False
    breaks_on_remember = False
    num_remembered = 0

    def add(self, *arguments: object) -> Sequence[TextDelta]:
        if self.breaks_on_add:
            raise ValueError("the user's own words")
        return super().add(*arguments)  # type: ignore[arg-type, return-value]

    def remember(self) -> None:
        self.num_remembered += 1
        if self.breaks_on_remember:
            raise ValueError("the user's own words")


class Desk:
    """One turn with everything around it in the test's hands."""

    def __init__(self, *stops: str) -> None:
        self.rank = NotedRank()
        self.words = BreakableWords(token_ids([1, 2, 3]), stops, with_logprobs=False)
        self.may_prepare = asyncio.Event()
        self.error: Exception | None = None
        self.told: list[ChatEvent] = []
        self.outcomes: list[str] = []
        chat_request = ChatRequest(request_id=ID, tenant=TenantId("t"), chat=Chat(messages=()))
        ports = TurnPorts(
            rank=self.rank,
            clock=lambda: 0.0,
            prepare=self._prepare,
            on_over=lambda _turn, outcome: self.outcomes.append(outcome),
        )
        self.turn = FrontTurn(chat_request, ports=ports, tell=self.told.extend)

    async def _prepare(self, request: ChatRequest) -> PreparedTurn:
        await self.may_prepare.wait()
        if self.error is not None:
            raise self.error
        submit = Submit(
            request_id=ID,
            tokens=b"",
            block_hashes=b"",
            root=b"",
            max_output_tokens=9,
            stop_tokens=(),
            sampling=GREEDY,
        )
        limit = OutputLimit(tokens=9, reached_reason="max_tokens")
        return PreparedTurn(words=self.words, submit=submit, limit=limit)

    async def prepared(self) -> Desk:
        self.may_prepare.set()
        for _ in range(5):
            await asyncio.sleep(0)
        return self

    async def begun(self) -> Desk:
        await self.prepared()
        self.rank.admit()
        return self


async def test_a_turn_is_told_as_the_rank_speaks() -> None:
    desk = await Desk().begun()
    desk.rank.say_tokens("he")
    assert desk.told == [Accepted(prompt_tokens=3), Admitted(cached_tokens=0), TextDelta(text="he")]
    desk.rank.say_tokens("llo")
    desk.rank.end()
    assert desk.told[-2] == TextDelta(text="llo")
    assert isinstance(desk.told[-1], Finished)
    assert desk.outcomes == ["end"]
    assert desk.words.num_remembered == 1
    assert desk.rank.aborted == []


async def test_what_the_rank_says_after_the_end_is_not_told() -> None:
    desk = await Desk("l").begun()
    desk.rank.say_tokens("hello")
    assert isinstance(desk.told[-1], Finished)
    assert desk.rank.cuts == [3]
    num_told = len(desk.told)
    desk.rank.say_tokens("more")
    desk.rank.end()
    desk.turn.close()
    assert len(desk.told) == num_told
    assert desk.outcomes == ["stop_string"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(BadRequest("messages.0: no"), "bad_request"), (ValueError("secret"), "internal_error")],
)
async def test_a_prompt_that_cannot_be_prepared_is_one_failure(error: Exception, code: str) -> None:
    desk = Desk()
    desk.error = error
    await desk.prepared()
    (failed,) = desk.told
    assert isinstance(failed, Failed)
    assert failed.error.code == code
    assert "secret" not in str(failed)
    assert desk.outcomes == [code]


async def test_a_rank_that_is_gone_meanwhile_is_one_failure() -> None:
    desk = Desk()
    desk.rank.refusal = NotReady("the engine was lost")
    await desk.prepared()
    assert isinstance(desk.told[-1], Failed)
    assert desk.outcomes == ["not_ready"]


async def test_words_that_break_end_their_turn_and_stop_its_work(caplog: pytest.LogCaptureFixture) -> None:
    desk = await Desk().begun()
    desk.words.breaks_on_add = True
    desk.rank.say_tokens("x")  # raises nothing: the link to the rank is everybody's
    assert isinstance(desk.told[-1], Failed)
    assert desk.told[-1].error.fields == {"message": "the backend failed on ValueError"}
    assert desk.rank.aborted == [ID]
    assert desk.outcomes == ["internal_error"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    desk.rank.say_tokens("y")
    assert len(desk.outcomes) == 1


async def test_closing_while_it_is_prepared_tells_nothing_and_submits_nothing() -> None:
    desk = Desk()
    await asyncio.sleep(0)
    desk.turn.close()
    await desk.prepared()
    assert desk.told == []
    assert desk.rank.listener is None
    assert desk.outcomes == ["aborted"]


async def test_closing_while_it_is_answered_aborts_and_remembers_what_was_sent() -> None:
    desk = await Desk().begun()
    desk.rank.say_tokens("hel")
    num_told = len(desk.told)
    desk.turn.close()
    desk.turn.close()
    desk.rank.say_tokens("lo")
    assert len(desk.told) == num_told
    assert desk.rank.aborted == [ID]
    assert desk.words.num_remembered == 1
    assert desk.outcomes == ["aborted"]


async def test_a_memory_that_breaks_while_nobody_waits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    desk = await Desk().begun()
    desk.words.breaks_on_remember = True
    desk.turn.close()
    assert desk.outcomes == ["aborted"]
    assert "cannot be remembered" in caplog.text


async def test_failing_it_from_outside_is_its_one_end() -> None:
    desk = Desk()
    desk.turn.fail(NotReady("the backend is shutting down"))
    desk.turn.fail(NotReady("again"))
    desk.turn.close()
    await desk.prepared()
    (failed,) = desk.told
    assert isinstance(failed, Failed)
    assert desk.outcomes == ["not_ready"]
