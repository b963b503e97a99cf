"""Listening sockets of a server."""

from __future__ import annotations

import socket
from pathlib import Path

from monograph.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free port."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as e:
        made.close()
        raise ConfigError(
            f"the server cannot listen: {e.strerror or e}", given=f"{host}:{port}"
        ) from None
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def listen_unix(path: Path) -> socket.socket:
    """Return a socket that listens on a path."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def address_of(listening: socket.socket) -> str:
    """Return the address of a socket as it stands in a URL."""
    host, port = listening.getsockname()[:2]
    return f"{url_host(host)}:{port}"


def url_host(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
