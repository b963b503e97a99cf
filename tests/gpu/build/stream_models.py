"""Small programs with streams, and a clock that says which number of them is fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from monograph.ir import Graph, Input, TensorType, constant
from monograph.ir.dtype import f32
from monograph.ops.elementwise import Add
from monograph.ops.functions import Tanh
from monograph.ops.reduce import ReduceSum
from monograph.runtime.gpu.build import stream_tuning
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.capture.replay_models import Default
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs

ALL = (1, 2, 3)
"""Lanes that `three_sums` is tried in."""
SIZE = 16


def three_sums(rows: int = 4) -> Graph:
    """Three chains from one input, and what joins them; kernels that are quick to interpret."""
    x = Input("x", TensorType(f32, (rows, SIZE)))()
    ends = []
    for number in range(3):
        row = ReduceSum((1,), True)(Add()(x, constant(np.full(SIZE, number, np.float32))))
        ends.append(ReduceSum((0,), True)(Add()(x, Tanh()(row))))
    joined = ReduceSum((1,), True)(Add()(Add()(ends[0], ends[1]), ends[2]))
    return Graph((x,), (("y", joined), ("z", ends[0])))


class Clock:
    """Says how many streams are fastest, once it has seen all of them run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, best: int) -> None:
        self.best = best
        self.seen: list[tuple[int, ...]] = []
        monkeypatch.setattr(stream_tuning, "time_queued", self)

    def __call__(self, runs: Mapping[int, Callable[[int], None]]) -> dict[int, float]:
        self.seen.append(tuple(runs))
        for run in runs.values():
            run(2)
        return {streams: 1.0 if streams == self.best else 2.0 + streams for streams in runs}


def replayed(
    graph: Graph, streams: MeasuredStreams | None, graphs: type[FakeGraphs] = FakeGraphs
) -> tuple[Replay, FakeDriver]:
    driver = FakeDriver()
    device = FakeDevice(driver)
    executable = GpuExecutable(compile_for_gpu(graph, device.arch), device)
    return Replay(executable, graphs(driver, builds=Default.builds), streams=streams), driver


def somewhere() -> MeasuredStreams:
    return MeasuredStreams(TuningCache(None), "here")


def some(seed: int = 0, rows: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, SIZE)).astype(np.float32)


def check(replay: Replay, x: np.ndarray) -> None:
    """Tensors and arrays give the numbers of launches one by one, to the bit."""
    eager = replay.executable.run({"x": x})
    for a, b, c in zip(
        eager, replay.run({"x": torch.from_numpy(x)}), replay.run({"x": x}), strict=True
    ):
        np.testing.assert_array_equal(a, b.numpy())
        np.testing.assert_array_equal(a, c)
