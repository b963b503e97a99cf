"""gRPC of a front: calls go to one instance as bytes, and to another one if that is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from monograph.serve.failures import Failure, RequestError
from monograph.serve.front.processes import Instance, Instances
from monograph.serve.keys import ApiKeys
from monograph.serve.rpc.messages import MESSAGES, SERVICE
from monograph.serve.rpc.service import InferenceService, server_options
from monograph.serve.settings import Limits

INFER, STREAM = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"
OF_ALL = {f"/{SERVICE}/RepositoryModelLoad", f"/{SERVICE}/RepositoryModelUnload"}
"""Methods that all instances run."""
_KINDS = {kind.code: kind for kind in reversed(Failure)}
Context = Any


class FrontService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of an instance, by its name."""

    def __init__(self, instances: Instances, keys: ApiKeys) -> None:
        self._instances = instances
        self._stream = _Streams(self, keys).stream_handler()

    def service(self, details: Any) -> Any:
        """Return the handler of a method."""
        if details.method == STREAM:
            return self._stream
        return grpc.unary_unary_rpc_method_handler(self._handler(details.method))

    def _handler(self, method: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def answer(request: bytes, context: Context) -> bytes:
            try:
                return await self.call(method, request, context)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            except RequestError as error:
                await context.abort(getattr(grpc.StatusCode, error.kind.code), str(error))
            raise AssertionError("abort raises")

        return answer

    async def call(self, method: str, request: bytes, context: Context) -> bytes:
        """Return the answer of an instance; a lost or draining one is replaced once."""
        if method in OF_ALL:
            await self._instances.wait_ready()
            answers = [await _ask(i, method, request, context) for i in self._instances.ready]
            return answers[0]
        avoided: Instance | None = None
        while True:
            await self._instances.wait_ready()
            with self._instances.chosen(avoided) as instance:
                try:
                    return await _ask(instance, method, request, context)
                except grpc.aio.AioRpcError as error:
                    refused = error.code() is grpc.StatusCode.UNAVAILABLE
                    if not refused or avoided is not None:
                        raise
                if not instance.alive:
                    instance.ready = False
                avoided = instance


async def _ask(instance: Instance, method: str, request: bytes, context: Context) -> bytes:
    given = context.invocation_metadata() or ()
    metadata = [(k, v) for k, v in given if not k.startswith(("grpc-", ":", "user-agent"))]
    found: bytes = await instance.channel.unary_unary(method)(
        request, metadata=metadata, timeout=context.time_remaining()
    )
    return found


class _Streams(InferenceService):
    """Streams of requests: each of them is a call of its own to an instance."""

    def __init__(self, front: FrontService, keys: ApiKeys) -> None:
        self._front = front
        self._keys = keys
        self._traces = None

    async def _infer(self, request: Any, context: Context) -> Any:
        try:
            answer = await self._front.call(INFER, request.SerializeToString(), context)
        except grpc.aio.AioRpcError as error:
            kind = _KINDS.get(error.code().name, Failure.INTERNAL)
            raise RequestError(kind, error.details() or "") from None
        return MESSAGES["ModelInferResponse"].FromString(answer)


def make_front_server(instances: Instances, limits: Limits, keys: ApiKeys) -> Any:
    """Return a server of gRPC in front of instances, without an address."""
    made = grpc.aio.server(
        options=server_options(limits), maximum_concurrent_rpcs=limits.connections
    )
    made.add_generic_rpc_handlers((FrontService(instances, keys),))
    return made
