"""The socket that is bound before anything is loaded."""

from __future__ import annotations

from contextlib import closing

import pytest

from keepwarm.cli.listening import listen, url_of
from keepwarm.core.errors import BadSetting, PortInUse


def test_port_0_takes_a_free_one_and_the_url_names_it() -> None:
    with closing(listen("127.0.0.1", 0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_taken_port_is_named_with_its_option() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"--port {port} on 127.0.0.1 is in use"):
            listen("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_named_with_its_option() -> None:
    with pytest.raises(BadSetting, match=r"--host 192\.0\.2\.1 --port 0: Cannot assign requested address"):
        listen("192.0.2.1", 0)


def test_every_interface_is_reached_through_loopback() -> None:
    with closing(listen("0.0.0.0", 0)) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")
