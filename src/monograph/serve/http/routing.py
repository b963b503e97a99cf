"""Helpers of handlers: bodies as objects, answers in JSON, and work that ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from monograph.serve.failures import Failure, RequestError, invalid
from monograph.serve.http.bodies import read_body
from monograph.serve.settings import Limits

BINARY, JSON = "application/octet-stream", "application/json"
T = TypeVar("T")


def as_json(found: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer in JSON."""
    return Response(orjson.dumps(found), status, headers, JSON)


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object."""
    body = await read_body(request, limits)
    try:
        found = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as e:
        raise invalid(f"the request is no JSON: {e}") from None
    if not isinstance(found, dict):
        raise invalid("the request must be a JSON object")
    return found


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work; cancel it if the client closes the connection before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            message = gone.result()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
        return await task
    finally:
        gone.cancel()
        task.cancel()


def only(request: Request, *methods: str) -> None:
    """Refuse other methods of HTTP."""
    if request.method not in methods:
        raise RequestError(Failure.METHOD, f"the method must be {' or '.join(methods)}")
