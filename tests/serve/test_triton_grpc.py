"""Triton's client for gRPC, unchanged: blocking, streams, asyncio, compression; typed contents."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from monograph.serve.rpc.messages import HEALTH_SERVICE, MESSAGES, SERVICE
from tests.serve.models import WEIGHTS
from tests.serve.process import ServerProcess

triton = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[http]")
aio = pytest.importorskip("tritonclient.grpc.aio", reason="needs tritonclient[http]")
from tritonclient.utils import InferenceServerException  # noqa: E402

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    made = triton.InferenceServerClient(server.grpc)
    yield made
    made.close()


def inputs_for(x: np.ndarray) -> list[Any]:
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return [given]


def test_health_metadata_and_repository(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine", "2")
    assert client.get_server_metadata().name == "monograph"
    found = client.get_model_metadata("affine")
    assert [*found.inputs[0].shape] == [-1, 4]
    assert found.inputs[0].datatype == "FP32"
    config = client.get_model_config("echo", as_json=True)["config"]
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert client.get_inference_statistics("affine").model_stats[0].name == "affine"
    client.unload_model("gather")
    states = {m.name: m.state for m in client.get_model_repository_index().models}
    assert (states["gather"], states["echo"]) == ("UNAVAILABLE", "READY")
    client.load_model("gather")
    assert client.is_model_ready("gather")


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer(client: Any, coding: str | None) -> None:
    found = client.infer(
        "affine", inputs_for(X), model_version="1", request_id="9",
        outputs=[triton.InferRequestedOutput("y")], compression_algorithm=coding,
    )  # fmt: skip
    assert np.array_equal(found.as_numpy("y"), X @ WEIGHTS)
    assert found.get_response().id == "9"


def test_all_types_come_back_unchanged(client: Any) -> None:
    arrays = {
        "text": (np.array(["a", "\u4e2d", ""], object), "BYTES"),
        "flag": (np.array([True, False]), "BOOL"), "whole": (np.array([-1, 2]), "INT64"),
        "byte": (np.array([7], np.uint8), "UINT8"), "half": (np.array([.5], np.float16), "FP16"),
        "real": (np.array([1e300]), "FP64"),
    }  # fmt: skip
    inputs = []
    for name, (x, kind) in arrays.items():
        inputs.append(triton.InferInput(name, list(x.shape), kind))
        inputs[-1].set_data_from_numpy(x)
    found = client.infer("echo", inputs)
    assert [t.decode() for t in found.as_numpy("text_out")] == arrays["text"][0].tolist()
    for name in ("flag", "whole", "byte", "half", "real"):
        assert np.array_equal(found.as_numpy(f"{name}_out"), arrays[name][0])


def test_streams_answer_in_order_and_go_on_after_an_error(client: Any) -> None:
    found: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    for i in range(20):
        name = "none" if i == 7 else "affine"
        x = np.full((1 + i % 2, 4), i, np.float32)
        client.async_stream_infer(name, inputs_for(x), request_id=str(i), model_version="1")
    for i in range(20):
        result, error = found.get(timeout=30)
        if i == 7:
            assert "no model" in str(error)
            continue
        assert error is None
        assert result.get_response().id == str(i)
        assert np.array_equal(result.as_numpy("y")[0], np.full(4, i, np.float32) @ WEIGHTS)
    client.stop_stream()


def test_errors_have_their_status(client: Any) -> None:
    for name, x, status in [("none", X, "NOT_FOUND"), ("affine", X[0], "INVALID_ARGUMENT")]:
        with pytest.raises(InferenceServerException) as e:
            client.infer(name, inputs_for(x))
        assert e.value.status() == f"StatusCode.{status}"
    with pytest.raises(InferenceServerException, match="not implemented") as e:
        client.get_system_shared_memory_status()
    assert e.value.status() == "StatusCode.UNIMPLEMENTED"


def test_asyncio_client(server: ServerProcess) -> None:
    async def run() -> None:
        async with aio.InferenceServerClient(server.grpc) as client:

            async def one(i: int) -> bool:
                x = np.full((1 + i % 3, 4), i, np.float32)
                found = await client.infer("affine", inputs_for(x), model_version="1")
                return np.array_equal(found.as_numpy("y"), x @ WEIGHTS)

            assert all(await asyncio.gather(*[one(i) for i in range(50)]))

    asyncio.run(run())


def call(
    server: ServerProcess, method: str, request: Any, answer: str, service: str = SERVICE
) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=MESSAGES[answer].FromString,
        )
        return ask(request, timeout=30)


def test_typed_contents_give_typed_contents(server: ServerProcess) -> None:
    request = MESSAGES["ModelInferRequest"](model_name="affine", model_version="1")
    given = request.inputs.add(name="x", datatype="FP32", shape=[2, 4])
    given.contents.fp32_contents.extend(X.ravel().tolist())
    found = call(server, "ModelInfer", request, "ModelInferResponse")
    assert not found.raw_output_contents
    made = np.array(found.outputs[0].contents.fp32_contents, np.float32)
    assert np.array_equal(made.reshape(2, 3), X @ WEIGHTS)


@pytest.mark.parametrize("spoil", ["raw", "count", "shape", "twice", "range", "memory"])
def test_malformed_requests_are_invalid(server: ServerProcess, spoil: str) -> None:
    request = MESSAGES["ModelInferRequest"](model_name="gather")
    given = request.inputs.add(name="rows", datatype="INT64", shape=[1])
    given.contents.int64_contents.append(1)
    match spoil:
        case "raw":
            request.raw_input_contents.extend([b"12345678", b""])
        case "count":
            given.contents.int64_contents.append(1)
        case "shape":
            given.shape[0] = -1
        case "twice":
            request.inputs.add().CopyFrom(given)
        case "range":
            given.contents.int64_contents[0] = 99
        case "memory":
            given.parameters["shared_memory_region"].string_param = "a"
    with pytest.raises(grpc.RpcError) as e:
        call(server, "ModelInfer", request, "ModelInferResponse")
    wanted = "UNIMPLEMENTED" if spoil == "memory" else "INVALID_ARGUMENT"
    assert e.value.code().name == wanted, e.value.details()


def test_the_health_service_answers(server: ServerProcess) -> None:
    request = MESSAGES["HealthCheckRequest"]()
    assert call(server, "Check", request, "HealthCheckResponse", HEALTH_SERVICE).status == 1


def test_messages_have_the_numbers_of_the_public_definitions() -> None:
    """The generated classes of Triton's client describe the same bytes."""
    from tritonclient.grpc import service_pb2

    checked = 0
    for name, made in MESSAGES.items():
        public = service_pb2.DESCRIPTOR.message_types_by_name.get(name)
        if public is None:
            continue
        for field in made.DESCRIPTOR.fields:
            other = public.fields_by_name[field.name]
            assert (other.number, other.is_repeated) == (field.number, field.is_repeated)
            if field.message_type is None:
                assert other.type == field.type, f"{name}.{field.name}"
            checked += 1
    assert checked > 70
