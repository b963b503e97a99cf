"""Two of three nodes are killed under load: every answer is right, and comes once."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it")

from monograph.generate.batching.options import RequestOptions
from monograph.serve.folder import find_models
from monograph.serve.language.generation import LanguageModel
from monograph.serve.served import TokenRequest
from monograph.serve.settings import read_settings
from tests.serve.models import language, save
from tests.serve.ray.cluster import RayApplication, running

REQUESTS, STREAMS, TOKENS = 400, 50, 80
AT_ONCE, PART = 16, 160
QUIET = 8.0
"""The seconds after which a request that waits, while others are answered, is at a stopped node."""
SETTINGS = """
[limits]
request_seconds = 240
[models.llama]
max_length = 96
slots = 4
batch_invariant = true
[models.deep]
batch = false
[ray]
min_replicas = 3
max_replicas = 3
max_per_node = 1
"""


WIDTHS = (4, 2048, 2048, 2048, 3)


def layers() -> list[np.ndarray]:
    """The weights of `deep`: they take so long to read that requests are running at any time."""
    rng = np.random.default_rng(0)
    pairs = pairwise(WIDTHS)
    return [rng.normal(0, n**-0.5, (n, m)).astype(np.float32) for n, m in pairs]


def deep(path: Path) -> None:
    """Products with Relu between them."""
    weights = {f"w{i}": w for i, w in enumerate(layers())}
    names = ["x", *(f"v{i}" for i in range(6)), "y"]
    nodes = [
        helper.make_node("Relu", [a], [b]) if i % 2 else
        helper.make_node("MatMul", [a, f"w{i // 2}"], [b])
        for i, (a, b) in enumerate(pairwise(names))
    ]  # fmt: skip
    save(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        **weights,
    )


def expected_rows() -> np.ndarray:
    """The outputs for all requests."""
    x = np.array([row(i) for i in range(REQUESTS)], np.float32)
    first, *others = layers()
    x = x @ first
    for w in others:
        x = np.maximum(x, 0) @ w
    return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = language(tmp_path_factory.mktemp("models"))
    deep(made / "deep.onnx")
    (made / "monograph.toml").write_text(SETTINGS)
    return made


@pytest.fixture(scope="module")
def application(folder: Path) -> Iterator[RayApplication]:
    with running(folder, 3) as made:
        yield made


def sampling(i: int) -> dict[str, Any]:
    """The options of a stream: greedy, drawn, or drawn with penalties."""
    if i % 3 == 0:
        return {"temperature": 0, "seed": i}
    more = {"frequency_penalty": 0.4, "presence_penalty": 0.3} if i % 3 == 1 else {}
    return {"temperature": 1.1, "top_p": 0.95, "seed": i, **more}


def prompt(i: int) -> list[int]:
    return [5 + i, 9, 17 + i % 7]


def expected_streams(folder: Path) -> list[tuple[list[str], list[str]]]:
    """The texts of all streams, piece by piece, and their ends, by one model in this process."""
    settings = read_settings(folder)
    found = find_models(settings)["llama"]["1"]
    model = LanguageModel(found, settings.for_model("llama"), settings.limits)

    async def one(i: int) -> tuple[list[str], list[str]]:
        request = TokenRequest(tuple(prompt(i)), TOKENS, RequestOptions(**sampling(i)))
        tokens = [t async for t in model.generate(request) if t.text or t.finish]
        return [t.text for t in tokens], [t.finish for t in tokens if t.finish]

    async def run() -> list[tuple[list[str], list[str]]]:
        return [await one(i) for i in range(STREAMS)]

    try:
        return asyncio.run(run())
    finally:
        model.close()


@dataclass
class Load:
    """Requests and streams that run, and their answers."""

    url: str
    released: int = 0
    """The number of requests that may be sent by now; streams begin in the same measure."""
    running: set[int] = field(default_factory=set)
    """The requests that wait for an answer."""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    texts: dict[int, list[str]] = field(default_factory=dict)
    finished: dict[int, list[str]] = field(default_factory=dict)

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=STREAMS + AT_ONCE)
        async with httpx.AsyncClient(base_url=self.url, timeout=300, limits=limits) as client:
            rest = iter(range(REQUESTS))
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._ask(client, rest))
                for i in range(STREAMS):
                    group.create_task(self._stream(client, i))

    async def _ask(self, client: httpx.AsyncClient, rest: Iterator[int]) -> None:
        for i in rest:
            while i >= self.released:
                await asyncio.sleep(0.01)
            x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": row(i)}
            self.running.add(i)
            answer = await client.post("/v2/models/deep/infer", json={"id": str(i), "inputs": [x]})
            self.running.remove(i)
            assert answer.status_code == 200, answer.text
            self.answers.append((i, answer.json()))

    async def _stream(self, client: httpx.AsyncClient, i: int) -> None:
        while i >= self.released * STREAMS / REQUESTS:
            await asyncio.sleep(0.01)
        body = {
            "model": "llama", "prompt": prompt(i), "max_tokens": TOKENS, "stream": True,
            **sampling(i),
        }  # fmt: skip
        texts, finished = self.texts.setdefault(i, []), self.finished.setdefault(i, [])
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                part = json.loads(line[6:])
                assert "error" not in part, part
                choice = part["choices"][0]
                texts.append(choice["text"])
                if choice["finish_reason"]:
                    finished.append(choice["finish_reason"])

    @property
    def progress(self) -> tuple[int, int]:
        """The answers, and the tokens of streams, up to now."""
        return len(self.answers), sum(map(len, self.texts.values()))


def row(i: int) -> list[float]:
    return [float(i), i + 0.5, -float(i), 1.0]


async def kill_under_load(application: RayApplication, load: Load) -> set[int]:
    """Kill one node that has requests, and one while streams run; return these requests."""
    work = asyncio.create_task(load.run())

    async def until(true: Callable[[], bool]) -> None:
        while not true():
            assert not work.done(), "the load ended before the nodes were killed"
            await asyncio.sleep(0.005)

    async def answered(count: int) -> None:
        await until(lambda: load.progress[0] >= count)

    first, second = application.others
    processes = application.processes(first)
    while True:
        answers = load.progress[0]
        assert answers + 4 <= REQUESTS - PART, "no request was at the node whenever it was stopped"
        load.released = min(answers + 4 * AT_ONCE, REQUESTS - PART)
        await answered(answers + 4)
        application.stop(processes)
        lost = await stuck(load)
        if lost:
            break
        application.go_on(processes)
    application.kill(first, processes)

    _, tokens = load.progress
    processes = application.processes(second)
    load.released = REQUESTS - AT_ONCE
    await until(lambda: load.progress[1] >= tokens + AT_ONCE)
    application.kill(second, processes)
    load.released = REQUESTS
    await work
    return lost


async def stuck(load: Load) -> set[int]:
    """Return the requests at a node that was stopped just now: they stay without an answer.

    A request that only looks for a node finds another one within a second, or when others do.
    """
    waiting = set(load.running)
    left, answers, since = waiting, load.progress[0], time.monotonic()
    while left:
        load.released = min(load.released + 1, REQUESTS - PART)
        await asyncio.sleep(0.1)
        if left != waiting & load.running:
            left, answers, since = waiting & load.running, load.progress[0], time.monotonic()
        others = load.progress[0] - answers
        if time.monotonic() > since + (QUIET if others >= AT_ONCE else 6 * QUIET):
            break
    return left


def test_no_answer_is_lost_wrong_or_given_twice(application: RayApplication, folder: Path) -> None:
    expected = expected_streams(folder)
    load = Load(application.url)
    lost = asyncio.run(kill_under_load(application, load))

    assert sorted(i for i, _ in load.answers) == [*range(REQUESTS)]
    wanted = expected_rows()
    tolerance = 1e-5 * np.abs(wanted).max()
    for i, answer in load.answers:
        assert answer["id"] == str(i)
        np.testing.assert_allclose(answer["outputs"][0]["data"], wanted[i], atol=tolerance)
    assert [(load.texts[i], load.finished[i]) for i in range(STREAMS)] == expected

    metrics = application.get("/metrics")[1].decode()
    assert counted(metrics, "requests", 'model="deep",outcome="success"') == REQUESTS
    assert counted(metrics, "requests", 'model="llama",outcome="success"') == STREAMS
    retries = [line for line in metrics.splitlines() if "retries_total{" in line]
    # Ray itself sends a request again that a replica had not accepted: `deep` may have none here.
    sent_again = [
        counted(metrics, "retries", f'model="llama",reason="{why}"')
        for why in ("lost", "continued")
    ]
    assert sum(sent_again) > 0, retries
    print(f"lost: {sorted(lost)}", *retries, sep="\n")


def counted(metrics: str, name: str, labels: str) -> float:
    found = re.search(rf"^monograph_{name}_total{{{labels}[^}}]*}} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0
