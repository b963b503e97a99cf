"""HTTP/1.1 to the unix socket of an instance: kept connections, answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httptools

Headers = list[tuple[bytes, bytes]]
MOST_KEPT = 64
"""The most idle connections to an instance."""


class LostConnectionError(Exception):
    """The connection ended before the answer did."""

    def __init__(self, stale: bool = False) -> None:
        super().__init__("the connection to the instance was lost")
        self.stale = stale
        """True for a kept connection that gave no byte of an answer: its other end was closed."""


class UpstreamAnswer:
    """The head of an answer, and its body in parts."""

    def __init__(self, connection: _Connection, status: int, headers: Headers) -> None:
        self._connection = connection
        self.status, self.headers = status, headers

    @property
    def complete(self) -> bool:
        """True if the whole body has come."""
        return self._connection.complete

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body; the connection is closed unless all of it is read."""
        connection = self._connection
        try:
            while (part := await connection.body.get()) is not None:
                if isinstance(part, LostConnectionError):
                    raise part
                yield part
        finally:
            connection.release()

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([part async for part in self.parts()])


class Upstream:
    """The connections to one instance."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._kept: list[_Connection] = []

    async def ask(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamAnswer:
        """Send a request and return the head of its answer."""
        while self._kept:
            connection = self._kept.pop()
            if not connection.closed:
                try:
                    return await connection.ask(method, target, headers, body)
                except LostConnectionError as error:
                    if not error.stale:
                        raise
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(lambda: _Connection(self), self._path)
        except OSError:
            raise LostConnectionError from None
        return await connection.ask(method, target, headers, body)

    def keep(self, connection: _Connection) -> bool:
        """Keep a connection for another request; return False if there are enough."""
        if len(self._kept) >= MOST_KEPT:
            return False
        self._kept.append(connection)
        return True

    def close(self) -> None:
        """Close the connections that are kept."""
        kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self, owner: Upstream) -> None:
        self._owner = owner
        self._transport: Any = None
        self.closed = False
        self.complete = True
        self._used = 0
        self._received = False
        self._headers: Headers = []
        self._head: asyncio.Future[UpstreamAnswer] | None = None
        self.body: asyncio.Queue[bytes | LostConnectionError | None] = asyncio.Queue()

    async def ask(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamAnswer:
        """Send a request and return the head of its answer."""
        self._parser = httptools.HttpResponseParser(self)
        self._head = asyncio.get_running_loop().create_future()
        self._headers, self.body = [], asyncio.Queue()
        self.complete, self._received = False, False
        self._used += 1
        head = b"".join([b"%s: %s\r\n" % pair for pair in headers])
        length = b"content-length: %d\r\n" % len(body)
        self._transport.writelines([
            b"%s %s HTTP/1.1\r\n%s%s\r\n" % (method, target, head, length), body,
        ])  # fmt: skip
        try:
            return await self._head
        except BaseException:
            self.close()
            raise

    def release(self) -> None:
        """Keep the connection if its answer is complete, else close it."""
        keeps = self.complete and not self.closed and self._parser.should_keep_alive()
        if not keeps or not self._owner.keep(self):
            self.close()

    def close(self) -> None:
        """Close the connection; the instance ends the work for its request."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    # Called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lost()

    def _lost(self) -> None:
        if self.complete:
            return
        self.complete = True
        error = LostConnectionError(stale=self._used > 1 and not self._received)
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        else:
            self.body.put_nowait(error)

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._head is not None and not self._head.done():
            status = self._parser.get_status_code()
            self._head.set_result(UpstreamAnswer(self, status, self._headers))

    def on_body(self, body: bytes) -> None:
        self.body.put_nowait(body)

    def on_message_complete(self) -> None:
        self.complete = True
        self.body.put_nowait(None)
