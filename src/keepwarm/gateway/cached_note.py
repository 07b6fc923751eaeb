"""How clients are told which tiers their prompt's cached tokens were found in: what no dialect has a
field for.

An answer that is whole says it in a header. A stream's headers mostly go out before the turn is
admitted; so a comment says the same just before the terminal event, and the header only where it
can.
"""

from __future__ import annotations

from keepwarm.core.cached_tokens import CachedTokens
from keepwarm.dialects.sse import comment

CACHED_HEADER = "x-keepwarm-cached-tokens"


def cached_headers(cached: CachedTokens | None) -> dict[str, str]:
    """None: it is not known, and nothing is said."""
    return {} if cached is None else {CACHED_HEADER: str(cached)}


def cached_comment(cached: CachedTokens | None) -> bytes:
    """The same, within a stream."""
    return b"" if cached is None else comment(f"{CACHED_HEADER}: {cached}")
