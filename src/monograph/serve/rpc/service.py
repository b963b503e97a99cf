"""The gRPC service: each method of the protocol, errors as status, streams of requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from monograph.serve.failures import (
    Failure,
    RequestError,
    as_request_error,
    invalid,
    unimplemented,
)  # fmt: skip
from monograph.serve.keys import ApiKeys
from monograph.serve.protocol import Protocol2
from monograph.serve.rpc.infer import parameters_of, read_call, write_answer
from monograph.serve.rpc.messages import HEALTH_SERVICE, MESSAGES, SERVICE, TYPE_NUMBERS
from monograph.serve.settings import Limits
from monograph.serve.tracing import Traces

_log = logging.getLogger("monograph.serve")
STREAMED = 64
"""The most requests of one stream that wait or run."""
SERVING, NOT_SERVING = 1, 2
UNIMPLEMENTED = (
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings",
)  # fmt: skip
"""Methods of extensions that this server does not have."""
STATISTICS = {field.name for field in MESSAGES["ModelStatistics"].DESCRIPTOR.fields}
"""The statistics that the protocol knows; HTTP has more."""
Context = Any
FINAL = "triton_enable_empty_final_response"
"""The parameter by which a client asks for a mark on the last answer of a request."""


class InferenceService:
    """The methods of `GRPCInferenceService`, and the check of health."""

    def __init__(self, protocol: Protocol2, keys: ApiKeys, traces: Traces | None = None) -> None:
        self._protocol = protocol
        self._keys = keys
        self._traces = traces

    def handlers(self) -> tuple[Any, ...]:
        """Return the handlers that a server of gRPC adds."""
        methods = {
            "ServerLive": self._unary("Empty", self._server_live, True),
            "ServerReady": self._unary("Empty", self._server_ready, True),
            "ModelReady": self._unary("ModelReadyRequest", self._model_ready),
            "ServerMetadata": self._unary("Empty", self._server_metadata),
            "ModelMetadata": self._unary("ModelMetadataRequest", self._model_metadata),
            "ModelInfer": self._unary("ModelInferRequest", self._traced_infer),
            "ModelStreamInfer": self.stream_handler(),
            "ModelConfig": self._unary("ModelConfigRequest", self._model_config),
            "ModelStatistics": self._unary("ModelStatisticsRequest", self._statistics),
            "RepositoryIndex": self._unary("RepositoryIndexRequest", self._index),
            "RepositoryModelLoad": self._unary("RepositoryModelLoadRequest", self._load),
            "RepositoryModelUnload": self._unary("RepositoryModelUnloadRequest", self._unload),
            **{name: self._unary("Empty", _refused(name)) for name in UNIMPLEMENTED},
        }
        health = {"Check": self._unary("HealthCheckRequest", self._health, True)}
        return (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
        )

    def stream_handler(self) -> Any:
        """Return the handler of streams of requests."""
        return grpc.stream_stream_rpc_method_handler(self._stream, response_serializer=_serialized)

    def _unary(
        self, request: str, method: Callable[[Any, Context], Awaitable[Any]], open_: bool = False
    ) -> Any:
        async def answer(data: bytes, context: Context) -> Any:
            try:
                if not open_:
                    self._keys.check(dict(context.invocation_metadata() or ()))
                return await method(read_message(request, data), context)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                code, message = status_of(error)
                await context.abort(code, message)

        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=_serialized)

    async def _server_live(self, _: Any, context: Context) -> Any:
        return MESSAGES["ServerLiveResponse"](live=self._protocol.live())

    async def _server_ready(self, _: Any, context: Context) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._protocol.ready())

    async def _health(self, request: Any, context: Context) -> Any:
        ready = self._protocol.ready()
        return MESSAGES["HealthCheckResponse"](status=SERVING if ready else NOT_SERVING)

    async def _server_metadata(self, _: Any, context: Context) -> Any:
        return MESSAGES["ServerMetadataResponse"](**self._protocol.server_metadata())

    async def _model_ready(self, request: Any, context: Context) -> Any:
        ready = self._protocol.model_ready(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=ready)

    async def _model_metadata(self, request: Any, context: Context) -> Any:
        found = self._protocol.model_metadata(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**found)

    async def _model_config(self, request: Any, context: Context) -> Any:
        found = self._protocol.model_config(request.name, request.version)
        found.pop("version_policy")
        for port in (*found["input"], *found["output"]):
            port["data_type"] = TYPE_NUMBERS[port["data_type"].removeprefix("TYPE_")]
        return MESSAGES["ModelConfigResponse"](config=found)

    async def _statistics(self, request: Any, context: Context) -> Any:
        found = self._protocol.statistics(request.name, request.version)
        for model in found["model_stats"]:
            for name in set(model) - STATISTICS:
                del model[name]
        return MESSAGES["ModelStatisticsResponse"](**found)

    async def _index(self, request: Any, context: Context) -> Any:
        return MESSAGES["RepositoryIndexResponse"](models=self._protocol.index(request.ready))

    async def _load(self, request: Any, context: Context) -> Any:
        await self._protocol.load(request.model_name, parameters_of(request.parameters))
        return MESSAGES["Empty"]()

    async def _unload(self, request: Any, context: Context) -> Any:
        await self._protocol.unload(request.model_name)
        return MESSAGES["Empty"]()

    async def _traced_infer(
        self, request: Any, context: Context, method: str = "ModelInfer"
    ) -> Any:
        """Answer a request inside its span, if it has one."""
        if self._traces is None:
            return await self._infer(request, context)
        name = f"{SERVICE}/{method}"
        carrier = {k: str(v) for k, v in context.invocation_metadata() or ()}
        with self._traces.request(name, carrier, rpc__system="grpc", rpc__method=name) as span:
            try:
                found = await self._infer(request, context)
            except Exception as error:
                kind = as_request_error(error).kind
                span.set(rpc__response__status_code=kind.code)
                if kind.status >= Failure.INTERNAL.status:
                    span.failed(kind.code)
                raise
            span.set(rpc__response__status_code="OK")
            return found

    async def _infer(self, request: Any, context: Context) -> Any:
        call, raw = read_call(request)
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        answer = await self._protocol.infer(
            request.model_name, request.model_version, call, deadline
        )
        return write_answer(answer, raw)

    async def _stream(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Answer the requests of a stream in their order; they wait and run at the same time."""
        try:
            self._keys.check(dict(context.invocation_metadata() or ()))
        except RequestError as error:
            code, message = status_of(error)
            await context.abort(code, message)
        begun: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAMED)

        async def read() -> None:
            try:
                async for data in requests:
                    await begun.put(asyncio.create_task(self._streamed(data, context)))
            finally:
                await begun.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await begun.get()) is not None:
                yield await task
        finally:
            reader.cancel()
            while not begun.empty():
                if (task := begun.get_nowait()) is not None:
                    task.cancel()

    async def _streamed(self, data: bytes, context: Context) -> Any:
        """Return the answer to one request of a stream; an error is an answer too."""
        made = MESSAGES["ModelStreamInferResponse"]()
        request = MESSAGES["ModelInferRequest"]()
        try:
            request = read_message("ModelInferRequest", data)
            found = await self._traced_infer(request, context, "ModelStreamInfer")
            made.infer_response.CopyFrom(found)
        except Exception as error:
            _, made.error_message = status_of(error)
            made.infer_response.id = request.id
            made.infer_response.model_name = request.model_name
        if FINAL in request.parameters:
            made.infer_response.parameters["triton_final_response"].bool_param = True
        return made


def _refused(name: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def refuse(_: Any, context: Context) -> Any:
        raise unimplemented(name)

    return refuse


def read_message(name: str, data: bytes) -> Any:
    """Return the message of a name; raise the error of bytes that are none."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError:
        raise invalid(f"the bytes are no {name}") from None


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def status_of(error: Exception) -> tuple[Any, str]:
    """Return the status and the message of an error."""
    found = as_request_error(error)
    if found.kind.code == "INTERNAL":
        _log.exception("a request failed", exc_info=error)
    return getattr(grpc.StatusCode, found.kind.code), str(found)


def server_options(limits: Limits) -> list[tuple[str, int]]:
    """Return the options of a server of gRPC under these limits."""
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_ping_strikes", 5),
    ]


def make_server(
    protocol: Protocol2, limits: Limits, keys: ApiKeys, traces: Traces | None = None
) -> Any:
    """Return a server of gRPC under these limits, without an address."""
    made = grpc.aio.server(
        options=server_options(limits), maximum_concurrent_rpcs=limits.connections
    )
    made.add_generic_rpc_handlers(InferenceService(protocol, keys, traces).handlers())
    return made
