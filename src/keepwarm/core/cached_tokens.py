"""Cached tokens of a prompt, apart by the tier that they were found in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTokens:
    """Each token is counted once: `l0 + l1 + disk` were not read again."""

    l0: int
    """Found in device memory."""
    l1: int
    """Copied up from host memory, where they were."""
    disk: int
    """Copied up from host memory, where they had been brought from disk."""

    @classmethod
    def of(cls, *, cached: int, host: int, disk: int) -> CachedTokens:
        """From counts that hold each other, as messages carry them: `disk` of `host` of `cached`."""
        return cls(l0=cached - host, l1=host - disk, disk=disk)

    @property
    def total(self) -> int:
        return self.l0 + self.l1 + self.disk

    def __str__(self) -> str:
        return f"l0={self.l0}, l1={self.l1}, disk={self.disk}"
