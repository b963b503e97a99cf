"""The application that answers HTTP requests: it finds the operation and reports errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from monograph.serve.failures import (
    Failure,
    RequestError,
    unimplemented,
)
from monograph.serve.http.bodies import answered, read_body
from monograph.serve.http.errors import failed_response
from monograph.serve.http.infer import HEADER_LENGTH, read_call, write_answer
from monograph.serve.http.openai import OpenAI
from monograph.serve.http.repeated import RepeatedCalls
from monograph.serve.http.routing import (
    BINARY,
    JSON,
    as_json,
    only,
    read_object,
    while_connected,
)  # fmt: skip
from monograph.serve.http.status import PAGE, POLICY, status_data
from monograph.serve.keys import ApiKeys
from monograph.serve.metrics import Metrics
from monograph.serve.protocol import Protocol2
from monograph.serve.served import ServedTensors
from monograph.serve.tracing import CURRENT, Traces, route_of

CLOSED = 499
"""The status of a request whose client is gone."""
_UNIMPLEMENTED = {
    "systemsharedmemory": "shared memory",
    "cudasharedmemory": "shared memory",
    "trace": "trace",
    "logging": "logging",
}
_log = logging.getLogger("monograph.serve")
Handler = Callable[[Request, list[str]], Awaitable[Response]]


class HttpApp:
    """The application of ASGI. Each first part of a path belongs to one handler."""

    def __init__(self, protocol: Protocol2, keys: ApiKeys, traces: Traces | None = None) -> None:
        settings = protocol.repository.settings
        self._protocol = protocol
        self._limits = settings.limits
        self._keys = keys
        self._metrics = Metrics(protocol.repository)
        self._log_requests = settings.log_requests
        self._started = time.monotonic()
        self._traces = traces
        watched = settings.log_requests or traces is not None
        self.repeats = None if watched else RepeatedCalls(protocol, keys)
        """The short way for requests that come again; none where each has a record or a span."""
        self.handlers: dict[str, Handler] = {
            "v2": self._v2,
            "v1": OpenAI(protocol.repository).handle,
            "metrics": self._metrics_text,
            "": self._page,
        }
        self.open_paths = {"/", "/v2/health/live", "/v2/health/ready"}
        """Paths that need no API key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        parts = scope["path"].strip("/").split("/")
        if self._traces is None:
            await self._respond(request, parts, send)
            return
        route = route_of(parts)
        with self._traces.request(
            f"{request.method} {route}", request.headers, http__request__method=request.method,
            http__route=route, url__path=scope["path"],
        ) as span:  # fmt: skip
            status = await self._respond(request, parts, send)
            span.set(http__response__status_code=status)
            if status >= Failure.INTERNAL.status:
                span.failed(str(status))

    async def _respond(self, request: Request, parts: list[str], send: Send) -> int:
        """Answer a request; return the status."""
        scope = request.scope
        try:
            handler = self.handlers.get(parts[0])
            if handler is None:
                raise RequestError(Failure.UNKNOWN, f"there is nothing at {scope['path'][:200]!r}")
            if scope["path"] not in self.open_paths:
                self._keys.check(request.headers)
            response = await handler(request, parts)
        except ClientDisconnect:
            return CLOSED
        except Exception as error:
            response = failed_response(error, parts[0])
        if self._log_requests:
            span = CURRENT.get()
            fields = {
                "path": scope["path"], "status": response.status_code,
                **({} if span is None else {"trace_id": span.trace_id}),
            }  # fmt: skip
            _log.info("%s %s", scope["method"], response.status_code, extra={"fields": fields})
        await response(scope, request.receive, send)
        return response.status_code

    async def _metrics_text(self, request: Request, parts: list[str]) -> Response:
        only(request, "GET")
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _page(self, request: Request, parts: list[str]) -> Response:
        only(request, "GET", "HEAD")
        headers = {"content-security-policy": POLICY, "cache-control": "no-store"}
        return Response(PAGE, 200, headers, "text/html")

    async def _v2(self, request: Request, parts: list[str]) -> Response:
        """Answer a request of the Open Inference Protocol."""
        match parts[1:]:
            case ["models", name, "infer"]:
                return await self._infer(request, name, "")
            case ["models", name, "versions", version, "infer"]:
                return await self._infer(request, name, version)
            case ["models", _, "generate" | "generate_stream"]:
                raise unimplemented("generate: use /v1/completions")
            case ["repository", *rest]:
                return await self._repository(request, rest)
            case [first, *rest] if first in _UNIMPLEMENTED or "trace" in rest:
                raise unimplemented(_UNIMPLEMENTED.get(first, "trace"))
        only(request, "GET", "HEAD")
        return self._look_up(parts[1:])

    def _look_up(self, parts: list[str]) -> Response:
        """Answer a request that only reads."""
        protocol = self._protocol
        match parts:
            case []:
                return as_json(protocol.server_metadata())
            case ["health", "live"]:
                return _state(protocol.live(), {"live": protocol.live()})
            case ["health", "ready"]:
                return _state(protocol.ready(), {"ready": protocol.ready()})
            case ["status"]:
                return as_json(status_data(protocol.repository, self._started))
            case ["models", "stats"]:
                return as_json(protocol.statistics())
            case ["models", name, *rest]:
                version = ""
                if len(rest) >= 2 and rest[0] == "versions":
                    version, rest = rest[1], rest[2:]
                return self._of_model(name, version, rest)
        raise RequestError(Failure.UNKNOWN, f"there is nothing at /v2/{'/'.join(parts)[:200]}")

    def _of_model(self, name: str, version: str, rest: list[str]) -> Response:
        protocol = self._protocol
        match rest:
            case []:
                return as_json(protocol.model_metadata(name, version))
            case ["ready"]:
                ready = protocol.model_ready(name, version)
                return _state(ready, {"name": name, "ready": ready})
            case ["config"]:
                return as_json(protocol.model_config(name, version))
            case ["stats"]:
                return as_json(protocol.statistics(name, version))
        raise RequestError(Failure.UNKNOWN, f"a model has no {'/'.join(rest)[:200]!r}")

    async def _infer(self, request: Request, name: str, version: str) -> Response:
        only(request, "POST")
        body = await read_body(request, self._limits)
        model = self._protocol.repository.get(name, version)
        call, binary = read_call(body, request.headers.get(HEADER_LENGTH))
        work = self._protocol.infer(name, version, call)
        short = isinstance(model, ServedTensors) and model.short
        answer = await (work if short else while_connected(request, work))
        parts, length = write_answer(answer, binary)
        if length is None:
            return await answered(request, parts, JSON)
        return await answered(request, parts, BINARY, {HEADER_LENGTH: str(length)})

    async def _repository(self, request: Request, rest: list[str]) -> Response:
        only(request, "POST")
        given = await read_object(request, self._limits)
        match rest:
            case ["index"] | [_, "index"]:
                return as_json(self._protocol.index(given.get("ready") is True))
            case ["models", name, "load"] | [_, "models", name, "load"]:
                await self._protocol.load(name, given.get("parameters") or {})
            case ["models", name, "unload"] | [_, "models", name, "unload"]:
                await self._protocol.unload(name)
            case _:
                raise RequestError(Failure.UNKNOWN, "the repository has no such operation")
        return as_json({})


def _state(good: bool, found: dict[str, Any]) -> Response:
    return as_json(found, 200 if good else 503)
