"""Requests that share runs: their answers, what waits apart, and what statistics tell."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from monograph.errors import ConfigError
from monograph.serve.batches import BatchAxes, row_difference
from monograph.serve.failures import Failure, RequestError
from monograph.serve.folder import Found
from monograph.serve.runner import Runner
from monograph.serve.settings import Limits, ModelSettings
from monograph.serve.statistics import ModelStatistics
from monograph.serve.tensors import TensorModel
from tests.serve.models import WEIGHTS, affine, save

AXES = BatchAxes({"x": 0}, {"y": 0})


class Slow:
    """A model whose runs wait until the test lets them go on."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        self.go = threading.Semaphore(0)

    def __call__(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.go.acquire()
        self.seen.append(feeds["x"].copy())
        if (feeds["x"] < 0).any():
            raise RequestError(Failure.INVALID, "a number is negative")
        return [feeds["x"] * 2]


def with_runner(
    work: Callable[[Runner, Slow], Any],
    limits: Limits | None = None,
    workers: int = 1,
    expect: Callable[[int], None] = lambda more: None,
) -> Any:
    async def run() -> Any:
        slow = Slow()
        counted = limits or Limits()
        runner = Runner(slow, ["y"], ModelStatistics(), counted, AXES, 8, "slow", workers, expect)
        try:
            return await work(runner, slow)
        finally:
            for _ in range(100):
                slow.go.release()
            await asyncio.to_thread(runner.close)

    with mock.patch("monograph.serve.runner.SHORT", 0.0):  # no run in the event loop: it would wait
        return asyncio.run(run())


def ask(runner: Runner, *rows: float, width: int = 2, seconds: float = 30) -> Any:
    x = np.repeat(np.array(rows, np.float32)[:, None], width, 1)
    return asyncio.ensure_future(runner.submit({"x": x}, time.monotonic() + seconds))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_what_waits_when_the_device_is_free_runs_together() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        first = ask(runner, 1)
        await until(lambda: runner.pending == 1 and not runner.depth)
        later = [ask(runner, i, i + 0.5) for i in range(2, 7)]
        wide = ask(runner, 9, width=3)
        await until(lambda: runner.depth == 6)
        for _ in range(4):
            slow.go.release()
        answers = await asyncio.gather(first, *later, wide)
        assert [x.shape for x in slow.seen] == [(1, 2), (8, 2), (2, 2), (1, 3)] or [
            x.shape for x in slow.seen
        ] == [(1, 2), (8, 2), (1, 3), (2, 2)]
        for i, (y,) in zip(range(2, 7), answers[1:-1], strict=True):
            assert y.tolist() == [[2 * i] * 2, [2 * i + 1] * 2]
        assert answers[1][0].base is answers[2][0].base is not None, "answers are views"

    with_runner(work)


def test_workers_run_at_the_same_time_with_buffers_of_their_own() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        first: list[Any] = []
        for i in (1, 2):  # each to a worker of its own
            first.append(ask(runner, i))
            await until(lambda: runner.pending == len(first) and not runner.depth)
        later = [ask(runner, i, i + 0.5) for i in range(3, 7)]
        await until(lambda: runner.depth == 4)
        slow.go.release()
        await until(lambda: not runner.depth)  # a worker took all that waits
        last = [ask(runner, 7), ask(runner, 8)]
        await until(lambda: runner.depth == 2)
        for _ in range(3):
            slow.go.release()
        answers = await asyncio.gather(*first, *later, *last)
        assert sorted(len(x) for x in slow.seen) == [1, 1, 2, 8]
        for i, (y,) in zip([1, 2, 3, 4, 5, 6, 7, 8], answers, strict=True):
            assert y[0].tolist() == [2 * i] * 2
        assert runner.pending == 0

    with_runner(work, workers=2)


def test_requests_that_follow_each_other_stay_with_one_worker() -> None:
    told: list[int] = []

    async def work(runner: Runner, slow: Slow) -> None:
        for i in range(5):
            slow.go.release()
            await ask(runner, i)
        assert threads_of(runner) == 1
        assert told == [1] or sum(told) == 1, "a pause of this machine may end the worker's time"
        both = [ask(runner, 1)]
        await until(lambda: runner.pending == 1 and not runner.depth)
        both.append(ask(runner, 2))
        await until(lambda: runner.pending == 2 and not runner.depth)
        assert (threads_of(runner), sum(told)) == (2, 2)
        slow.go.release()
        slow.go.release()
        await asyncio.gather(*both)
        await until(lambda: sum(told) == 0)  # workers without work are not expected any more
        assert runner.workers.active == 0

    with_runner(work, workers=2, expect=told.append)


def test_what_a_batch_leaves_goes_to_another_worker_at_once() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        asked = [ask(runner, i) for i in range(12)]
        await until(lambda: runner.pending == 12 and not runner.depth)
        for _ in range(2):
            slow.go.release()
        answers = await asyncio.gather(*asked)
        assert [y[0, 0] for (y,) in answers] == [2 * i for i in range(12)]
        assert sorted(len(x) for x in slow.seen) == [4, 8]

    with_runner(work, workers=3)


def test_a_runner_closes_after_the_batches_of_all_workers() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        asked: list[Any] = []
        for i in range(4):
            asked.append(ask(runner, i))
            await until(lambda: runner.pending == len(asked))
            await until(lambda: runner.depth == max(0, len(asked) - 2))
        closing = asyncio.ensure_future(asyncio.to_thread(runner.close))
        for _ in range(4):
            slow.go.release()
        answers = await asyncio.gather(*asked)
        assert [y[0, 0] for (y,) in answers] == [0, 2, 4, 6]
        await closing
        assert not any(worker.thread.is_alive() for worker in runner.workers._all)
        with pytest.raises(RequestError) as e:
            await ask(runner, 5)
        assert e.value.kind is Failure.UNAVAILABLE

    with_runner(work, workers=2)


def threads_of(runner: Runner) -> int:
    return len(runner.workers._all)


def test_statistics_of_workers_lose_nothing() -> None:
    statistics = ModelStatistics()

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        time.sleep(1e-3)
        return [feeds["x"] + 1]

    async def work() -> None:
        runner = Runner(run, ["y"], statistics, Limits(queue=4000), AXES, 4, "m", 4)
        asked: list[Any] = [ask(runner, i) for i in range(2000)]
        answers: Any = await asyncio.gather(*asked)
        assert [y[0, 0] for (y,) in answers] == [i + 1 for i in range(2000)]
        assert (runner.pending, runner.waiting_bytes) == (0, 0)
        await asyncio.to_thread(runner.close)

    asyncio.run(work())
    assert (statistics.success.count, statistics.rows) == (2000, 2000)
    assert sum(statistics.latency.counts) == statistics.queue.count == 2000
    assert sum(d.count for d in statistics.batches.values()) == statistics.runs


def test_a_bad_request_fails_alone() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        first = ask(runner, 1)
        await until(lambda: runner.pending == 1 and not runner.depth)
        asked = [ask(runner, i) for i in (2, -3, 4)]
        for _ in range(9):
            slow.go.release()
        found = await asyncio.gather(first, *asked, return_exceptions=True)
        assert [isinstance(f, RequestError) for f in found] == [False, False, True, False]
        assert found[3][0].tolist() == [[8, 8]]

    with_runner(work)


def test_a_full_queue_refuses_and_expired_or_abandoned_work_is_not_run() -> None:
    async def work(runner: Runner, slow: Slow) -> None:
        first = ask(runner, 1)
        await until(lambda: runner.pending == 1 and not runner.depth)
        gone, late, kept = ask(runner, 2), ask(runner, 3, seconds=0.01), ask(runner, 4)
        await until(lambda: runner.depth == 3)
        with pytest.raises(RequestError) as e:
            await ask(runner, 5)
        assert e.value.kind is Failure.FULL
        gone.cancel()
        with pytest.raises(RequestError) as e:
            await late
        assert e.value.kind is Failure.EXPIRED
        for _ in range(3):
            slow.go.release()
        await asyncio.gather(first, kept)
        assert [x[:, 0].tolist() for x in slow.seen] == [[1], [4]]
        assert runner.waiting_bytes == 0

    with_runner(work, Limits(queue=3))


def tensor_model(path: Path, **settings: Any) -> TensorModel:
    return TensorModel(Found("m", "1", path, False), ModelSettings(**settings), Limits())


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_do_not_depend_on_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """In the thread of the event loop, and in workers, where batches run beside each other."""
    if workers:
        monkeypatch.setattr("monograph.serve.runner.SHORT", 0.0)
    model = tensor_model(affine(tmp_path / "m.onnx"), threads=2)
    try:
        assert model.runner.workers.most == 2
        assert model.axes is not None
        assert model.independence in ("bits", "tolerance")
        rng = np.random.default_rng(5)
        rows = [rng.standard_normal((1 + i % 3, 4)).astype(np.float32) for i in range(40)]

        async def run() -> list[list[np.ndarray]]:
            end = time.monotonic() + 30
            return await asyncio.gather(*[model.infer({"x": x}, end) for x in rows])

        together = asyncio.run(run())
        assert not workers or threads_of(model.runner) > 0
        assert model.statistics.runs < len(rows), "requests shared runs"
        for x, (y,) in zip(rows, together, strict=True):
            (alone,) = model.session.run({"x": x})
            if model.independence == "bits":
                assert y.tobytes() == alone.tobytes()
            np.testing.assert_allclose(y, x @ WEIGHTS, rtol=1e-5, atol=1e-6)
        assert model.statistics.fallbacks.total() == 0
    finally:
        model.close()


def test_parallel_batches_stay_within_the_threads(tmp_path: Path) -> None:
    path = affine(tmp_path / "m.onnx")
    for threads, asked, found in ((1, 0, 1), (2, 0, 2), (2, 1, 1), (2, 9, 2), (6, 0, 4), (6, 5, 5)):
        model = tensor_model(path, threads=threads, parallel_batches=asked)
        assert model.runner.workers.most == found
        model.close()
    with pytest.raises(ConfigError, match="negative"):
        ModelSettings(parallel_batches=-1)


def test_models_that_mix_rows_run_one_request_at_a_time(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [helper.make_node("Softmax", ["x"], ["y"], axis=0, name="over_rows")],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    model = tensor_model(path)
    try:
        assert model.axes is None
        assert "over_rows" in model.unbatched or "batch" in model.unbatched
    finally:
        model.close()
    unwanted = tensor_model(affine(tmp_path / "a.onnx"), batch=False)
    assert unwanted.axes is None
    unwanted.close()


def test_a_difference_between_rows_is_found() -> None:
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2) + 1}
    assert row_difference(lambda f: [f["x"] * 2], feeds, AXES, ["y"]) == 0
    mixed = row_difference(lambda f: [f["x"] / f["x"].sum()], feeds, AXES, ["y"])
    assert mixed is not None
    assert mixed > 0.1


def test_a_table_of_texts_is_served_without_code_for_its_sizes(tmp_path: Path) -> None:
    """Text has no code for any shape: other sizes are computed by the reference meanwhile."""
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(
        [helper.make_node("StringConcat", ["a", "a"], ["y"])], "g",
        [helper.make_tensor_value_info("a", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    model = tensor_model(path)
    try:
        x = np.array(["a", "b", "c", "d", "e"], object)
        (y,) = asyncio.run(model.infer({"a": x}, time.monotonic() + 30))
        assert y.tolist() == ["aa", "bb", "cc", "dd", "ee"]
    finally:
        model.close()
