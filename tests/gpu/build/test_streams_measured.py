"""The number of streams of a graph: the fastest in a measurement, stored and found again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from rich.console import Console

import monograph
from monograph.ir import Graph, Input, TensorType, constant
from monograph.ir.dtype import f32
from monograph.ops.linear import Dot
from monograph.report.commands.compile import Tuned, show_tuned
from monograph.runtime.gpu.build import stream_tuning
from monograph.runtime.gpu.build.stream_plans import key_of, planned
from monograph.runtime.gpu.build.stream_tuning import MeasuredStreams
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.capture import launch_order
from monograph.runtime.gpu.driver.graphs import Handle
from monograph.runtime.gpu.executable import compile_for_gpu
from tests.gpu import gpu_models
from tests.gpu.build.stream_models import (
    ALL,
    SIZE,
    Clock,
    check,
    replayed,
    some,
    somewhere,
    three_sums,
)
from tests.gpu.capture.replay_models import Default, three_towers
from tests.gpu.fake_driver import FakeDevice, FakeDriver
from tests.gpu.fake_graphs import FakeGraphs
from tests.gpu.gpu_models import FLOAT

pytestmark = gpu_models.INTERPRETED


@pytest.fixture(autouse=True, params=[False, True], ids=["recorded", "built"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Default, "builds", request.param)


@pytest.mark.parametrize("best", ALL)
def test_the_fastest_is_taken_and_kept(
    best: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch, best)
    for turn in range(2):  # the second time as another process would
        cache = TuningCache.open(tmp_path / "tuning.json")
        streams = MeasuredStreams(cache, "here")
        replay, driver = replayed(three_sums(), streams)
        assert replay.streams == 1
        for seed in range(2):
            check(replay, some(seed))
        assert clock.seen == [ALL], "what was measured is measured again"
        assert replay.streams == best
        assert replay.stats["captures"] == 2  # on tensors and on arrays
        assert replay.stats["fallbacks"] == {}
        assert driver.live["graph"] == driver.live["executable"] == 2, turn
    (entry,) = streams.used.values()
    assert entry["winner"] == next(iter(entry["us"])) == stream_tuning.text(best)
    assert entry["us"][stream_tuning.text(best)] == 1.0
    assert set(entry["us"]) == {"1 lane", "2 lanes", "3 lanes"}
    kernels = replay.executable.kernels
    assert entry["problem"].startswith(f"a run of {kernels} kernels: 3 lanes, ")
    (key,) = json.loads((tmp_path / "tuning.json").read_text())["measured"]["here"]
    assert key.startswith("lanes-")


def test_of_equals_fewer_streams_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stream_tuning, "time_queued", lambda runs: dict.fromkeys(reversed(runs), 5.0)
    )
    replay, _ = replayed(three_sums(), somewhere())
    check(replay, some())
    assert replay.streams == 1


def test_who_was_first_chooses_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes may measure at once, each another winner."""
    path = tmp_path / "tuning.json"
    first, second = (MeasuredStreams(TuningCache.open(path), "here") for _ in range(2))
    for best, streams in ((1, first), (3, second)):
        Clock(monkeypatch, best)
        replay, _ = replayed(three_sums(), streams)
        check(replay, some())
        assert replay.streams == 1


def test_other_programs_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, streams = Clock(monkeypatch, 2), somewhere()
    for rows in (4, 8, 4):
        replay, _ = replayed(three_sums(rows), streams)
        check(replay, some(rows=rows))
    assert len(clock.seen) == len(streams.used) == 2
    elsewhere, _ = replayed(three_sums(), MeasuredStreams(streams.cache, "there"))
    check(elsewhere, some())
    assert len(clock.seen) == 3


def test_other_kernels_are_another_problem() -> None:
    """The same program by other kernels may want other streams."""
    arch = FakeDevice(FakeDriver()).arch
    first, last, again = (
        key_of(compile_for_gpu(three_towers(), arch, lambda _, found, at=which: found[at]))
        for which in (0, -1, 0)
    )
    assert first == again != last


class Edges(FakeGraphs):
    """Notes behind which nodes each kernel comes, and beside which it may start early."""

    def __init__(self, driver: FakeDriver, builds: bool) -> None:
        super().__init__(driver, builds=builds)
        self.graph: Handle | None = None
        self.made: list[tuple[list[int], int | None]] = []

    def add_kernel(
        self, graph: Handle, record: Any, before: Sequence[Any], beside: Any = None
    ) -> Any:
        if graph is not self.graph:
            self.graph, self.made = graph, []
        number = {int(n): i for i, n in enumerate(graph.value.nodes)}
        early = None if beside is None else number[int(beside)]
        self.made.append(([number[int(n)] for n in before], early))
        return super().add_kernel(graph, record, before, beside)


def test_in_one_stream_every_kernel_may_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Default.builds:
        return
    Clock(monkeypatch, 1)
    replay, _ = replayed(three_sums(), somewhere(), Edges)
    replay.run({"x": torch.from_numpy(some())})
    count = replay.executable.launches
    assert replay.graphs.made == [  # type: ignore[attr-defined]
        ([], None),
        *(([i], i) for i in range(count - 1)),
    ]


def test_nothing_is_measured_where_nothing_is_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    x, w = Input("x", TensorType(f32, (4, SIZE)))(), constant(np.eye(SIZE, dtype=np.float32))
    replay, _ = replayed(Graph((x,), (("y", Dot()(Dot()(x, w), w)),)), somewhere())
    check(replay, some())
    assert clock.seen == []


def test_without_a_measurement_a_graph_has_the_streams_of_its_program() -> None:
    """Sessions compile for one stream then."""
    replay, _ = replayed(three_sums(), None)
    check(replay, some())
    assert replay.streams == 3


# Sessions


class Device(FakeDevice, gpu_models.FakeDevice):  # type: ignore[misc]
    """A device that measures kernels by a table, and captures."""

    def __init__(self) -> None:
        gpu_models.FakeDevice.__init__(self)
        driver = FakeDriver()
        FakeDevice.__init__(self, driver, FakeGraphs(driver, builds=Default.builds))


def two_means() -> onnx.ModelProto:
    """A chain from each of two inputs, and the sum of both."""

    def chain(port: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("ReduceMean", [port], [f"{port}1"], axes=[1]),
            helper.make_node("Add", [port, f"{port}1"], [f"{port}2"]),
            helper.make_node("Tanh", [f"{port}2"], [f"{port}3"]),
            helper.make_node("ReduceMean", [f"{port}3"], [f"{port}4"]),
        ]

    nodes = [*chain("x"), *chain("z"), helper.make_node("Add", ["x4", "z4"], ["y"])]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, [4, SIZE]), "z": (FLOAT, [4, 24])}
    return gpu_models.model(nodes, inputs, {"y": (FLOAT, [1, 1])})


def feeds(seed: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.from_numpy(some(seed)), "z": torch.from_numpy(some(seed, 6).reshape(4, 24))}


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> monograph.Session:
    gpu_models.use(Device(), monkeypatch)
    return monograph.load(two_means(), target="gpu", cache_dir=str(folder), **options)


@pytest.mark.parametrize("best", [1, 2])
def test_sessions_measure_once_and_choose_alike(
    best: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(monkeypatch, best)
    found = []
    for _ in range(2):
        session = load(tmp_path, monkeypatch)
        assert session.stats["streams"] == 1
        found += [session.run(feeds(seed))[0] for seed in range(2)]
        assert session.stats["streams"] == best
    assert clock.seen == [(1, 2)]
    assert torch.equal(torch.stack(found[:2]), torch.stack(found[2:]))


def test_memory_for_one_stream_where_it_is_known_to_be_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wide plan keeps apart what one stream need not."""
    sizes = {}
    for best in (1, 3):
        Clock(monkeypatch, best)
        streams = MeasuredStreams(TuningCache(None), "here")
        replay, _ = replayed(three_sums(), streams)
        module = replay.executable.module
        assert planned(module, streams) is module  # nothing is known yet
        check(replay, some())
        again = planned(module, streams)
        sizes[best] = again.arena_bytes
        assert launch_order(again.works).streams == best
        assert [b.work for b in again.works] == [b.work for b in module.works]
    assert sizes[1] < sizes[3]


def test_streams_change_no_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for best in (1, 2):
        Clock(monkeypatch, best)
        found.append(load(tmp_path / str(best), monkeypatch).run(feeds())[0])
    found.append(load(tmp_path, monkeypatch, capture="off").run(feeds())[0])
    assert len({x.numpy().tobytes() for x in found}) == 1


@pytest.mark.parametrize("options", [{"capture": "off"}, {"tune": "off"}], ids=str)
def test_what_is_off_measures_nothing(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then there is one stream, in the memory of one."""
    clock = Clock(monkeypatch, 2)
    wide = load(tmp_path, monkeypatch)
    wide.run(feeds())
    assert wide.stats["streams"] == 2
    del clock.seen[:]
    session = load(tmp_path, monkeypatch, **options)
    session.run(feeds())
    assert clock.seen == []
    assert session.stats["streams"] == 1
    assert session.stats["peak_bytes"] <= wide.stats["peak_bytes"]


def test_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 2)
    streams = somewhere()
    check(replayed(three_sums(), streams)[0], some())
    out = Console(file=StringIO(), width=200)
    show_tuned(out, "m.onnx", Tuned("a GPU", None, (), 0, 1.0, tuple(streams.used.values())))
    said = out.file.getvalue()  # type: ignore[attr-defined]
    assert "3 lanes, 2 waits between them: 2 lanes chosen (2 lanes 1.0 us, 1 lane 3.0 us" in said
