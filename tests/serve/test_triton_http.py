"""Triton's client for HTTP, unchanged: blocking, asyncio, compression, all types."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.serve.models import WEIGHTS
from tests.serve.process import ServerProcess

triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
aio = pytest.importorskip("tritonclient.http.aio", reason="needs tritonclient[http]")
from tritonclient.utils import InferenceServerException  # noqa: E402

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    made = triton.InferenceServerClient(server.address)
    yield made
    made.close()


def inputs_for(x: np.ndarray, binary: bool = True) -> list[Any]:
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    return [given]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine")
    assert client.is_model_ready("affine", "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "monograph"
    assert client.get_model_metadata("affine")["inputs"][0]["shape"] == [-1, 4]
    assert client.get_model_config("affine")["input"][0]["name"] == "x"
    assert "affine" in {m["name"] for m in client.get_model_repository_index()}
    assert client.get_inference_statistics("affine")["model_stats"]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer(client: Any, binary_in: bool, binary_out: bool, coding: str | None) -> None:
    found = client.infer(
        "affine", inputs_for(X, binary_in), request_id="7", model_version="1",
        outputs=[triton.InferRequestedOutput("y", binary_data=binary_out)],
        request_compression_algorithm=coding, response_compression_algorithm=coding,
    )  # fmt: skip
    assert np.array_equal(found.as_numpy("y"), X @ WEIGHTS)
    assert found.get_response()["id"] == "7"


def test_no_outputs_named_gives_binary_outputs(client: Any) -> None:
    found = client.infer("affine", inputs_for(X))
    assert np.array_equal(found.as_numpy("y"), X @ WEIGHTS * 2)
    assert "data" not in found.get_output("y")


def test_texts_go_both_ways(client: Any) -> None:
    arrays = {
        "text": (np.array(["a", "\u4e2d\u6587", ""], object), "BYTES"),
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


def test_errors_are_those_of_the_client(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="there is no model") as e:
        client.infer("none", inputs_for(X))
    assert e.value.status() == "404"
    with pytest.raises(InferenceServerException, match="rank"):
        client.infer("affine", inputs_for(X[0]))
    with pytest.raises(InferenceServerException, match="not implemented"):
        client.get_system_shared_memory_status()


def test_load_and_unload(client: Any) -> None:
    client.unload_model("gather")
    assert not client.is_model_ready("gather")
    client.load_model("gather")
    assert client.is_model_ready("gather")


def test_asyncio_client_and_many_requests_at_once(server: ServerProcess) -> None:
    async def run() -> None:
        async with aio.InferenceServerClient(server.address) as client:
            assert await client.is_server_ready()

            async def one(i: int) -> bool:
                x = np.full((1 + i % 3, 4), i, np.float32)
                found = await client.infer("affine", inputs_for(x), model_version="1")
                return np.array_equal(found.as_numpy("y"), x @ WEIGHTS)

            assert all(await asyncio.gather(*[one(i) for i in range(100)]))

    asyncio.run(run())
