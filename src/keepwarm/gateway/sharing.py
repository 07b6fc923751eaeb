"""Who shares what was read with whom."""

from __future__ import annotations

from keepwarm.core.ids import TenantId
from keepwarm.core.principal import Principal

_SEPARATOR = "/"
"""No tenant's name has one (`control.keys`), so no circle is another tenant's."""


def sharing_circle(principal: Principal, *, share_prefixes: bool) -> TenantId:
    """Whose prefixes, conversations and answers a turn of this principal may find, and may leave its own to.

    All of its tenant's, or, where the tenant's users do not share, those of its own key. Everything
    that is remembered of what was read goes by this name, here and in the backend, down to the roots
    of the blocks' names.
    """
    if share_prefixes:
        return principal.tenant
    return TenantId(f"{principal.tenant}{_SEPARATOR}{principal.key_id}")
