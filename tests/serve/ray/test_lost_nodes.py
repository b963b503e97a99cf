"""Two of three nodes are killed under load: every answer is right, and comes once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it")

from monograph.generate.batching.options import RequestOptions
from monograph.serve.folder import find_models
from monograph.serve.language.generation import LanguageModel
from monograph.serve.served import TokenRequest
from monograph.serve.settings import read_settings
from tests.serve.models import WEIGHTS, affine, language
from tests.serve.ray.cluster import RayApplication, running

REQUESTS, STREAMS, TOKENS = 400, 50, 80
AT_ONCE = 16
SETTINGS = """
[limits]
request_seconds = 240
[models.llama]
max_length = 96
slots = 4
batch_invariant = true
[ray]
min_replicas = 3
max_replicas = 3
max_per_node = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = language(tmp_path_factory.mktemp("models"))
    affine(made / "affine.onnx")
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
            x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": row(i)}
            answer = await client.post(
                "/v2/models/affine/infer", json={"id": str(i), "inputs": [x]}
            )
            assert answer.status_code == 200, answer.text
            self.answers.append((i, answer.json()))

    async def _stream(self, client: httpx.AsyncClient, i: int) -> None:
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


async def kill_under_load(application: RayApplication, load: Load) -> None:
    """Kill two nodes, each when some requests and tokens have been answered."""
    work = asyncio.create_task(load.run())
    for node, share in zip(application.others, (0.1, 0.4), strict=True):
        while not work.done():
            answers, tokens = load.progress
            if answers >= share * REQUESTS and tokens >= share * STREAMS * TOKENS:
                break
            await asyncio.sleep(0.01)
        assert not work.done(), "the load ended before the nodes were killed"
        application.freeze(node)
        for _ in range(20):  # until requests wait for the node that does not answer
            before = load.progress
            await asyncio.sleep(0.1)
            if load.progress == before:
                break
        await asyncio.to_thread(application.kill, node)
    await work


def test_no_answer_is_lost_wrong_or_given_twice(application: RayApplication, folder: Path) -> None:
    expected = expected_streams(folder)
    load = Load(application.url)
    asyncio.run(kill_under_load(application, load))

    assert sorted(i for i, _ in load.answers) == [*range(REQUESTS)]
    for i, answer in load.answers:
        assert answer["id"] == str(i)
        wanted = np.array(row(i), np.float32) @ WEIGHTS
        np.testing.assert_allclose(answer["outputs"][0]["data"], wanted, rtol=1e-5, atol=1e-4)
    assert [(load.texts[i], load.finished[i]) for i in range(STREAMS)] == expected

    metrics = application.get("/metrics")[1].decode()
    assert counted(metrics, "requests", 'model="affine",outcome="success"') == REQUESTS
    assert counted(metrics, "requests", 'model="llama",outcome="success"') == STREAMS
    assert counted(metrics, "retries", 'model="affine",reason="lost"') > 0
    assert counted(metrics, "retries", 'model="llama",reason="continued"') > 0
    print([line for line in metrics.splitlines() if line.startswith("monograph_retries_total")])


def counted(metrics: str, name: str, labels: str) -> float:
    found = re.search(rf"^monograph_{name}_total{{{labels}[^}}]*}} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0
