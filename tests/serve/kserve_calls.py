"""Calls of KServe's client, in a Python that has it: `python kserve_calls.py URL GRPC`."""

import asyncio
import sys

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8


def request(name: str, binary: bool) -> InferRequest:
    given = InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X, binary_data=binary)
    wanted = [RequestedOutput("y", {"binary_data": True} if binary else None)]
    return InferRequest(name, [given], request_id="7", request_outputs=wanted)


async def over_http(url: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "affine")
    for binary in (False, True):
        found = await client.infer(url, request("affine", binary), model_name="affine")
        assert np.array_equal(found.outputs[0].as_numpy().reshape(2, 3), 2 * X @ WEIGHTS)
        assert found.id == "7"
    failed = await asyncio.gather(
        client.infer(url, request("none", False), model_name="none"), return_exceptions=True
    )
    assert "404" in repr(failed[0]), failed
    await client.close()


async def over_grpc(address: str) -> None:
    client = InferenceGRPCClient(address, retries=0)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("affine")
    for binary in (False, True):
        found = await client.infer(request("affine", binary))
        assert np.array_equal(found.outputs[0].as_numpy().reshape(2, 3), 2 * X @ WEIGHTS)
    await client.close()


if __name__ == "__main__":
    asyncio.run(over_http(sys.argv[1]))
    asyncio.run(over_grpc(sys.argv[2]))
    print("all calls of KServe's client were answered")
