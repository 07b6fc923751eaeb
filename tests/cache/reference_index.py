"""The index of host memory a block at a time, in plain Python: what the real one must equal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class ReferenceSlot:
    name: bytes | None = None
    holders: int = 0


@dataclass(eq=False)
class ReferenceLease:
    held: list[ReferenceSlot]
    """All it refers to, in the order of the prefix."""
    unwritten: list[bytes]
    own: list[ReferenceSlot] = field(default_factory=list)
    """Fresh ones, one for each of `unwritten`."""


@dataclass
class ReferenceIndex:
    """Names are paths: a name's parent is the same without its last letter."""

    num_slots: int
    known: dict[bytes, ReferenceSlot] = field(default_factory=dict)
    lru: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    leases: list[ReferenceLease] = field(default_factory=list)

    def find(self, names: Sequence[bytes], start: int) -> tuple[ReferenceLease, int] | None:
        known = self._num_known(names)
        if known <= start:
            if known == start:  # what stands before was looked at, so it counts as used
                self._touch(names[:known])
            return None
        return self._lease(names[:known], []), known - start

    def reserve(self, names: Sequence[bytes], start: int) -> ReferenceLease | None:
        known = self._num_known(names)
        if known < start:
            return None
        missing = list(names[known:])
        lease = self._lease(names[:known], missing)
        if len(missing) > self.num_empty + len(self.lru):
            self.release(lease)
            return None
        while self.num_empty < len(missing):
            name, _ = self.lru.popitem(last=False)
            del self.known[name]
        lease.own = [ReferenceSlot(holders=1) for _ in missing]
        lease.held += lease.own
        return lease

    def written(self, lease: ReferenceLease) -> None:
        for name, slot in zip(lease.unwritten, lease.own, strict=True):
            if name in self.known:
                lease.held.append(self._hold(name))  # and its own one stays nameless
            else:
                slot.name, self.known[name] = name, slot
        lease.unwritten, lease.own = [], []
        lease.held.sort(key=lambda slot: len(slot.name or b""))

    def release(self, lease: ReferenceLease) -> None:
        self.leases.remove(lease)
        for slot in reversed(lease.held):
            slot.holders -= 1
            if not slot.holders and slot.name is not None:
                self.lru[slot.name] = None

    def drop(self, names: Sequence[bytes]) -> None:
        for name in [known for known in self.known if known.startswith(tuple(names))]:
            slot = self.known.pop(name)
            slot.name = None
            self.lru.pop(name, None)
            for lease in self.leases:
                if slot in lease.held:
                    lease.unwritten, lease.own = [], []

    @property
    def num_empty(self) -> int:
        held = {id(slot) for lease in self.leases for slot in lease.held}
        return self.num_slots - len(held) - len(self.lru)

    def _num_known(self, names: Sequence[bytes]) -> int:
        return next((at for at, name in enumerate(names) if name not in self.known), len(names))

    def _lease(self, known: Sequence[bytes], missing: list[bytes]) -> ReferenceLease:
        lease = ReferenceLease(held=[self._hold(name) for name in known], unwritten=missing)
        self.leases.append(lease)
        return lease

    def _touch(self, names: Sequence[bytes]) -> None:
        self.release(self._lease(names, []))

    def _hold(self, name: bytes) -> ReferenceSlot:
        slot = self.known[name]
        slot.holders += 1
        self.lru.pop(name, None)
        return slot
