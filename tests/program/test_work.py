"""The work of a step, its branches and loops included."""

from __future__ import annotations

import math

import numpy as np

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, Input, Value, constant, tensor, unpack
from monograph.ir.dtype import boolean, f32, i64
from monograph.ops.attention import Attention
from monograph.ops.control import If, Loop, Scan
from monograph.ops.elementwise import Exp, Less, Neg
from monograph.ops.linear import Dot
from monograph.ops.pool import MaxPool
from monograph.ops.reduce import ArgMax, ReduceMax, ReduceSum
from monograph.ops.scatter import ScatterNd
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
    outside = sum((outer_work(program, s) for s in program.steps), Work(0, 0, 0))
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
    assert any(math.isnan(step_work(program, s).flops) for s in program.steps)
    assert all(math.isfinite(outer_work(program, s).flops) for s in program.steps)


def steps_of(result: Value) -> dict[str, Work]:
    """The work of each step of a program, by the kind of the step."""
    program = lower(graph_of(result), CpuTarget()).whole
    return {s.region.kind: step_work(program, s) for s in program.steps}


def test_attention_counts_both_products_for_what_queries_see() -> None:
    q, k, v = value("f32[2, 4, 3, 8]", "q"), value("f32[2, 2, 5, 8]", "k"), value("f32[2, 2, 5, 6]")
    pairs = {False: 15, True: 3 + 4 + 5}
    for causal, seen in pairs.items():
        (work,) = steps_of(Attention(causal=causal)(q, k, v)).values()
        assert work.flops == 2 * 2 * 4 * seen * (8 + 6)
    (work,) = steps_of(Attention(causal=True, window=2)(q, k, v)).values()
    assert work.flops == 2 * 2 * 4 * (3 * 2) * (8 + 6)


def test_sums_and_pools_count_what_they_read() -> None:
    assert steps_of(ReduceSum((1,))(value("f32[4, 100]")))["reduce_sum"].flops == 400
    assert steps_of(ArgMax(1)(value("f32[4, 100]")))["arg_max"].flops == 400
    pool = MaxPool((3, 3), (2, 2), (0, 0), (0, 0), (1, 1))
    assert steps_of(pool(value("f32[1, 2, 9, 9]")))["max_pool"].flops == 9 * 2 * 4 * 4


def test_an_update_in_place_moves_what_it_replaces() -> None:
    table = Exp()(value("f32[1000, 64]"))
    updates = value("f32[2, 64]", "u")
    done = ScatterNd()(table, value("i64[2, 1]", "i"), updates)
    work = steps_of(ReduceMax((0,))(done))["scatter_nd"]
    assert work.bytes == 2 * 8 + 2 * (2 * 64 * 4), "indices, updates, and where these go"
    copied = steps_of(done)["scatter_nd"]
    assert copied.bytes == 2 * 8 + 2 * 64 * 4 + 2 * (1000 * 64 * 4), "an output has its own memory"
