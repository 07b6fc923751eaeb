"""One server with the embedded model for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.served import Served, serve


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The embedded model behind the whole stack: gateway, front, rank."""
    with serve(tmp_path_factory.mktemp("served"), "--device-cache-gb", "1") as server:
        yield server
