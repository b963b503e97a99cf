"""Connections of HTTP with limits on the header, and a short way for requests that come again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from monograph.ir import Array
from monograph.serve.failures import Failure, RequestError, as_request_error
from monograph.serve.http.errors import failed_response
from monograph.serve.http.repeated import KnownRequest, NotPlainError, RepeatedCalls
from monograph.serve.settings import Limits

_log = logging.getLogger("monograph.serve")
_FIRST_LINE = b"HTTP/1.1 200 OK\r\n"


def limited_connections(
    limits: Limits, repeats: RepeatedCalls | None = None
) -> type[HttpToolsProtocol]:
    """Return the protocol of connections under these limits."""

    class Connection(LimitedConnection):
        """One connection of HTTP/1.1."""

    Connection.limits, Connection.repeats = limits, repeats
    return Connection


class LimitedConnection(HttpToolsProtocol):
    """A connection that closes when a header is too large or too slow."""

    limits: Limits
    repeats: RepeatedCalls | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._between = True
        """True if the parser is between two requests."""
        self._begun = 0
        """The requests that began with the last data."""
        self._known: KnownRequest | None = None
        self._reply: _Reply | None = None
        """The answer to a repeated request that waits or runs."""
        self._held: list[bytes] = []
        """Data that came meanwhile."""
        self._parts: list[bytes] = []
        """A repeated request that has not come as a whole."""
        self._body_timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_arrived()
        self._body_arrived()
        if self._reply is not None:
            self._reply.abandon()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._between = False
        self._begun += 1
        self._wait_for_header()

    def on_headers_complete(self) -> None:
        self._header_arrived()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._between = True

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None:
            if self._reply is not None:
                self._hold(data)
                return
            if self._parts or (known.plain and data.startswith(known.head) and self._free()):
                self._repeated(known, data)
                return
        self._parse(data)

    def shutdown(self) -> None:
        """Close the connection after the answer to a whole request; wait for no rest of one."""
        if self._reply is not None:
            self._reply.closes = True
            return
        begun = self.cycle is not None and self.cycle.response_started
        if self._parts or not (self._between or begun):
            self.write_error(RequestError(Failure.UNAVAILABLE, "the server is shutting down"))
            self.transport.close()
            return
        super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        idle = self.loop.time() - self._last
        if self._reply is None and not self._parts and idle >= self.timeout_keep_alive - 0.1:
            super().timeout_keep_alive_handler()
            return
        later = max(self.timeout_keep_alive - idle, 1.0)
        self.timeout_keep_alive_task = self.loop.call_later(later, self.timeout_keep_alive_handler)

    # All requests

    def _parse(self, data: bytes) -> None:
        """Read data by the parser; remember a request that may come again."""
        first = self._between
        self._begun = 0
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes:
                self._refuse()
        elif first and self._begun == 1 and self.repeats is not None:
            known = self._known
            if known is None or not data.startswith(known.head):
                self._known = self.repeats.known(data, self.scope, self.headers)

    def _wait_for_header(self) -> None:
        if self._header_timer is None:
            later = self.loop.call_later(self.limits.header_seconds, self._refuse)
            self._header_timer = later

    def _header_arrived(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self) -> None:
        """Close a connection whose header is too large or too slow."""
        self._header_arrived()
        self.transport.close()

    # Repeated requests

    def _free(self) -> bool:
        """Return True if the connection has no other request, and its client reads answers."""
        most = self.limit_concurrency
        return (
            self._between
            and (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and (most is None or len(self.connections) < most)
        )

    def _repeated(self, known: KnownRequest, data: bytes) -> None:
        """Queue a request whose header is known; wait for the rest of its body."""
        if self._parts:
            self._parts.append(data)
            if sum(map(len, self._parts)) < known.size:
                return
            data = b"".join(self._parts)
            self._body_arrived()
        elif len(data) < known.size:
            self._parts.append(data)
            later = self.loop.call_later(self.limits.body_seconds, self._too_slow)
            self._body_timer = later
            return
        if len(data) > known.size:
            self._held.append(data[known.size :])
            data = data[: known.size]
        assert self.repeats is not None
        reply = self._reply = _Reply(self, known, data)
        try:
            reply.timer = self.repeats.queue(known, data, reply)
        except Exception as error:
            if isinstance(error, RequestError) and error.kind is Failure.FULL:
                reply.set_exception(error)
                return
            known.plain = not isinstance(error, NotPlainError)
            self.again(data)

    def _hold(self, data: bytes) -> None:
        """Keep what comes while a request waits or runs."""
        self._held.append(data)
        self.flow.pause_reading()

    def _go_on(self) -> None:
        """Read what has come since the last request."""
        if self._held:
            data, self._held = b"".join(self._held), []
            self.flow.resume_reading()
            self.data_received(data)

    def _body_arrived(self) -> None:
        self._parts = []
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _too_slow(self) -> None:
        """Refuse a request whose body comes too slowly."""
        self._body_arrived()
        error = RequestError(Failure.SLOW, "the body of the request came too slowly")
        self.write_error(error)
        self.transport.close()

    def go_on_after(self, reply: _Reply) -> None:
        """Go on after the answer to a repeated request."""
        self._reply = None
        self._last = self.loop.time()
        if reply.closes:
            self.transport.close()
        elif self._held:
            self._go_on()

    def again(self, data: bytes) -> None:
        """Give a repeated request to the parser, as one of all requests."""
        self._reply = None
        self._parse(data)
        self._go_on()

    def write_answer(self, parts: list[bytes | memoryview]) -> None:
        """Write an answer after its first line and general headers."""
        general = [b"%s: %s\r\n" % pair for pair in self.server_state.default_headers]
        self.transport.write(b"".join([_FIRST_LINE, *general, *parts]))

    def write_error(self, error: Exception) -> None:
        """Write the answer to a request that failed."""
        response = failed_response(error)
        general = [*self.server_state.default_headers, *response.raw_headers]
        head = b"".join([b"%s: %s\r\n" % pair for pair in general])
        self.transport.write(
            b"HTTP/1.1 %d \r\n%s\r\n%s" % (response.status_code, head, bytes(response.body))
        )


class _Reply:
    """The answer to a repeated request, as the runner of a model sets it."""

    __slots__ = ("_connection", "_data", "_known", "closes", "timer")

    def __init__(self, connection: LimitedConnection, known: KnownRequest, data: bytes) -> None:
        self._connection: LimitedConnection | None = connection
        self._known = known
        self._data = data
        self.timer: asyncio.TimerHandle | None = None
        self.closes = False
        """True if the connection shall be closed after the answer."""

    def done(self) -> bool:
        """Return True if the answer is set, or if the client is gone."""
        return self._connection is None

    def abandon(self) -> None:
        """Forget the client, which is gone."""
        self._ended()

    def set_result(self, outputs: list[Array], /) -> None:
        """Write the answer."""
        connection = self._ended()
        prepared = self._known.prepared
        if connection is None or prepared is None:
            return
        try:
            connection.write_answer(prepared.answer(outputs))
        except Exception as error:
            _log.exception("an answer was not written")
            connection.write_error(error)
        connection.go_on_after(self)

    def set_exception(self, exception: Exception, /) -> None:
        """Write the error."""
        connection = self._ended()
        if connection is None:
            return
        if as_request_error(exception).kind is Failure.UNAVAILABLE:
            connection.again(self._data)
            return
        connection.write_error(exception)
        connection.go_on_after(self)

    def _ended(self) -> LimitedConnection | None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        connection, self._connection = self._connection, None
        return connection
