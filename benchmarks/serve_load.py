"""Load for the benchmarks of serving: bodies of requests, and clients that send them.

`wrk` (a Debian package) sends requests from 32 connections and takes little of the processors that
the servers are timed on. The other clients here are of Python, for rates and broken requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from monograph.serve.datatypes import datatype_of

CLIENTS = 32
Feeds = Mapping[str, np.ndarray]
SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
{headers}
"""


@dataclass(frozen=True)
class Call:
    """A request that is sent again and again."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def binary(feeds: Feeds) -> tuple[bytes, dict[str, str]]:
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


def binary_call(model: str, feeds: Feeds) -> Call:
    """Return a request of the Open Inference Protocol with binary tensors."""
    body, headers = binary(feeds)
    octets = {"Content-Type": "application/octet-stream"}
    return Call(f"/v2/models/{model}/infer", body, headers | octets)


def packed_call(feeds: Feeds) -> Call:
    """Return a request for LitServe: tensors as base64 in JSON."""
    sent = {
        name: [str(x.dtype), list(x.shape), base64.b64encode(x.tobytes()).decode()]
        for name, x in feeds.items()
    }
    return Call("/predict", json.dumps(sent).encode(), {"Content-Type": "application/json"})


def rows_of(feeds: Feeds, outputs: Feeds, batched: bool) -> tuple[Feeds, Feeds]:
    """Return one row of the example of a model whose rows are independent."""
    if not batched:
        return feeds, outputs
    one = [{n: np.ascontiguousarray(x[:1]) for n, x in side.items()} for side in (feeds, outputs)]
    return one[0], one[1]


def example(folder: Path) -> tuple[Feeds, Feeds]:
    """Return the recorded inputs and outputs of a model."""
    io = np.load(folder / "io.npz")
    feeds = {k[3:]: io[k] for k in io.files if k.startswith("in:")}
    return feeds, {k[4:]: io[k] for k in io.files if k.startswith("out:")}


def answer_of(data: bytes, head: str | None) -> dict[str, np.ndarray]:
    """Return the outputs of a binary answer of the Open Inference Protocol."""
    from monograph.serve.datatypes import DATATYPES

    at = int(head or len(data))
    found = {}
    for output in json.loads(data[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        dtype = DATATYPES[output["datatype"]].numpy
        x = np.frombuffer(data[at : at + size], dtype).reshape(output["shape"])
        found[output["name"]] = x
        at += size
    return found


@dataclass(frozen=True)
class Rate:
    """Answers a second, and times of answers in milliseconds."""

    rate: float
    p50: float
    p99: float


def wrk(url: str, call: Call, seconds: float, clients: int = CLIENTS) -> Rate:
    """Return the rate at which a server answers clients; each sends one request after the other."""
    program = shutil.which("wrk")
    if program is None:
        raise SystemExit("this benchmark needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder) / "body", Path(folder) / "call.lua"
        body.write_bytes(call.body)
        headers = "\n".join(f'wrk.headers["{n}"] = "{v}"' for n, v in call.headers.items())
        script.write_text(SCRIPT.format(body=body, headers=headers))
        done = subprocess.run(
            [program, "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--latency",
             "--timeout", "30s", "-s", str(script), url + call.path],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    if bad := [line for line in done.splitlines() if "Non-2xx" in line or "Socket errors" in line]:
        raise SystemExit(f"{url}: {bad}")
    rate = re.search(r"Requests/sec:\s*([\d.]+)", done)
    assert rate is not None, done
    return Rate(float(rate[1]), _milliseconds(done, "50%"), _milliseconds(done, "99%"))


def _milliseconds(text: str, name: str) -> float:
    found = re.search(rf"{name}\s+([\d.]+)(us|ms|s)", text)
    assert found is not None, text
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]


async def drive(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, clients: int = CLIENTS
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


async def offer(
    url: str, body: bytes, headers: Mapping[str, str], rate: float, seconds: float
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
