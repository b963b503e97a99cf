"""Bodies of requests and answers: limits of size and time, and compression."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from monograph.serve.failures import Failure, RequestError, invalid
from monograph.serve.settings import Limits

CODINGS = {"gzip": 31, "deflate": 15}
"""Content codings, with zlib's number of window bits."""
LARGE = 64 << 10
"""Bodies from here on are compressed in another thread."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request, decompressed."""
    coding = request.headers.get("content-encoding", "").lower()
    if coding not in ("", "identity", *CODINGS):
        raise invalid(f"content-encoding must be gzip or deflate, got {coding[:40]!r}")
    body = await received(request, limits)
    if coding in CODINGS and body:
        return await asyncio.to_thread(_decompressed, body, coding, limits.body_bytes)
    return body


async def received(request: Request, limits: Limits) -> bytes:
    """Return the body of a request as it was sent."""
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(limits.body_seconds):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                more = message.get("more_body", False)
                if size > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
    except TimeoutError:
        raise RequestError(Failure.SLOW, "the body of the request came too slowly") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(Failure.TOO_LARGE, f"the body must have at most {limit} bytes")


def _decompressed(body: bytes, coding: str, limit: int) -> bytes:
    """Return a body without its compression; nothing is unpacked beyond the limit."""
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        found = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise invalid(f"the body is not {coding}") from None
    if len(found) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise invalid(f"the body ends before its {coding} data do")
    return found


async def answered(
    request: Request,
    parts: list[bytes | memoryview],
    media_type: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an answer; compressed if the client asks for one coding.

    Clients that list several by default (browsers, most libraries) get plain bytes: compressing
    tensors takes longer than sending them.
    """
    body: Any = parts[0] if len(parts) == 1 else b"".join(parts)
    coding = request.headers.get("accept-encoding", "").strip().lower()
    extra = dict(headers or {})
    if coding in CODINGS:
        if len(body) >= LARGE:
            body = await asyncio.to_thread(_compressed, body, coding)
        else:
            body = _compressed(body, coding)
        extra["content-encoding"] = coding
    return Response(bytes(body), 200, extra, media_type)


def _compressed(body: bytes | memoryview, coding: str) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, CODINGS[coding])
    return packer.compress(body) + packer.flush()
