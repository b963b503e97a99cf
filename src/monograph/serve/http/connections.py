"""Connections of HTTP with limits on the header: its bytes and the time it takes to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from monograph.serve.settings import Limits


def limited_connections(limits: Limits) -> type[HttpToolsProtocol]:
    """Return the protocol of connections under these limits."""

    class Connection(HttpToolsProtocol):
        """One connection of HTTP/1.1."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._header_bytes = 0
            self._header_timer: asyncio.TimerHandle | None = None
            self._wait_for_header()

        def connection_lost(self, exc: Exception | None) -> None:
            self._header_arrived()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._header_bytes = 0
            self._wait_for_header()

        def on_headers_complete(self) -> None:
            self._header_arrived()
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._header_timer is not None:
                self._header_bytes += len(data)
                if self._header_bytes > limits.header_bytes:
                    self._refuse()

        def _wait_for_header(self) -> None:
            if self._header_timer is None:
                later = self.loop.call_later(limits.header_seconds, self._refuse)
                self._header_timer = later

        def _header_arrived(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _refuse(self) -> None:
            """Close a connection whose header is too large or too slow."""
            self._header_arrived()
            self.transport.close()

    return Connection
