"""Settings of all property tests: no time limit an example, and a way to repeat a failure. A model
that more than one folder of tests reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import gemma_270m

settings.register_profile(
    "keepwarm", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("keepwarm")


@pytest.fixture(scope="session")
def gemma_270m_path() -> Iterator[str]:
    """The GGUF file, there for this run only: pytest would keep its 250 MB for three runs."""
    with tempfile.TemporaryDirectory(prefix="keepwarm-gemma-") as folder:
        try:
            path = gemma_270m.assemble(Path(folder))
        except gemma_270m.NotInstalled as error:
            if gemma_270m.must_be_installed():
                pytest.fail(str(error))
            pytest.skip(str(error))
        yield str(path)
