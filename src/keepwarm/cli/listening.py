"""The public socket: bound before anything is loaded, so that a taken port costs no loading time."""

from __future__ import annotations

import errno
import socket

from keepwarm.core.errors import BadSetting, PortInUse

_BACKLOG = 2048
"""Connections the kernel holds while we are busy."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises `PortInUse`, or `BadSetting` for an address that is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise BadSetting(f"--host {host}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"--port {port} on {host} is in use: stop what listens there or choose another (0: any)"
            ) from error
        raise BadSetting(f"--host {host} --port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # every interface: loopback is one that always works from here
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
