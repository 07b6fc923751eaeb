"""Settings of all property tests: no time limit an example, and a way to repeat a failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "keepwarm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("keepwarm")
