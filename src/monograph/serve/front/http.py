"""HTTP of a front: a request goes to one instance, and to another one if that is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from monograph.serve.failures import Failure, RequestError
from monograph.serve.front.processes import Instance, Instances
from monograph.serve.front.upstream import Headers, LostConnectionError, UpstreamAnswer
from monograph.serve.http.bodies import received
from monograph.serve.http.errors import failed_response
from monograph.serve.http.routing import while_connected
from monograph.serve.settings import Limits

OWN = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"upgrade",
       b"expect", b"x-forwarded-for", b"x-forwarded-proto"}  # fmt: skip
"""Headers of one connection, which are not passed on."""
NOT_BACK = {b"connection", b"keep-alive", b"transfer-encoding", b"date"}
UNAVAILABLE = Failure.UNAVAILABLE.status
SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ", re.M)


class FrontApp:
    """The application of ASGI that passes requests on."""

    def __init__(self, instances: Instances, limits: Limits) -> None:
        self._instances, self._limits = instances, limits
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            if self.draining:
                raise RequestError(Failure.UNAVAILABLE, "the server is shutting down")
            body = await received(request, self._limits) if request.method == "POST" else b""
            response = await while_connected(request, self._answer(request, body))
        except ClientDisconnect:
            return
        except Exception as error:
            response = failed_response(error, scope["path"].strip("/").split("/")[0])
        await response(scope, receive, send)

    async def _answer(self, request: Request, body: bytes) -> Response:
        parts = request.url.path.strip("/").split("/")
        if parts == ["metrics"]:
            return await self._of_all(request, body, _joined_metrics, "text/plain")
        if parts == ["v2", "status"]:
            return await self._of_all(request, body, _joined_status, "application/json")
        if parts[:2] == ["v2", "repository"] and parts[-1] in ("load", "unload"):
            return await self._of_all(request, body, _first, "application/json")
        return await self._of_one(request, body)

    async def _of_one(self, request: Request, body: bytes) -> Response:
        """Return the answer of an instance; one that is lost or refuses is replaced once."""
        avoided: Instance | None = None
        for last in (False, True):
            await self._instances.wait_ready()
            with self._instances.chosen(avoided) as instance:
                try:
                    answer = await self._ask(instance, request, body)
                    others = [i for i in self._instances.ready if i is not instance]
                    if answer.status != UNAVAILABLE or last or not others:
                        return await self._passed_on(answer, instance)
                    await answer.read()
                except LostConnectionError:
                    instance.ready = False
                avoided = instance
        raise RequestError(Failure.UNAVAILABLE, "two instances of the request were lost")

    async def _passed_on(self, answer: UpstreamAnswer, instance: Instance) -> Response:
        """Return an answer: at once if all of it is here, else as it comes."""
        headers = [(n, v) for n, v in answer.headers if n not in NOT_BACK]
        response: Response
        if answer.complete or any(n == b"content-length" for n, _ in headers):
            response = Response(await answer.read(), answer.status)
        else:
            instance.open += 1

            async def parts() -> Any:
                try:
                    async for part in answer.parts():
                        yield part
                finally:
                    instance.open -= 1

            response = StreamingResponse(parts(), answer.status)
        response.raw_headers = headers
        return response

    async def _ask(self, instance: Instance, request: Request, body: bytes) -> UpstreamAnswer:
        scope = request.scope
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        headers: Headers = [(n, v) for n, v in scope["headers"] if n not in OWN]
        if scope["client"]:
            headers.append((b"x-forwarded-for", str(scope["client"][0]).encode()))
        method = b"GET" if request.method == "HEAD" else request.method.encode()
        return await instance.upstream.ask(method, target, headers, body)

    async def _of_all(self, request: Request, body: bytes, join: Any, kind: str) -> Response:
        """Return the answers of all instances as one; an error of one is the answer."""
        await self._instances.wait_ready()
        found: dict[int, bytes] = {}

        async def one(instance: Instance) -> Response | None:
            answer = await self._ask(instance, request, body)
            data = await answer.read()
            if answer.status != 200:
                return Response(data, answer.status, media_type="application/json")
            found[instance.number] = data
            return None

        asked = await asyncio.gather(
            *[one(i) for i in self._instances.ready], return_exceptions=True
        )
        for failed in asked:
            if isinstance(failed, Response):
                return failed
        if not found:
            raise RequestError(Failure.UNAVAILABLE, "no instance answered")
        return Response(join(dict(sorted(found.items()))), media_type=kind)


def _first(found: Mapping[int, bytes]) -> bytes:
    return next(iter(found.values()))


def _joined_metrics(found: Mapping[int, bytes]) -> bytes:
    """Return the samples of all instances, each with the number of its instance as a label."""
    families: dict[bytes, list[bytes]] = {}
    comments: dict[bytes, list[bytes]] = {}
    for number, text in found.items():
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                if number == min(found):
                    comments.setdefault(family, []).append(line)
            elif line:
                families.setdefault(family, []).append(_labelled(line, number))
    lines = []
    for family, samples in families.items():
        lines += [*comments.get(family, []), *samples]
    return b"\n".join(lines) + b"\n"


def _labelled(line: bytes, number: int) -> bytes:
    match = SAMPLE.match(line)
    if match is None:
        return line
    labels = b'instance="%d"' % number + (b"," + match[2] if match[2] else b"")
    return b"%s{%s} %s" % (match[1], labels, line[match.end() :])


def _joined_status(found: Mapping[int, bytes]) -> bytes:
    """Return the data of the status page of all instances, their models one after the other."""
    each = {number: orjson.loads(data) for number, data in found.items()}
    joined: dict[str, Any] = next(iter(each.values()))
    joined["models"] = [
        model | {"version": f"{model['version']}, instance {number}"}
        for number, status in each.items()
        for model in status["models"]
    ]
    joined["uptime"] = min(status["uptime"] for status in each.values())
    return orjson.dumps(joined)
