"""Host memory as a scheduler uses it: there, or off for good, with the reason.

Nothing here raises `HostTierLost`: once it is lost every question is answered as by an empty tier.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepwarm.core.host_tier import HostLease, HostTier, HostTierLost
from keepwarm.core.ids import BlockHash


class HostLink:
    """See `HostTier` for what is asked."""

    def __init__(self, host: HostTier | HostTierLost | None) -> None:
        self._host = None if isinstance(host, HostTierLost) else host
        self._off_reason = str(host) if isinstance(host, HostTierLost) else None

    @property
    def is_on(self) -> bool:
        return self._host is not None and self._off_reason is None

    @property
    def state(self) -> str:
        """ "on", why it is off, or "" where there is none."""
        if self._off_reason is not None:
            return self._off_reason
        return "" if self._host is None else "on"

    def find(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        if self._host is None or self._off_reason is not None:
            return None
        try:
            return self._host.find(after, names)
        except HostTierLost as lost:
            self._lose(lost)
            return None

    def prefetch(self, after: BlockHash | None, names: Sequence[BlockHash]) -> bool:
        if self._host is None or self._off_reason is not None:
            return False
        try:
            return self._host.prefetch(after, names)
        except HostTierLost as lost:
            self._lose(lost)
            return False

    def reserve(self, after: BlockHash | None, names: Sequence[BlockHash]) -> HostLease | None:
        if self._host is None or self._off_reason is not None:
            return None
        try:
            return self._host.reserve(after, names)
        except HostTierLost as lost:
            self._lose(lost)
            return None

    def written(self, lease: HostLease) -> bool:
        """False: it was lost meanwhile, and nobody will read what was written."""
        if self._host is None or self._off_reason is not None:
            return False
        try:
            self._host.written(lease)
        except HostTierLost as lost:
            self._lose(lost)
        return self.is_on

    def release(self, lease: HostLease) -> bool:
        """False: it was lost meanwhile, and what was read of the slots may be anything.

        Asked of a lost tier too, since it may only be switched off and still count its leases.
        """
        if self._host is None:
            return False
        try:
            self._host.release(lease)
        except HostTierLost as lost:
            self._lose(lost)
        return self.is_on

    def distrust(self, names: Sequence[BlockHash], reason: str) -> None:
        """What is called by `names` is wrong, so nothing else can be trusted: off, for everybody."""
        if self._host is None or self._off_reason is not None:
            return
        try:
            self._host.drop(names)
            self._host.switch_off(reason)
        except HostTierLost as lost:
            self._lose(lost)
        self._off_reason = reason

    def _lose(self, lost: HostTierLost) -> None:
        if self._off_reason is None:
            self._off_reason = str(lost) or "host memory was lost"
