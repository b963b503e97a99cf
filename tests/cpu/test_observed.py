"""Programs that are looked at: the same kernels and bits, and nothing of it in plain code."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from monograph.codegen.llvm.module.assembler import Module, Segment
from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, Input, Op, Sample, constant, evaluate, tensor
from monograph.ir.dtype import f32
from monograph.ops import OPS
from monograph.ops.composite import Softmax
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.shape import Concat
from monograph.program.lowering import lower
from monograph.runtime.cpu import executable as runtime
from monograph.runtime.cpu.executable import compile_graph
from monograph.runtime.cpu.instrumented import SteppedRun, TimedRun, compile_stepped, compile_timed
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.numerics.stepwise import StepChecker
from tests.cpu.against import feeds_for
from tests.samples import sample_graph

CLOCK = "call i32 @clock_gettime"


def _graph() -> Graph:
    """Dots with softmax between them, parts of a join, and a value that is read late."""
    weights = constant(np.random.default_rng(1).normal(size=(32, 32)).astype(np.float32))
    x = Input("x", tensor(f32, 48, 32))()
    a = Dot()(x, weights)
    b = Softmax(1)(a)
    joined = Concat(1)(b, Softmax(0)(a))
    wide = constant(np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32))
    return Graph((x,), (("y", Add()(Dot()(joined, wide), a)),))


def _module(**how: Any) -> Module:
    program = lower(_graph(), CpuTarget()).whole
    return compile_program(program, host_features(), 2, **how)


@pytest.fixture(params=[1, 2, 4], ids=lambda n: f"{n} threads")
def compiler(request: pytest.FixtureRequest) -> Any:
    # Such a small graph would run on one thread.
    with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
        yield Compiler(host_features(), request.param)


def test_plain_code_never_looks_at_the_clock():
    plain, timed = _module(), _module(timed=True)
    assert plain.stamps is None
    assert not any("clock_gettime" in text for text in plain.texts)
    assert timed.stamps is not None
    assert sum(text.count(CLOCK) for text in timed.texts) == 2 * timed.stamps.steps
    # The kernels are the same; only what calls them differs.
    assert plain.texts[:-1] == timed.texts[:-1]


def test_steps_apart_are_functions_of_their_own():
    plain, apart = _module(), _module(apart=True)
    assert [len(s.steps) for s in plain.segments if isinstance(s, Segment)] == [len(apart.segments)]
    assert all(isinstance(s, Segment) and len(s.steps) == 1 for s in apart.segments)
    assert plain.offsets == apart.offsets
    assert plain.texts[:-1] == apart.texts[:-1]


def test_a_timed_run_has_the_same_bits_and_a_stamp_for_everything(compiler: Compiler):
    graph, heard = _graph(), list[TimedRun]()
    feeds = feeds_for(graph)
    plain = compile_graph(graph, compiler.features, compiler.threads).run(feeds)
    run = compile_timed(graph, compiler, heard.append)
    for _ in range(3):
        np.testing.assert_array_equal(run(feeds)[0], plain[0])
    assert len(heard) == 3
    for one in heard:
        assert one.stamps.shape == (compiler.threads, len(one.program.steps), 2)
        begins, ends = one.stamps[..., 0], one.stamps[..., 1]
        assert (begins <= ends).all()
        assert (begins[:, 1:].min(axis=0) >= ends[:, :-1].max(axis=0)).all()
    # Each run leaves its own.
    assert (heard[1].stamps > heard[0].stamps).all()


def test_a_stepped_run_shows_what_every_step_reads_and_writes(compiler: Compiler):
    graph, seen = _graph(), list[SteppedRun]()
    feeds = feeds_for(graph)
    plain = compile_graph(graph, compiler.features, compiler.threads).run(feeds)
    given = compile_stepped(graph, compiler, seen.append)(feeds)
    np.testing.assert_array_equal(given[0], plain[0])
    program = seen[0].program
    assert [s.step for s in seen] == list(program.steps)
    assert all(s.native and not s.overwritten for s in seen)
    right: dict[Any, Any] = {}
    evaluate(program.graph, feeds, lambda value, data: right.update({value: data}))
    for one in seen:
        assert set(one.inputs) == set(one.step.region.inputs)
        for value, data in (one.inputs | one.outputs).items():
            np.testing.assert_allclose(data, right[value], rtol=1e-4, atol=1e-4)


SAMPLES = [
    pytest.param(op, sample, id=f"{name} {i}")
    for name, op in sorted(OPS.items())
    for i, sample in enumerate(op.samples)
]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_step_of_every_sample_agrees_with_the_reference(op: type[Op], sample: Sample):
    graph, feeds = sample_graph(op, sample)
    checker = StepChecker()
    compile_stepped(graph, Compiler(host_features(), 1), checker.observe)(feeds)
    wrong = [(str(c.step), c.own, c.overwritten) for c in checker.checks if not c.ok]
    assert not wrong
