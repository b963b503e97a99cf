"""The cost of serving above a bare run: the batcher alone, HTTP and gRPC beside echo servers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.serve.models import affine
from tests.serve.process import ServerProcess, serving

from benchmarks.serve_load import binary, drive
from benchmarks.serve_peers import free_port

ROOT = Path(__file__).parents[1]


def p50(work: Any, count: int) -> float:
    times = []
    for _ in range(count):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def overhead(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the layers above `session.run` with 4 KB tensors and one client, in microseconds."""
    x = np.ones((256, 4), np.float32)
    times: dict[str, list[float]] = {}
    body, headers = binary({"x": x})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        affine(folder / "affine.onnx")
        server = stack.enter_context(serving(folder, grpc=True))
        http, rpc = stack.enter_context(_python(ECHO)), stack.enter_context(_python(GRPC_ECHO))
        for _ in range(arguments.turns):
            run, batcher = _in_process(folder / "affine.onnx", x)
            url = f"{server.url}/v2/models/affine/infer"
            found = {
                "session.run": run, "batcher": batcher,
                "http": asyncio.run(_one_client(url, body, headers)),
                "http echo": asyncio.run(
                    _one_client(f"http://127.0.0.1:{http}/echo", body, headers)
                ),
                "grpc": asyncio.run(_one_grpc_client(server, x)),
                "grpc echo": asyncio.run(_grpc_times(f"127.0.0.1:{rpc}", "/e/Echo", _request(x))),
            }  # fmt: skip
            for name, value in found.items():
                times.setdefault(name, []).append(value)
    best = {name: statistics.median(values) for name, values in times.items()}
    for name, value in best.items():
        print(f"{name:14} {value:9.1f} us")
    ratios = {
        "batcher over run, us": best["batcher"] - best["session.run"],
        "http over echo": best["http"] / best["http echo"],
        "grpc over echo": best["grpc"] / best["grpc echo"],
    }
    print(ratios)
    return {"median us": best, "turns us": times, **ratios}


def _in_process(path: Path, x: np.ndarray) -> tuple[float, float]:
    """Return the times of a run and of a request to the batcher in this process."""
    import uvloop

    from monograph.serve.folder import Found
    from monograph.serve.settings import Limits, ModelSettings
    from monograph.serve.tensors import TensorModel

    model = TensorModel(Found("affine", "1", path, False), ModelSettings(), Limits())
    model.session.run({"x": x})
    run = p50(lambda: model.session.run({"x": x}), 3000)

    async def batcher() -> float:
        times = []
        for _ in range(3000):
            before = time.perf_counter()
            await model.infer({"x": x}, time.monotonic() + 9)
            times.append(time.perf_counter() - before)
        return statistics.median(times) * 1e6

    found = uvloop.run(batcher())
    model.close()
    return run, found


async def _one_client(url: str, body: bytes, headers: dict[str, str]) -> float:
    _, times = await drive(url, body, headers, 4, 1)
    return statistics.median(times) * 1e6


async def _one_grpc_client(server: ServerProcess, x: np.ndarray) -> float:
    from monograph.serve.rpc.messages import SERVICE

    return await _grpc_times(server.grpc, f"/{SERVICE}/ModelInfer", _request(x))


def _request(x: np.ndarray) -> bytes:
    from monograph.serve.rpc.messages import MESSAGES

    made = MESSAGES["ModelInferRequest"](model_name="affine")
    made.inputs.add(name="x", datatype="FP32", shape=x.shape)
    made.raw_input_contents.append(x.tobytes())
    data: bytes = made.SerializeToString()
    return data


async def _grpc_times(address: str, method: str, request: bytes) -> float:
    import grpc.aio

    times = []
    async with grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary(method)
        end = time.perf_counter() + 4
        while (before := time.perf_counter()) < end:
            await ask(request)
            times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


ECHO = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def echo(request):
    return Response(await request.body())
app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""
GRPC_ECHO = """
import asyncio, sys, grpc, grpc.aio, uvloop
from monograph.serve.rpc.messages import MESSAGES
M, A = MESSAGES["ModelInferRequest"], MESSAGES["ModelInferResponse"]
async def main():
    server = grpc.aio.server()
    async def echo(request, context):
        made = A(model_name=request.model_name)
        given = request.inputs[0]
        made.outputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
        made.raw_output_contents.append(request.raw_input_contents[0])
        return made
    handler = grpc.unary_unary_rpc_method_handler(
        echo, request_deserializer=M.FromString, response_serializer=A.SerializeToString)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("e", {"Echo": handler}),))
    server.add_insecure_port("127.0.0.1:" + sys.argv[1])
    await server.start()
    await server.wait_for_termination()
uvloop.run(main())
"""


@contextlib.contextmanager
def _python(text: str) -> Iterator[int]:
    """Run a server of Python that takes its port as an argument."""
    port = free_port()
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-c", text, str(port)], env=env)
    try:
        time.sleep(3)
        yield port
    finally:
        process.terminate()
        process.wait(10)
