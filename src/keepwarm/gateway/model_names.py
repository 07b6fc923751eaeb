"""Under which names a workload's model is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT_ALIASES = ("default", "haiku", "sonnet", "opus", "claude-*", "anthropic/claude-*")
"""What clients ask for unless told otherwise: Claude Code's title calls and subagents name models of
its own, and a name that is not found ends its turn."""

MAX_NAME_CHARACTERS = 200
"""A name that was asked for comes back in every event of the answer."""

_LONG_CONTEXT = "[1m]"
"""Claude Code's mark for a long context window; it says nothing about which model."""
_FOUND_BY_CLAUDE_CODE = re.compile("claude|anthropic", re.IGNORECASE)
"""Its model discovery drops every other id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """One workload's names: the served one, and patterns of aliases where `*` is any text."""

    served: str
    aliases: Sequence[str] = DEFAULT_ALIASES
    _patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_patterns", tuple(_compiled(alias) for alias in self.aliases))

    def means_served(self, name: str) -> bool:
        """Whether a client that asks for `name` gets this workload."""
        plain = name.removesuffix(_LONG_CONTEXT)
        if plain == self.served:
            return True
        return len(name) <= MAX_NAME_CHARACTERS and any(p.fullmatch(plain) for p in self._patterns)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The served name and the patterns, for the error about any other name."""
        return tuple(dict.fromkeys((self.served, *self.aliases)))

    @property
    def listed(self) -> tuple[str, ...]:
        """Names to show: the served one, one that model discovery does not drop, plain aliases."""
        plain = (alias for alias in self.aliases if "*" not in alias)
        return tuple(dict.fromkeys((self.served, *self._discoverable(), *plain)))

    def _discoverable(self) -> tuple[str, ...]:
        if _FOUND_BY_CLAUDE_CODE.search(self.served):
            return ()
        name = f"claude-{self.served}"
        return (name,) if self.means_served(name) else ()


def _compiled(alias: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in alias.split("*")), re.DOTALL)
