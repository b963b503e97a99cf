"""Lanes of real models and of random graphs: nothing that runs at once shares memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import monograph
from monograph.codegen.triton.module import layout
from monograph.codegen.triton.module.launch import ARCHES
from monograph.codegen.triton.module.layout import GpuModule
from monograph.ir import Graph, Input, Item, TensorType, Value
from monograph.ir.dtype import boolean, f32
from monograph.ops.control import If
from monograph.ops.elementwise import Add
from monograph.ops.functions import Exp, Tanh
from monograph.ops.linear import Dot
from monograph.ops.random import RandomUniform
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, Slice
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.rewrite import GPU_COST
from monograph.runtime.gpu.build.stream_tuning import candidate_schedules
from monograph.runtime.gpu.capture.capture import launch_order
from monograph.runtime.gpu.executable import MAX_STREAMS, compile_for_gpu
from tests.fuzz.graphs import random_graph
from tests.gpu import real_models
from tests.gpu.build.memory_effects import tasks_of
from tests.program.races import races

SEEDS = range(60)


def module_of(graph: Graph, streams: int = MAX_STREAMS) -> GpuModule:
    return compile_for_gpu(graph, ARCHES["sm_90"], streams=streams)


def streams_of(module: GpuModule) -> int:
    return 1 + max(b.stream for b in module.works)


@pytest.mark.parametrize("folder", real_models.FOLDERS, ids=lambda f: f.name)
def test_real_models(folder: Path) -> None:
    session = monograph.load(folder / "model.onnx", target="reference")
    feeds, _ = split_archive(read_archive(folder / "io.npz"), session.inputs, session.outputs)
    overrides: dict[str, dict[str, Any]] = {
        "choose_layout": {"layout": "channels_last"},
        "convert_precision": {"to": "f16"},
    }
    options = PassOptions(overrides=overrides)
    graph = optimise(session.bound_graph(feeds), environment=Environment(GPU_COST), options=options)
    for streams in (2, MAX_STREAMS):
        assert not races(tasks_of(module_of(graph, streams)))


def test_random_graphs() -> None:
    most = 0
    for seed in SEEDS:
        module = module_of(random_graph(seed)[0])
        if module.works:
            most = max(most, streams_of(module))
            assert not races(tasks_of(module)), seed
    assert most > 2  # else nothing was at stake


def test_memory_serves_fewer_streams_too() -> None:
    """The plan is made for all streams; graphs may have fewer of them."""
    tried = 0
    for seed in SEEDS:
        module = module_of(random_graph(seed)[0])
        tasks = tasks_of(module)
        for streams, order in candidate_schedules(launch_order(module.works)).items():
            narrow = [
                replace(task, stream=order.stream[n], step=n, waits=order.waits[n])
                for n, task in enumerate(tasks)
            ]
            assert not races(narrow), (seed, streams)
            tried += 1 < streams < streams_of(module)
    assert tried


def port(name: str, *shape: int) -> Value:
    return Input(name, TensorType(f32, shape))()


def without_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets steps wait only for those that write what they read."""
    plain = layout.needs

    def fewer(steps: Any, places: Any, changed: Any = ()) -> list[set[int]]:
        return plain(steps, replace(places, over={}))

    monkeypatch.setattr(layout, "needs", fewer)


def donated() -> Graph:
    """A state that a product reads, and that is written over without a need for that product."""
    old, x, y = port("old", 16, 16), port("x", 16, 16), port("y", 16, 16)
    outputs = (("read", Dot()(old, y)), ("new", Exp()(x)))
    return Graph((old, x, y), outputs, donations=(("new", "old"),))


def test_a_donated_output_waits_for_the_readers_of_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_of(donated())
    assert module.program.donated == {"new": "old"}
    assert streams_of(module) == 1  # one after the other: nothing is left to do side by side
    assert not races(tasks_of(module))
    without_edges(monkeypatch)
    module = module_of(donated())
    assert streams_of(module) == 2
    assert races(tasks_of(module)) == [(0, 1)]


def test_draws_from_one_state_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    op, yes = RandomUniform((4,), f32, seed=1.0, uid=-7), Input("yes", TensorType(boolean, ()))()
    inner = [Graph((), (("r", kind()(op())),)) for kind in (Exp, Tanh)]
    chosen = Item(0)(If(*inner)(yes))
    graph = Graph((yes,), (("a", Exp()(op())), ("b", chosen)))
    assert not races(tasks_of(module_of(graph)))
    without_edges(monkeypatch)
    assert races(tasks_of(module_of(graph)))


def test_a_step_without_work_loses_no_order() -> None:
    """An empty result needs two streams, and what needs it reads what the other stream made."""
    x, y = port("x", 16, 16), port("y", 16, 16)
    left, right = Dot()(x, y), Dot()(y, x)
    empty = Dot()(Slice((0, 0), (0, 16), (1, 1))(left), right)
    row = Reshape((16,))(Slice((0, 0), (1, 16), (1, 1))(left))
    module = module_of(Graph((x, y), (("s", Add()(ReduceSum((0,), False)(empty), row)),)))
    assert any(0 in s.region.root.tensor.static for s in module.program.steps)
    assert streams_of(module) == 2
    assert not races(tasks_of(module))


def test_parts_of_a_join_are_made_and_read_side_by_side() -> None:
    x, y = port("x", 16, 16), port("y", 16, 16)
    left, right = Dot()(x, y), Dot()(y, x)
    joined = Concat(1)(left, right)
    ends = (Dot()(x, joined), Dot()(left, left), Dot()(right, right))
    module = module_of(Graph((x, y), tuple((f"o{i}", v) for i, v in enumerate(ends))))
    assert [step.region.root for step in module.steps] == [left, right, *ends]
    by_place = {b.position: b for b in module.works}
    assert by_place[0].stream == by_place[3].stream != by_place[1].stream
    assert not by_place[3].waits  # though the other part lies in the same buffer
    assert not races(tasks_of(module))
