"""A server under good clients and bad ones: answers stay right, and memory stays where it is.

    python -m benchmarks.serve_soak --seconds 600

Bad clients disconnect in the middle, send garbage, slow headers, too large bodies, wrong shapes and
names of unknown models; they never stop. Everything runs on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
from tests.serve.models import WEIGHTS, repository
from tests.serve.process import ServerProcess, serving

from benchmarks.serve import binary

GOOD, BAD = 8, 8
PATH = "/v2/models/affine/versions/1/infer"


async def good(server: ServerProcess, end: float, pause: float, seed: int) -> Counter[str]:
    """Send right requests one after the other, and check each answer."""
    found: Counter[str] = Counter()
    rng = np.random.default_rng(seed)
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            x = rng.standard_normal((1 + seed % 4, 4)).astype(np.float32)
            body, headers = binary({"x": x})
            async with session.post(server.url + PATH, data=body, headers=headers) as answer:
                data = await answer.read()
                size = int(answer.headers.get("Inference-Header-Content-Length", 0))
            y = np.frombuffer(data[size:], np.float32) if answer.status == 200 else np.empty(0)
            wanted = (x @ WEIGHTS).ravel()
            right = y.size == wanted.size and np.allclose(y, wanted, rtol=1e-4, atol=1e-5)
            found["right" if right else f"wrong ({answer.status})"] += 1
            await asyncio.sleep(pause)
    return found


async def bad(server: ServerProcess, end: float, seed: int) -> Counter[str]:
    """Send broken requests, each on a connection of its own."""
    host, port = server.address.split(":")
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    body, _ = binary({"x": np.ones((1, 4), np.float32)})
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: ".encode()
    sent = {
        "half a body": head + b"1000\r\n\r\n{",
        "garbage": rng.randbytes(300),
        "half a header": head,
        "oversized": head + b"99999999999\r\n\r\n",
        "no JSON": head + b"4\r\n\r\n{{{{",
        "wrong shape": head + b"%d\r\n\r\n" % len(body) + body.replace(b"[1, 4]", b"[1, 5]"),
        "unknown model": b"GET /v2/models/none HTTP/1.1\r\nHost: a\r\n\r\n",
        "gone": head + b"%d\r\n\r\n" % len(body) + body,
    }
    while time.monotonic() < end:
        kind = rng.choice(list(sent))
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent[kind])
            await writer.drain()
            if kind not in ("half a header", "half a body", "gone"):
                await asyncio.wait_for(reader.read(500), 5)
            writer.close()
        except (OSError, TimeoutError):
            found["refused"] += 1
        found[kind] += 1
        await asyncio.sleep(0.02)
    return found


def resident(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


async def soak(server: ServerProcess, seconds: float) -> dict[str, object]:
    end = time.monotonic() + seconds
    clients = [good(server, end, 0.004, i) for i in range(GOOD)]
    clients += [bad(server, end, i) for i in range(BAD)]
    tasks = [asyncio.create_task(c) for c in clients]
    await asyncio.sleep(min(60, seconds / 3))
    before = resident(server)
    found: Counter[str] = Counter()
    for task in tasks:
        found += await task
    return {"requests": dict(found), "memory KiB": (before, resident(server))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(repository(Path(folder))) as server:
        found = asyncio.run(soak(server, arguments.seconds))
        metrics = server.get("/metrics")[1].decode().splitlines()
        found["compilations"] = [m for m in metrics if m.startswith("monograph_compilations_total")]
        found["alive"] = server.process.poll() is None
        found["internal errors"] = sum("Traceback" in line for line in server.lines)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
