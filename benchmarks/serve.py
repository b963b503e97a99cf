"""Serving: what it adds to a run, throughput beside other servers, and overload.

    python -m benchmarks.serve overhead
    python -m benchmarks.serve throughput --models magika_v3_3,reachy_fk_int8 --peer-python PYTHON
    python -m benchmarks.serve overload --seconds 60

Everything runs on loopback. Servers take turns; a peer runs in an environment of its own that has
litserve and onnxruntime (`--peer-python`).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from tests.serve.models import affine
from tests.serve.process import ServerProcess, serving

import monograph
from monograph.serve.datatypes import datatype_of

SHARED = Path(__file__).parents[2] / "shared" / "models"
ROOT = Path(__file__).parents[1]
CLIENTS = 32
JSON = {"Content-Type": "application/json"}
MODELS = (
    "reachy_fk_int8", "magika_v3_3", "hf_bert_sdpa", "tv_mobilenet_v3_small", "face_rfb320",
)  # fmt: skip

PEER = """
import base64, io, sys
import litserve as ls, numpy as np, onnxruntime as ort

class Api(ls.LitAPI):
    def setup(self, device):
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(sys.argv[3])
        self.session = ort.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
        self.names = [i.name for i in self.session.get_inputs()]
    def decode_request(self, request):
        return dict(np.load(io.BytesIO(base64.b64decode(request["data"]))))
    def batch(self, inputs):
        self.sizes = [len(next(iter(i.values()))) for i in inputs]
        return {n: np.concatenate([i[n] for i in inputs]) for n in self.names}
    def predict(self, feeds):
        return self.session.run(None, {n: feeds[n] for n in self.names})
    def unbatch(self, outputs):
        ends = np.cumsum(self.sizes)
        return [[o[e - s:e] for o in outputs] for s, e in zip(self.sizes, ends)]
    def encode_response(self, outputs):
        file = io.BytesIO()
        np.savez(file, *outputs)
        return {"data": base64.b64encode(file.getvalue()).decode()}

class Plain(Api):
    batch = ls.LitAPI.batch
    unbatch = ls.LitAPI.unbatch

if __name__ == "__main__":
    most = int(sys.argv[4])
    api = Api(max_batch_size=most, batch_timeout=0.0005, enable_async=False) if most > 1 else Plain(max_batch_size=1)
    ls.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="error")
"""  # noqa: E501


def binary(feeds: dict[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the header of a request with binary tensors both ways."""
    inputs = [
        {"name": n, "datatype": datatype_of(x), "shape": list(x.shape),
         "parameters": {"binary_data_size": x.nbytes}}
        for n, x in feeds.items()
    ]  # fmt: skip
    call = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(call).encode()
    data = head + b"".join(x.tobytes() for x in feeds.values())
    return data, {"Inference-Header-Content-Length": str(len(head))}


async def drive(
    url: str, body: bytes, headers: dict[str, str], seconds: float, clients: int = CLIENTS
) -> tuple[Counter[int], list[float]]:
    """Send requests from clients one after the other each; return statuses and times."""
    found: Counter[int] = Counter()
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while (before := time.perf_counter()) < end:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                found[answer.status] += 1
            times.append(time.perf_counter() - before)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*[client(session) for _ in range(clients)])
    return found, times


def p50(work: Any, count: int) -> float:
    times = []
    for _ in range(count):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def overhead(arguments: argparse.Namespace) -> dict[str, float]:
    """Time the layers above `session.run` with 4 KB tensors and one client, in microseconds."""
    from monograph.serve.folder import Found
    from monograph.serve.settings import Limits, ModelSettings
    from monograph.serve.tensors import TensorModel

    x = np.ones((256, 4), np.float32)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = affine(Path(folder) / "affine.onnx")
        model = TensorModel(Found("affine", "1", path, False), ModelSettings(), Limits())
        model.session.run({"x": x})
        found["session.run"] = p50(lambda: model.session.run({"x": x}), 3000)

        async def batcher() -> float:
            times = []
            for _ in range(3000):
                before = time.perf_counter()
                await model.infer({"x": x}, time.monotonic() + 9)
                times.append(time.perf_counter() - before)
            return statistics.median(times) * 1e6

        import uvloop

        found["batcher"] = uvloop.run(batcher())
        model.close()
        body, headers = binary({"x": x})
        with serving(Path(folder), grpc=True) as server:
            url = f"{server.url}/v2/models/affine/infer"
            found["http"] = asyncio.run(_one_client(url, body, headers))
            found["grpc"] = asyncio.run(_one_grpc_client(server, x))
        found["http echo"] = _echo(body)
        found["grpc echo"] = _grpc_echo(x)
    for name, value in found.items():
        print(f"{name:14} {value:9.1f} us")
    return found


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


def _echo(body: bytes) -> float:
    with Peer([sys.executable, "-c", ECHO]) as peer:
        return asyncio.run(_one_client(f"http://127.0.0.1:{peer.port}/echo", body, {}))


def _grpc_echo(x: np.ndarray) -> float:
    with Peer([sys.executable, "-c", GRPC_ECHO]) as peer:
        return asyncio.run(_grpc_times(f"127.0.0.1:{peer.port}", "/e/Echo", _request(x)))


class Peer:
    """Another server as a process that takes its port as an argument, and ends with the block."""

    def __init__(self, command: list[str], *more: str) -> None:
        import socket

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self._command = [*command, str(self.port), *more]

    def __enter__(self) -> Peer:
        import socket

        env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._process = subprocess.Popen(
            self._command, env=env, stdout=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                time.sleep(1)
                return self
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"no answer from {self._command}")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    """Count answers a second of 32 clients with one row each, beside LitServe."""
    results: dict[str, Any] = {}
    peer_file = Path(tempfile.mkdtemp()) / "peer.py"
    peer_file.write_text(PEER)
    for name in arguments.models.split(","):
        folder = SHARED / name
        io = np.load(folder / "io.npz")
        feeds = {k[3:]: io[k] for k in io.files if k.startswith("in:")}
        session = monograph.load(folder / "model.onnx")
        open_ = all(p.shape and isinstance(p.shape[0], str) for p in session.inputs)
        if open_:
            feeds = {k: np.ascontiguousarray(x[:1]) for k, x in feeds.items()}
        body, headers = binary(feeds)
        rates: dict[str, float] = {}
        with serving(folder) as server:
            url = f"{server.url}/v2/models/{name}/infer"
            asyncio.run(drive(url, body, headers, arguments.warm))
            found, _ = asyncio.run(drive(url, body, headers, arguments.seconds))
            assert set(found) == {200}, found
            rates["monograph"] = found[200] / arguments.seconds
            stats = json.loads(server.get(f"/v2/models/{name}/stats")[1])["model_stats"][0]
        if arguments.peer_python:
            import io as streams

            packed = streams.BytesIO()
            np.savez(packed, **feeds)
            sent = json.dumps({"data": base64.b64encode(packed.getvalue()).decode()}).encode()
            for most in (1, 32) if open_ else (1,):
                command = [arguments.peer_python, str(peer_file), str(folder / "model.onnx")]
                with Peer(command, str(os.cpu_count()), str(most)) as peer:
                    url = f"http://127.0.0.1:{peer.port}/predict"
                    asyncio.run(drive(url, sent, JSON, arguments.warm))
                    found, _ = asyncio.run(drive(url, sent, JSON, arguments.seconds))
                    if set(found) != {200}:
                        print(f"litserve {most}: {found}")
                    rates[f"litserve {most}"] = found[200] / arguments.seconds
        rows = stats["inference_count"] / max(stats["execution_count"], 1)
        results[name] = rates | {"rows in a run": rows, "batching": stats["batching"]}
        listed = ", ".join(f"{k} {v:.0f}/s" for k, v in rates.items())
        print(f"{name}: {listed}; {rows:.1f} rows in a run", flush=True)
    return results


async def offer(
    url: str, body: bytes, headers: dict[str, str], rate: float, seconds: float
) -> tuple[Counter[int], list[float]]:
    """Send requests at a rate, whatever comes back; return statuses and times of good answers."""
    found: Counter[int] = Counter()
    times: list[float] = []

    async def one(session: aiohttp.ClientSession) -> None:
        before = time.perf_counter()
        try:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                found[answer.status] += 1
                if answer.status == 200:
                    times.append(time.perf_counter() - before)
        except aiohttp.ClientError:
            found[-1] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = set()
        started = time.perf_counter()
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, started + i / rate - time.perf_counter()))
            task = asyncio.create_task(one(session))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return found, times


def overload(arguments: argparse.Namespace) -> dict[str, Any]:
    """Offer three times the sustainable rate to a model of some milliseconds."""
    name = arguments.models.split(",")[0]
    io = np.load(SHARED / name / "io.npz")
    feeds = {k[3:]: np.ascontiguousarray(io[k][:1]) for k in io.files if k.startswith("in:")}
    body, headers = binary(feeds)
    with serving(SHARED / name, "--queue", "64", "--timeout", "2") as server:
        url = f"{server.url}/v2/models/{name}/infer"
        asyncio.run(drive(url, body, headers, arguments.warm))
        found, _ = asyncio.run(drive(url, body, headers, arguments.warm))
        peak = found[200] / arguments.warm
        before = _memory(server)
        found, times = asyncio.run(offer(url, body, headers, 3 * peak, arguments.seconds))
        good = found[200] / arguments.seconds
        times.sort()
        result = {
            "peak": peak, "goodput": good, "statuses": dict(found),
            "p99": times[int(0.99 * len(times))], "memory": (before, _memory(server)),
        }  # fmt: skip
    print(json.dumps(result))
    return result


def _memory(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["overhead", "throughput", "overload"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--warm", type=float, default=4)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    work = {"overhead": overhead, "throughput": throughput, "overload": overload}
    found = work[arguments.what](arguments)
    if arguments.results:
        arguments.results.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
