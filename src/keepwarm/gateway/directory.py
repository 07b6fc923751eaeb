"""Which replica serves: here, the only one."""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.core.session import SessionKey
from keepwarm.gateway.ports import Replica


class StaticDirectory:
    """A directory of one replica that is there from the start."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def choose(self, session: SessionKey) -> Replica:
        return self._replica

    def replicas(self) -> Sequence[Replica]:
        return (self._replica,)
