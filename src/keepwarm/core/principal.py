"""Who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from keepwarm.core.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The owner of a verified key. `key_id` may be logged; the secret never is."""

    tenant: TenantId
    key_id: str
