"""Every test of this folder is marked `clients`; a failing one shows what clients and server said."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.core.errors import BadModel
from tests.clients.desk import Desk
from tests.clients.installed import NotInstalled, check_installed, must_be_installed
from tests.clients.outside import ClosedDoor, closed_door
from tests.clients.scripted_server import ScriptedServer, scripted_server

_DESK = pytest.StashKey[Desk]()
_DESK_FIXTURE = "desk"
_SERVER = pytest.StashKey[ScriptedServer]()


@pytest.fixture(scope="module")
def module_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedServer]:
    """One server a module, with the module's `SCRIPT` and, where it has any, `OPTIONS`."""
    try:
        find_embedded_model()
    except BadModel as error:
        _give_up(str(error))
    options = getattr(request.module, "OPTIONS", ())
    with scripted_server(tmp_path_factory.mktemp("server"), request.module.SCRIPT, *options) as server:
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
    door.asked_for.clear()
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    desk = Desk(home=home, project=project, door=door)
    request.node.stash[_DESK] = desk
    return desk


def _give_up(reason: str) -> NoReturn:
    if must_be_installed():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Clients that are missing skip their tests before a server is started, or fail them in CI."""
    if _DESK_FIXTURE in getattr(item, "fixturenames", ()):
        try:
            check_installed()
        except NotInstalled as error:
            _give_up(str(error))


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
