"""The fake backend, telling instead of being asked: the same words, so that one suite tests both."""

from __future__ import annotations

from keepwarm.chat.request import ChatRequest, ReplicaDescription
from keepwarm.contract.backend import OpenTurn, Tell, TellingBackend
from keepwarm.contract.pulled_turn import PulledTurn
from keepwarm.core.errors import KeepwarmError
from tests.contract.fake_backend import FakeBackend


class FakeTellingBackend(TellingBackend):
    """Tells what `behind` says."""

    def __init__(self, behind: FakeBackend) -> None:
        self.behind = behind

    def open_turn(self, request: ChatRequest, tell: Tell) -> OpenTurn:
        if self.behind.said and isinstance(refusal := self.behind.said[0], KeepwarmError):
            raise refusal
        return PulledTurn(self.behind, request, tell)

    async def setup(self) -> None:
        await self.behind.setup()

    def describe(self) -> ReplicaDescription:
        return self.behind.describe()

    async def close(self) -> None:
        await self.behind.close()
