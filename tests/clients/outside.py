"""The way out, closed: every host but loopback is asked for here, refused, and written down."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class ClosedDoor:
    """A proxy that lets nothing through."""

    url: str
    asked_for: list[str] = field(default_factory=list)
    """The first line of each request, as "CONNECT example.org:443 HTTP/1.1"."""

    def environment(self) -> dict[str, str]:
        """Variables that send a client here for all but loopback."""
        loopback = "127.0.0.1,localhost,::1"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.url)
        upper = {**proxies, "NO_PROXY": loopback}
        return {**upper, **{name.lower(): value for name, value in upper.items()}}


@contextlib.contextmanager
def closed_door() -> Iterator[ClosedDoor]:
    """Refuses at once, so that nobody waits for a network that is not there."""

    class Refuse(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            door.asked_for.append(self.rfile.readline(4096).decode("latin-1").strip())
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse) as server:
        door = ClosedDoor(url=f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()
