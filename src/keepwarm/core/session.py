"""Whose conversation a turn belongs to, as its client names it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MAX_ID_CHARACTERS = 128
"""A longer id is known by its digest: it goes into logs and tables, and clients choose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """A session and the agent within it. Turns with equal keys extend each other, more often than not;
    the subagents of a session share its id, run beside its main loop and share little of its prefix.

    A client's word, and only a hint: two tenants may well use the same ids.
    """

    session: str = ""
    """"" where the client names none."""
    agent: str = ""
    """"" is the session's main loop."""

    @classmethod
    def of(cls, session: str, agent: str) -> SessionKey:
        """The key of two ids as they came in: printable, and of bounded length."""
        return cls(session=_bounded(session), agent=_bounded(agent))


NO_SESSION = SessionKey()


def _bounded(name: str) -> str:
    plain = name.strip()
    if len(plain) <= MAX_ID_CHARACTERS and plain.isprintable():
        return plain
    return f"sha256:{hashlib.sha256(plain.encode('utf-8', 'surrogatepass')).hexdigest()}"
