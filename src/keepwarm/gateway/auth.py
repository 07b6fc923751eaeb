"""From a request's headers to the owner of its key.

Clients send `x-api-key` (ANTHROPIC_API_KEY), a bearer token (ANTHROPIC_AUTH_TOKEN) or both, and one
of the two is often a leftover of another service: the other one decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers

from keepwarm.core.errors import Unauthorized
from keepwarm.core.principal import Principal
from keepwarm.gateway.ports import KeyVerifier

API_KEY_HEADER = "x-api-key"
BEARER_HEADER = "authorization"

_SHOWN = {API_KEY_HEADER: "x-api-key", BEARER_HEADER: "Authorization"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who was let in."""

    principal: Principal
    ignored_header: str | None = None
    """The header whose content is no key of ours, when the other one's is."""


async def authenticate(headers: Headers, keys: KeyVerifier) -> Admission:
    """Raises `Unauthorized`, whose message says which headers were tried and what to change."""
    secrets = _secrets(headers)
    found = {name: await keys.verify(secret) if secret else None for name, secret in secrets.items()}
    owners = [principal for principal in found.values() if principal is not None]
    if not owners:
        raise Unauthorized(_why_nobody(secrets))
    if len({principal.tenant for principal in owners}) > 1:
        raise Unauthorized(
            "x-api-key and Authorization carry keys of different owners: send only one of them "
            "(Claude Code: unset ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN)"
        )
    ignored = next((name for name, principal in found.items() if principal is None), None)
    return Admission(principal=owners[0], ignored_header=ignored)


def _secrets(headers: Headers) -> dict[str, str]:
    """What each header that was sent carries; "" is an Authorization of another form than ours."""
    secrets = {}
    api_key = headers.get(API_KEY_HEADER, "").strip()
    if api_key:
        secrets[API_KEY_HEADER] = api_key
    authorization = headers.get(BEARER_HEADER, "").strip()
    if authorization:
        scheme, _, token = authorization.partition(" ")
        secrets[BEARER_HEADER] = token.strip() if scheme.lower() == "bearer" else ""
    return secrets


def _why_nobody(secrets: dict[str, str]) -> str:
    """Never quotes a header: what stands in the wrong place may be a secret all the same."""
    if not secrets:
        return "no key: send one as x-api-key, or as Authorization: Bearer KEY"
    malformed = "Authorization is not of the form 'Bearer KEY'"
    tried = [_SHOWN[name] for name, secret in secrets.items() if secret]
    match tried:
        case []:
            return malformed
        case [one]:
            reason = f"the key in {one} is not known here, or was revoked"
            return reason if len(secrets) == 1 else f"{reason}; {malformed}"
        case _:
            return (
                f"neither the key in {tried[0]} nor the one in {tried[1]} is known here; revoked ones are not"
            )
