"""Every test of this folder is marked `clients`; a failing one shows what clients and server said."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.errors import BadModel
from tests.clients.desk import Desk
from tests.clients.installed import NotInstalled, must_be_installed, search_path
from tests.clients.outside import ClosedDoor, closed_door
from tests.clients.scripted_server import ScriptedServer, scripted_server

_DESK = pytest.StashKey[Desk]()
_SERVER = pytest.StashKey[ScriptedServer]()


@pytest.fixture(scope="module")
def module_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedServer]:
    """One server a module, with the module's `SCRIPT`."""
    try:
        find_embedded_model()
    except BadModel as error:
        _give_up(str(error))
    with scripted_server(tmp_path_factory.mktemp("server"), request.module.SCRIPT) as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest, module_server: ScriptedServer) -> ScriptedServer:
    """The module's server, as one test sees it."""
    server = module_server.from_here()
    request.node.stash[_SERVER] = server
    return server


@pytest.fixture(scope="session")
def door() -> Iterator[ClosedDoor]:
    """The way out of this machine, closed."""
    with closed_door() as door:
        yield door


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path, door: ClosedDoor) -> Desk:
    """A new home and a new project."""
    try:
        search_path()
    except NotInstalled as error:
        _give_up(str(error))
    door.asked_for.clear()
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    desk = Desk(home=home, project=project, door=door)
    request.node.stash[_DESK] = desk
    return desk


def _give_up(reason: str) -> None:
    if must_be_installed():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A client that is missing skips its test, or fails it in CI."""
    try:
        return (yield)
    except NotInstalled as error:
        return _give_up(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        desk, server = item.stash.get(_DESK, None), item.stash.get(_SERVER, None)
        if desk is not None:
            report.sections += [("a client", str(done)) for done in desk.ran]
            report.sections.append(("hosts asked for", "\n".join(desk.door.asked_for) or "none"))
        if server is not None:
            report.sections.append(("our log", server.log()))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.clients)
