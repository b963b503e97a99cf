"""Mutated requests to a real server: each is answered by a status of the protocol, or cut off.

`python -m tests.serve.test_fuzz_server --count 20000` sends many; the seed is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from monograph.serve.rpc.messages import HEALTH_SERVICE, MESSAGES, SERVICE
from tests.serve.models import WEIGHTS, affine, language
from tests.serve.process import ServerProcess, serving
from tests.serve.test_fuzz import chat_request, http_request, mutated, spoiled
from tests.serve.test_repeated import request

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
LIMITS = "[limits]\nheader_seconds = 0.4\nbody_seconds = 0.4\nheader_bytes = 20000\n"
ANSWERS = {200, 400, 401, 404, 405, 408, 413, 429, 501, 503, 504}
CODES = {
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "UNAVAILABLE", "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
}  # fmt: skip
PATHS = (
    "/v2", "/v2/models/affine", "/v2/models/affine/infer", "/v2/models/affine/versions/1/infer",
    "/v2/models/%61ffine/infer", "/v2/models/../../etc/passwd", "/v2/models/affine/stats", "/",
    "/v2/repository/index", "/v1/models", "/v1/chat/completions", "/v1/completions", "/metrics",
    "/v2/models/none/infer", "//", "/v2/%00", "/%ff%fe", "*", "/" + "a" * 3000,
)  # fmt: skip
METHODS = ("POST", "GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "post", "PRI", "")
HEADERS = (
    "Content-Length", "Transfer-Encoding", "Inference-Header-Content-Length", "Accept-Encoding",
    "Content-Encoding", "Expect", "Connection", "Authorization", "Host", "Upgrade", "X-\x01",
)  # fmt: skip
VALUES = (
    "0", "-1", "99999999999999999999", "7", "chunked", "gzip", "deflate", "100-continue", "close",
    "Bearer x", "h2c", "identity", "", "\xff", "a, b", "+5", "0x10", "a" * 9000,
)  # fmt: skip
METHODS_OF_GRPC = (
    "ServerLive", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelInfer",
    "ModelInfer", "ModelConfig", "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus",
    "RepositoryModelLoad", "None",
)  # fmt: skip
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def made_request(rng: random.Random) -> bytes:
    """Return a request of HTTP that is a little or very wrong."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(1, 400))
    kind = rng.random()
    if kind < 0.4:
        data = request(X)
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
    else:
        call, data = http_request()
        if kind < 0.7:
            body = json.dumps(mutated(chat_request() | {"model": "llama"}, rng)).encode()
        else:
            body = json.dumps(mutated(call, rng)).encode() + data
        path = "/v1/completions" if kind < 0.7 else "/v2/models/affine/infer"
        lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}"]
        if kind >= 0.7:
            lines.append(f"Inference-Header-Content-Length: {len(body) - len(data)}")
    if rng.random() < 0.2:
        lines[0] = f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/1.{rng.randrange(3)}"
    if rng.random() < 0.25:
        lines.append(f"{rng.choice(HEADERS)}: {rng.choice(VALUES)}")
    if rng.random() < 0.1:
        del lines[rng.randrange(len(lines))]
    if rng.random() < 0.2:
        body = spoiled(body, rng)
    found = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    return spoiled(found, rng) if rng.random() < 0.05 else found


WAIT = 300.0
"""The longest wait for an answer, in seconds: the machine may be busy."""


@dataclass
class Fuzzer:
    """Sends requests to a server, and counts what comes back."""

    server: ServerProcess
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    async def http(self, numbers: range) -> None:
        """Send requests, each on a connection of its own."""
        host, port = self.server.address.split(":")
        for i in numbers:
            rng = random.Random(f"{self.seed}/{i}")
            reader, writer = await asyncio.open_connection(host, int(port))
            data = made_request(rng) if rng.random() < 0.9 else request(X)
            cut = rng.randrange(len(data))
            try:
                for part in (data[:cut], data[cut:]) if rng.random() < 0.2 else (data,):
                    writer.write(part)
                    await writer.drain()
                found = await asyncio.wait_for(_status(reader, not data.startswith(b"HEAD ")), WAIT)
            except (ConnectionError, asyncio.IncompleteReadError):
                found = 0
            except TimeoutError:
                raise AssertionError(f"seed {self.seed}, request {i}: no answer") from None
            assert found in ANSWERS or found == 0, f"seed {self.seed}, request {i}: status {found}"
            self.counts[f"http {found or 'cut off'}"] += 1
            # What is left of a request is of no interest.
            writer.close()

    async def repeated(self, numbers: range) -> None:
        """Send right requests and slightly wrong ones on one connection."""
        host, port = self.server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        good = request(X)
        start = good.index(b"\r\n\r\n") + 4
        for i in numbers:
            rng = random.Random(f"{self.seed}/r{i}")
            text = bytearray(good[start:])
            if rng.random() < 0.5:
                text[rng.randrange(len(text))] = rng.randrange(256)
            writer.write(good[:start] + text)
            found = await asyncio.wait_for(_status(reader), WAIT)
            assert found in (200, 400), f"seed {self.seed}, repeated request {i}: status {found}"
            self.counts[f"repeated {found}"] += 1
        writer.close()

    async def grpc(self, numbers: range) -> None:
        """Send messages of gRPC."""
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(self.server.grpc, options) as channel:
            for i in numbers:
                rng = random.Random(f"{self.seed}/g{i}")
                method = rng.choice(METHODS_OF_GRPC)
                service = HEALTH_SERVICE if rng.random() < 0.02 else SERVICE
                made = MESSAGES["ModelInferRequest"](model_name=rng.choice(["affine", "m", ""]))
                given = made.inputs.add(name="x", datatype=rng.choice(["FP32", "BYTES", "INT8"]))
                given.shape.extend(rng.choices([1, 2, 4, 0, -1, 2**40], k=rng.randrange(4)))
                made.raw_input_contents.append(rng.randbytes(rng.choice([0, 16, 32, 33])))
                data = spoiled(made.SerializeToString(), rng)
                if rng.random() < 0.1:
                    data = rng.randbytes(rng.randrange(60))
                try:
                    await channel.unary_unary(f"/{service}/{method}")(data, timeout=WAIT)
                    code = "OK"
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                assert code in CODES, f"seed {self.seed}, message {i} to {method}: {code}"
                self.counts[f"grpc {code}"] += 1

    async def run(self, count: int) -> None:
        """Send that many requests, a part of them by each way."""
        third = count // 8
        await asyncio.gather(
            *[self.http(range(k * third, (k + 1) * third)) for k in range(4)],
            *[self.repeated(range(k * third, (k + 1) * third)) for k in range(2)],
            *[self.grpc(range(k * third, (k + 1) * third)) for k in range(2)],
        )


async def _status(reader: asyncio.StreamReader, body: bool = True) -> int:
    """Return the status of an answer after reading the whole of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\ncontent-length: (\d+)", head, re.I)
    if size is not None and body:
        await reader.readexactly(int(size[1]))
    return int(head.split()[1])


def run(folder: Path, count: int, seed: int) -> dict[str, object]:
    """Fuzz a server; return the counts, and its memory before and after the second half."""
    language(folder)
    affine(folder / "affine.onnx")
    with (folder / "monograph.toml").open("a") as file:
        file.write(LIMITS)
    with serving(folder, grpc=True) as server:
        fuzzer = Fuzzer(server, seed)
        memory = []
        for part in range(2):
            fuzzer.seed = seed + part
            asyncio.run(fuzzer.run(count // 2))
            memory.append(_resident(server))
        body = json.dumps({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": X.ravel().tolist()}
        ]}).encode()  # fmt: skip
        server.get("/v2/repository/models/affine/load", b"")
        status, answer = server.get("/v2/models/affine/infer", body)
        assert status == 200
        y = np.array(json.loads(answer)["outputs"][0]["data"], np.float32).reshape(2, 3)
        assert np.array_equal(y, X @ WEIGHTS)
        assert server.process.poll() is None
        metrics = server.get("/metrics")[1].decode()
        assert 'outcome="internal"' not in metrics
        assert "Traceback" not in "".join(server.lines), "".join(server.lines)[-3000:]
        assert server.stop() == 0
    return {"counts": dict(fuzzer.counts), "memory KiB": memory}


def _resident(server: ServerProcess) -> int:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_a_server_answers_mutated_requests_by_errors_of_the_protocol(tmp_path: Path) -> None:
    found = run(tmp_path, 1600, SEED)
    print(f"seed {SEED}: {found}")
    counts = found["counts"]
    assert isinstance(counts, dict)
    for name in ("http 200", "http 400", "http 404", "repeated 200", "repeated 400", "grpc OK",
                 "grpc INVALID_ARGUMENT", "grpc UNIMPLEMENTED"):  # fmt: skip
        assert counts.get(name, 0) > 5, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(run(Path(scratch), arguments.count, arguments.seed), indent=1))
