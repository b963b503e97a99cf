"""The work of a step, its branches and loops included."""

from __future__ import annotations

import math

import numpy as np

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, Input, Value, constant, tensor, unpack
from monograph.ir.dtype import boolean, f32, i64
from monograph.ops.control import If, Loop, Scan
from monograph.ops.elementwise import Less, Neg
from monograph.ops.linear import Dot
from monograph.program.lowering import lower
from monograph.program.work import outer_work, program_work, step_work
from monograph.rewrite import Work
from tests.rules.checks import graph_of, value

WEIGHTS = np.ones((16, 16), np.float32)
DOT = 2.0 * 4 * 16 * 16
"""The operations of a [4, 16] times these weights."""


def body(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


def given(name: str = "x") -> Value:
    return Input(name, tensor(f32, 4, 16))()


def dotted(x: Value) -> Value:
    return Dot()(x, constant(WEIGHTS))


def work_of(result: Value) -> tuple[Work, Work]:
    """All the work of a program, and what is outside of branches and loops."""
    program = lower(graph_of(unpack(result)[0]), CpuTarget()).whole
    outside = sum(map(outer_work, program.steps), Work(0, 0, 0))
    return program_work(program), outside


def test_of_a_branch_the_larger_side_counts() -> None:
    x, y = given(), given("y")
    branch = If(body((x,), Neg()(x)), body((y,), dotted(y)))
    whole, outside = work_of(branch(value("bool[]", "c"), value("f32[4, 16]"), given("z")))
    assert whole.flops - outside.flops == DOT
    assert whole.bytes - outside.bytes == WEIGHTS.nbytes
    assert whole.launches == outside.launches == 1


def test_of_a_scan_every_turn_counts() -> None:
    s, x = given("s"), given("x")
    scan = Scan(body((s, x), dotted(s)), (0,), (False,), (), ())
    whole, outside = work_of(scan(value("f32[4, 16]"), value("f32[9, 4, 16]", "z")))
    assert whole.flops - outside.flops == 9 * DOT
    assert whole.bytes - outside.bytes == WEIGHTS.nbytes, "weights come from memory once"


def test_what_only_data_tell_is_no_number() -> None:
    i, go, s = Input("i", tensor(i64))(), Input("go", tensor(boolean))(), given("s")
    loop = Loop(body((i, go, s), Less()(i, constant(5, i64)), dotted(s)), 1)
    looped = loop(value("i64[]", "n"), value("bool[]", "c"), value("f32[4, 16]"))
    program = lower(graph_of(unpack(looped)[0]), CpuTarget()).whole
    assert any(math.isnan(step_work(s).flops) for s in program.steps)
    assert all(math.isfinite(outer_work(s).flops) for s in program.steps)
