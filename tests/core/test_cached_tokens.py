from __future__ import annotations

from keepwarm.core.cached_tokens import CachedTokens


def test_each_token_is_counted_in_one_tier() -> None:
    cached = CachedTokens.of(cached=100, host=70, disk=10)
    assert cached == CachedTokens(l0=30, l1=60, disk=10)
    assert cached.total == 100
    assert str(cached) == "l0=30, l1=60, disk=10"
