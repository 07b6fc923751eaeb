"""Which replica serves: here, the only one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepwarm.core.errors import NotReady
from keepwarm.core.session import SessionKey
from keepwarm.gateway.ports import Replica


def _no_trouble() -> NotReady | None:
    return None


class StaticDirectory:
    """A directory of one replica. Its process may come and go behind the same name."""

    def __init__(self, replica: Replica, *, trouble: Callable[[], NotReady | None] = _no_trouble) -> None:
        """`trouble`: why it takes no turns, says whoever watches its process."""
        self._replica = replica
        self._trouble = trouble

    def choose(self, session: SessionKey) -> Replica:
        trouble = self._trouble()
        if trouble is not None:
            raise type(trouble)(str(trouble))  # one error is raised once: it gathers a traceback
        return self._replica

    def replicas(self) -> Sequence[Replica]:
        return (self._replica,)

    def trouble(self) -> NotReady | None:
        return self._trouble()
