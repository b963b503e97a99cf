"""A server under good clients and broken ones: answers stay right, and memory stays where it is.

    python -m benchmarks.serve_soak --seconds 600

Good requests come at 80% of the rate that the server sustains without the others; each answer is
compared with that of a session in this process. Broken clients disconnect in the middle, send
garbage, slow headers, too large bodies, wrong shapes and names of unknown models, open streams of
tokens and of gRPC and leave them; they never stop. Everything runs on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import numpy as np
from tests.serve.models import language, repository
from tests.serve.process import ServerProcess, serving

import monograph
from benchmarks.serve_load import binary
from monograph.serve.rpc.messages import MESSAGES, SERVICE

SHARED = Path(__file__).parents[2] / "shared" / "models"
CLIENTS, BAD, LOAD = 32, 8, 0.8
PAUSE = 0.05
"""Seconds between two requests of a broken client."""
CASES = 16
PATH = "/v2/models/{}/infer"
STREAM = {"model": "llama", "prompt": [5, 6, 7], "max_tokens": 60, "stream": True}


@dataclass
class Case:
    """A request, and the outputs that it must have."""

    body: bytes
    headers: dict[str, str]
    outputs: list[np.ndarray]

    def holds(self, answer: bytes, head: str | None) -> bool:
        """Return True if an answer is right."""
        at = int(head or 0)
        found = json.loads(answer[:at])["outputs"]
        for given, wanted in zip(found, self.outputs, strict=True):
            size = given["parameters"]["binary_data_size"]
            x = np.frombuffer(answer[at : at + size], wanted.dtype)
            at += size
            close = x.size == wanted.size and np.allclose(
                x, wanted.ravel(), rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max())
            )
            if not close:
                return False
        return True


def cases(folder: Path) -> list[Case]:
    """Return requests of one to three rows, with the answers of a session here."""
    io = np.load(folder / "io.npz")
    given = {k[3:]: io[k] for k in io.files if k.startswith("in:")}
    rng = np.random.default_rng(0)
    made = []
    with monograph.load(folder / "model.onnx", "cpu") as session:
        for i in range(CASES):
            rows = rng.integers(0, len(next(iter(given.values()))), 1 + i % 3)
            feeds = {n: np.ascontiguousarray(x[rows]) for n, x in given.items()}
            for x in feeds.values():
                if x.dtype.kind == "f":
                    x *= np.float32(rng.uniform(0.5, 1))
            made.append(Case(*binary(feeds), session.run(feeds)))
    return made


@dataclass
class Soak:
    """A server and what came of its requests."""

    server: ServerProcess
    name: str
    cases: list[Case]
    counts: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)

    async def ask(self, session: aiohttp.ClientSession, i: int) -> None:
        """Send a right request and check its answer."""
        case = self.cases[i % len(self.cases)]
        url = self.server.url + PATH.format(self.name)
        try:
            async with session.post(url, data=case.body, headers=case.headers) as answer:
                data = await answer.read()
                head = answer.headers.get("Inference-Header-Content-Length")
        except aiohttp.ClientError as error:
            self.counts[f"lost: {type(error).__name__}"] += 1
            return
        if answer.status != 200:
            self.counts[f"status {answer.status}"] += 1
        else:
            self.counts["right" if case.holds(data, head) else "wrong"] += 1

    async def peak(self, seconds: float) -> float:
        """Return the rate of right answers to clients that send one request after the other."""
        end = time.monotonic() + seconds
        async with _session() as session:

            async def client(i: int) -> None:
                while time.monotonic() < end:
                    await self.ask(session, i)
                    i += 1

            before = self.counts["right"]
            await asyncio.gather(*[client(i) for i in range(CLIENTS)])
        return (self.counts["right"] - before) / seconds

    async def offered(self, rate: float, seconds: float) -> None:
        """Send right requests at a rate."""
        started = time.monotonic()
        async with _session() as session:
            tasks: set[asyncio.Task[None]] = set()
            for i in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, started + i / rate - time.monotonic()))
                task = asyncio.create_task(self.ask(session, i))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)

    async def broken(self, end: float, seed: int) -> None:
        """Send broken requests, each on a connection of its own."""
        rng = random.Random(seed)
        kinds: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            **{name: self._sent(data) for name, data in self._requests().items()},
            "slow header": self._slow_header, "tokens left": self._tokens_left,
            "grpc stream left": self._grpc_left, "grpc garbage": self._grpc_garbage,
        }  # fmt: skip
        while time.monotonic() < end:
            kind = rng.choice(list(kinds))
            self.bad[kind] += 1
            try:
                await asyncio.wait_for(kinds[kind](rng), 30)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                self.bad["cut off"] += 1
            await asyncio.sleep(PAUSE)

    def _requests(self) -> dict[str, bytes]:
        case, path = self.cases[0], PATH.format(self.name)
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode()
        length = "Inference-Header-Content-Length"
        whole = head + b"%s: %s\r\nContent-Length: %d\r\n\r\n" % (
            length.encode(), case.headers[length].encode(), len(case.body),
        ) + case.body  # fmt: skip
        return {
            "half a body": whole[:-10],
            "garbage": b"\x00\xff" * 150,
            "oversized": head + b"Content-Length: 99999999999\r\n\r\n",
            "large header": head + b"X: " + b"a" * 200_000,
            "endless chunks": head + b"Transfer-Encoding: chunked\r\n\r\n" + b"5\r\naaaaa\r\n" * 99,
            "no JSON": head + b"Content-Length: 4\r\n\r\n{{{{",
            "wrong shape": re.sub(rb'"shape": \[\d', b'"shape": [9', whole),
            "unknown model": whole.replace(path.encode(), PATH.format("none").encode()),
            "gone": whole,
        }

    def _sent(self, data: bytes) -> Callable[[random.Random], Awaitable[None]]:
        async def send(rng: random.Random) -> None:
            host, port = self.server.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(data)
                await writer.drain()
                if rng.random() < 0.5:
                    await asyncio.wait_for(reader.read(500), 0.5)
            finally:
                writer.close()

        return send

    async def _slow_header(self, rng: random.Random) -> None:
        host, port = self.server.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        for c in b"POST /v2/models HTTP/1.1\r\nHost: aaaaaaaaaaaaaa":
            if writer.is_closing():
                break
            writer.write(bytes([c]))
            await asyncio.sleep(0.3)
        writer.close()

    async def _tokens_left(self, rng: random.Random) -> None:
        """Ask for a stream of tokens, read some of it or nothing, and leave it."""
        host, port = self.server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(STREAM).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        if rng.random() < 0.5:
            await reader.read(200)
        await asyncio.sleep(rng.random())
        if rng.random() < 0.5:  # without a word
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(1, 13, linger)
        writer.close()

    async def _grpc_left(self, rng: random.Random) -> None:
        """Open a stream of gRPC, send a request or none, and leave it."""
        async with grpc.aio.insecure_channel(self.server.grpc) as channel:
            call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")()
            for _ in range(rng.randrange(3)):
                await call.write(MESSAGES["ModelInferRequest"](model_name="affine", id="1")
                                 .SerializeToString())  # fmt: skip
            await asyncio.sleep(rng.random() / 5)
            call.cancel()

    async def _grpc_garbage(self, rng: random.Random) -> None:
        async with grpc.aio.insecure_channel(self.server.grpc) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/{rng.choice(['ModelInfer', 'None'])}")
            with contextlib.suppress(grpc.aio.AioRpcError):
                await ask(rng.randbytes(rng.randrange(200)), timeout=5)

    async def watch(self, end: float) -> None:
        """Note the memory of the server every five seconds."""
        while time.monotonic() < end:
            self.memory.append((time.monotonic(), resident(self.server)))
            await asyncio.sleep(5)

    async def run(self, seconds: float) -> dict[str, Any]:
        """Return what came of the requests."""
        await self.peak(3)
        peak = await self.peak(10)
        compiled = compilations(self.server)
        self.counts.clear()
        started = time.monotonic()
        end = started + seconds
        others = [self.broken(end, i) for i in range(BAD)]
        await asyncio.gather(self.offered(LOAD * peak, seconds), self.watch(end), *others)
        await asyncio.sleep(2)
        minute = [m for t, m in self.memory if t - started <= min(60, seconds / 3)][-1]
        later = [m for t, m in self.memory if t - started > min(60, seconds / 3)]
        return {
            "model": self.name, "seconds": seconds, "peak": peak, "offered": LOAD * peak,
            "answers": dict(self.counts), "broken requests": dict(self.bad),
            "memory KiB": {"first minute": minute, "most": max(later), "end": later[-1],
                           "growth": max(later) / minute - 1},
            "compilations": compilations(self.server) - compiled,
        }  # fmt: skip


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


def resident(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def compilations(server: ServerProcess) -> float:
    """Return the number of compilations since the start of all models."""
    text = server.get("/metrics")[1].decode()
    return sum(
        float(n) for n in re.findall(r"^monograph_compilations_total{.*} (\S+)$", text, re.M)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--model", default="hf_bert_sdpa")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = language(repository(Path(scratch)))
        (folder / arguments.model).mkdir()
        for file in (SHARED / arguments.model).glob("model.onnx*"):
            (folder / arguments.model / file.name).symlink_to(file)
        with serving(folder, grpc=True) as server:
            soak = Soak(server, arguments.model, cases(SHARED / arguments.model))
            found = asyncio.run(soak.run(arguments.seconds))
            found["alive"] = server.process.poll() is None
            found["internal errors"] = sum("Traceback" in line for line in server.lines)
            found["exit code after SIGTERM"] = server.stop()
    print(json.dumps(found, indent=1))
    if arguments.results:
        known = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
        known["soak"] = found
        arguments.results.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
