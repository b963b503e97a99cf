"""Requests that repeat the header of an earlier one on their connection take a short way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monograph.serve.http.app import HttpApp
from monograph.serve.keys import ApiKeys
from monograph.serve.listening import Listening
from monograph.serve.protocol import Protocol2
from monograph.serve.repository import Repository
from monograph.serve.settings import Limits, ModelSettings, ServerSettings
from monograph.serve.tensors import TensorModel
from tests.serve.models import WEIGHTS, affine, echo

X = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)


@dataclass
class Here:
    """A server in this process, which counts the requests that take the long way."""

    repository: Repository
    address: tuple[str, int]
    listening: Listening
    long: list[str] = field(default_factory=list)


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, body


def request(x: np.ndarray, path: str = "/v2/models/affine/infer", head: str = "", **more: Any
            ) -> bytes:  # fmt: skip
    given = {"name": "x", "datatype": "FP32", "shape": list(x.shape),
             "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    call = {"inputs": [given], "parameters": {"binary_data_output": True}, **more}
    text = json.dumps(call).encode()
    lines = (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text) + x.nbytes}\r\n"
        f"{head}Inference-Header-Content-Length: {len(text)}\r\n\r\n"
    )
    return lines.encode() + text + x.tobytes()


def outputs(answer: tuple[int, dict[str, str], bytes]) -> tuple[dict[str, Any], np.ndarray]:
    status, headers, body = answer
    assert status == 200, body
    at = int(headers["inference-header-content-length"])
    found = json.loads(body[:at])
    return found, np.frombuffer(body[at:], np.float32).reshape(found["outputs"][0]["shape"])


@contextlib.asynccontextmanager
async def here(folder: Path, limits: Limits | None = None, **given: Any) -> AsyncIterator[Here]:
    one_worker = ModelSettings(threads=1)
    settings = ServerSettings(
        folder, http=0, limits=limits or Limits(), defaults=one_worker, **given
    )
    repository = Repository(settings)
    await asyncio.to_thread(repository.load_all)
    app = HttpApp(Protocol2(repository), ApiKeys(settings.api_keys))
    listening = Listening(settings)
    long: list[str] = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        long.append(scope["path"])
        await app(scope, receive, send)

    listening.add_http(counted, app.repeats)
    host, port = listening.addresses[0].removeprefix("http://").split(":")
    try:
        yield Here(repository, (host, int(port)), listening, long)
    finally:
        await listening.stop()
        await asyncio.to_thread(repository.close)


@contextlib.asynccontextmanager
async def connected(server: Here) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def with_client(
    folder: Path, work: Callable[[Here, Client], Awaitable[None]], **given: Any
) -> None:
    async def run() -> None:
        async with here(folder, **given) as server, connected(server) as client:
            await work(server, client)

    asyncio.run(run())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    affine(tmp_path / "affine" / "1" / "model.onnx")
    echo(tmp_path / "echo.onnx")
    return tmp_path


def test_the_second_request_takes_the_short_way_and_has_its_own_answer(folder: Path) -> None:
    async def work(server: Here, client: Client) -> None:
        for i in range(5):
            found, y = outputs(await client.ask(request(X * i, id=str(i % 2))))
            assert np.array_equal(y, X * i @ WEIGHTS)
            assert found["id"] == str(i % 2)
            assert (found["model_name"], found["model_version"]) == ("affine", "1")
        assert len(server.long) == 1
        answers = [await client.ask(request(X)) for _ in range(2)]
        assert len(server.long) == 2, "another header"
        both = [{**headers, "date": ""} for _, headers, _ in answers]
        assert both[0] == both[1]
        assert answers[0][2] == answers[1][2]
        found, y = outputs(await client.ask(request(X[:1])))
        assert np.array_equal(y, X[:1] @ WEIGHTS)

    with_client(folder, work)


@pytest.mark.parametrize("cut", [-3, -40, 60])
def test_a_body_in_pieces_is_waited_for(folder: Path, cut: int) -> None:
    async def work(server: Here, client: Client) -> None:
        data = request(X)
        await client.ask(data)
        for _ in range(2):
            client.writer.write(data[:cut])
            await client.writer.drain()
            await asyncio.sleep(0.05)
            _, y = outputs(await client.ask(data[cut:]))
            assert np.array_equal(y, X @ WEIGHTS)
        assert len(server.long) == (3 if cut > 0 else 1), "a header in pieces goes the long way"

    with_client(folder, work)


def test_requests_sent_at_once_are_answered_in_order(folder: Path) -> None:
    async def work(server: Here, client: Client) -> None:
        await client.ask(request(X))
        other = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
        client.writer.write(request(X * 2) + request(X * 3) + other + request(X * 4))
        for i in (2, 3, 0, 4):
            answer = await client.answer()
            if i:
                assert np.array_equal(outputs(answer)[1], X * i @ WEIGHTS)
            else:
                assert json.loads(answer[2]) == {"live": True}

    with_client(folder, work)


def test_requests_sent_at_once_may_all_be_late(folder: Path) -> None:
    """The next request of a connection is queued while the error of the last one is written."""

    async def work(server: Here, client: Client) -> None:
        late = request(X, parameters={"binary_data_output": True, "timeout": 1})
        await client.ask(late)
        client.writer.write(late * 20 + request(X))
        statuses = [(await client.answer())[0] for _ in range(21)]
        assert set(statuses[:-1]) == {504}
        assert statuses[-1] == 200
        assert len(server.long) == 2

    with_client(folder, work)


def test_errors_are_those_of_all_requests(folder: Path) -> None:
    async def work(server: Here, client: Client) -> None:
        good = request(X)
        await client.ask(good)
        text = good[good.index(b"\r\n\r\n") + 4 :]
        for old, new, wanted in [
            (b"[2, 4]", b"[4, 2]", b"expected f32[batch, 4]"), (b"FP32", b"FP31", b"datatype"),
            (b'"x"', b'"z"', b"z"), (b'{"inputs"', b'["inputs"', b"JSON"),
        ]:  # fmt: skip
            status, _, body = await client.ask(good.replace(text, text.replace(old, new, 1)))
            assert (status, wanted in body) == (400, True), body
            assert np.array_equal(outputs(await client.ask(good))[1], X @ WEIGHTS)
        await asyncio.to_thread(server.repository.unload, "affine")
        status, _, body = await client.ask(good)
        assert (status, b"unloaded" in body) == (503, True)
        affine(folder / "affine" / "2" / "model.onnx", 2.0)
        await asyncio.to_thread(server.repository.load, "affine")
        found, y = outputs(await client.ask(good))
        assert np.array_equal(y, 2 * X @ WEIGHTS)
        assert found["model_version"] == "2"

    with_client(folder, work)


def test_requests_that_need_more_take_the_long_way(folder: Path) -> None:
    async def work(server: Here, client: Client) -> None:
        for head, status in [("Expect: 100-continue\r\n", 0), ("Accept-Encoding: gzip\r\n", 200)]:
            for i in range(2):
                before = len(server.long)
                client.writer.write(request(X * i, head=head))
                if not status:
                    await client.reader.readuntil(b"100 Continue\r\n\r\n")
                assert (await client.answer())[0] == 200
                assert len(server.long) == before + 1
        for parameters in ({}, {"binary_data_output": False}):
            before = len(server.long)
            for i in range(3):
                status, _, body = await client.ask(request(X * i, parameters=parameters))
                data = json.loads(body)["outputs"][0]["data"]
                assert np.array_equal(np.array(data, np.float32).reshape(2, 3), X * i @ WEIGHTS)
            assert len(server.long) == before + 3

    with_client(folder, work)


def occupy(model: TensorModel) -> None:
    """Let nothing run, as if a run took long."""
    with model.runner._lock:
        model.runner._busy += model.runner.workers.most


def free(model: TensorModel) -> None:
    """End what `occupy` began."""
    with model.runner._lock:
        model.runner._busy -= model.runner.workers.most
        model.runner.workers.call()


def test_a_client_that_leaves_and_a_server_that_ends(folder: Path) -> None:
    async def run() -> None:
        async with here(folder) as server:
            model = server.repository.get("affine")
            assert isinstance(model, TensorModel)
            async with connected(server) as client, connected(server) as other:
                await client.ask(request(X))
                await other.ask(request(X))
                occupy(model)  # by a run that takes long
                client.writer.write(request(X * 2))
                other.writer.write(request(X * 3))
                while model.pending < 2:
                    await asyncio.sleep(0.01)
                client.writer.close()
                await asyncio.sleep(0.1)
                stopping = asyncio.create_task(server.listening.stop())
                await asyncio.sleep(0.2)
                before = model.statistics.runs
                free(model)
                assert np.array_equal(outputs(await other.answer())[1], 3 * X @ WEIGHTS)
                assert model.statistics.rows == 3 * len(X), "the work of the first is dropped"
                assert model.statistics.runs == before + 1
                assert await asyncio.wait_for(other.reader.read(10), 20) == b""
                await stopping

    asyncio.run(run())


def test_a_full_queue_and_a_slow_body_are_refused(folder: Path) -> None:
    async def run() -> None:
        async with here(folder, Limits(queue=1, body_seconds=0.3)) as server:
            model = server.repository.get("affine")
            assert isinstance(model, TensorModel)
            async with connected(server) as client, connected(server) as other:
                await client.ask(request(X))
                await other.ask(request(X))
                occupy(model)
                client.writer.write(request(X * 2))
                while not model.pending:
                    await asyncio.sleep(0.01)
                status, headers, body = await other.ask(request(X))
                assert (status, headers["retry-after"]) == (429, "1"), body
                assert model.statistics.failures["full"] == 1
                free(model)
                assert np.array_equal(outputs(await client.answer())[1], 2 * X @ WEIGHTS)
                assert len(server.long) == 2
                other.writer.write(request(X)[:-1])
                status, headers, _ = await other.answer()
                assert (status, headers["connection"]) == (408, "close")
                assert await other.reader.read(10) == b""

    asyncio.run(run())


def test_a_key_is_checked_before_a_header_is_remembered(folder: Path, tmp_path: Path) -> None:
    key = "a-key-of-some-length"
    (tmp_path / "keys").write_text(key)

    async def work(server: Here, client: Client) -> None:
        good, bad = (request(X, head=f"X-API-Key: {k}\r\n") for k in (key, "b" + key[1:]))
        for i in range(6):
            status, _, _ = await client.ask(bad if i % 2 else good)
            assert status == (401 if i % 2 else 200)
        long = len(server.long)
        assert (await client.ask(good))[0] == 200
        assert (await client.ask(good))[0] == 200
        assert len(server.long) <= long + 1

    with_client(folder, work, api_keys=tmp_path / "keys")


@pytest.mark.parametrize("known", [False, True])
def test_half_a_request_does_not_hold_up_the_end_of_the_server(folder: Path, known: bool) -> None:
    async def run() -> None:
        async with here(folder) as server, connected(server) as client:
            if known:
                await client.ask(request(X))
            client.writer.write(request(X)[:-1])
            await asyncio.sleep(0.2)
            await asyncio.wait_for(server.listening.stop(), 20)
            status, _, body = await client.answer()
            assert (status, b"shutting down" in body) == (503, True)
            assert await client.reader.read(10) == b""

    asyncio.run(run())
