"""From a request's headers to the owner of its key."""

from __future__ import annotations

from starlette.datastructures import Headers

from keepwarm.core.errors import Unauthorized
from keepwarm.core.principal import Principal
from keepwarm.gateway.ports import KeyVerifier


async def authenticate(headers: Headers, keys: KeyVerifier) -> Principal:
    """Raises `Unauthorized`.

    Clients send `x-api-key`, a bearer token or both, and one of the two is often a leftover that is
    not ours: the other one decides.
    """
    secrets = _secrets(headers)
    if not secrets:
        raise Unauthorized("no key: send one as x-api-key, or as Authorization: Bearer")
    found = [principal for secret in secrets if (principal := await keys.verify(secret)) is not None]
    if not found:
        raise Unauthorized("the key is not known here, or was revoked")
    if len({principal.tenant for principal in found}) > 1:
        raise Unauthorized("x-api-key and Authorization carry keys of different owners: send only one")
    return found[0]


def _secrets(headers: Headers) -> list[str]:
    secrets = [headers.get("x-api-key", "").strip()]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        secrets.append(token.strip())
    return [secret for secret in dict.fromkeys(secrets) if secret]
