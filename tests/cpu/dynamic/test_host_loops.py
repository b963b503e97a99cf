"""Loops that are made turn by turn: state that changes its size for as long as data want it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.codegen.llvm.module.select import host_reasons
from monograph.errors import ExecutionError
from monograph.ir import Graph, Value, constant, evaluate, unpack
from monograph.ir.dtype import f32, string
from monograph.ops.cast import Cast
from monograph.ops.control import Loop, Scan
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Exp, Less, Mul
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.random import RandomUniform
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape
from monograph.runtime.cpu.instrumented import compile_stepped
from monograph.runtime.dynamic import host_loop, open_part
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.dynamic.staged import StagedExecutable
from monograph.runtime.numerics.stepwise import StepChecker
from tests.cpu.dynamic.staging import body, compiled, matches
from tests.cpu.indexing.moving import THREADS, host
from tests.rules.checks import graph_of, value

ONE = constant(np.ones(1, np.float32))
YES = constant(np.array(True))


def total(x: Value) -> Value:
    return Reshape(())(ReduceSum((0,))(x))


def growing() -> Graph:
    """Appends a one while the sum is below a limit that is captured; collects sums and numbers."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value('f32["~loop_s"]', "s")
    limit = value("f32[]", "limit")
    longer = Concat(0)(s, ONE)
    step = body((i, go, s, limit), Less()(total(longer), limit), longer, total(s), i)
    made = Loop(step, 1)(
        value("i64[]", "n"), value("bool[]", "c"), value("f32[2]"), value("f32[]", "limit")
    )
    last, sums, numbers = unpack(made)
    return graph_of(Exp()(last), sums, numbers)


def feeds(trips: int, limit: float, go: bool = True) -> dict[str, Any]:
    zeros = np.zeros(2, np.float32)
    return {"n": np.array(trips), "c": np.array(go), "x": zeros, "limit": np.float32(limit)}


@pytest.mark.parametrize("threads", THREADS)
def test_data_decide_how_far_a_state_grows(threads: int) -> None:
    graph = growing()
    executable = compiled(graph, threads=threads)
    for trips, limit, go in (
        (100, 6, True),
        (0, 6, True),
        (3, 6, True),
        (9, 6, False),
        (9, 2, True),
    ):
        matches(executable, graph, feeds(trips, limit, go))


def test_what_is_done_is_counted() -> None:
    graph = growing()
    executable = compiled(graph)
    matches(executable, graph, feeds(100, 6))
    # One body for six turns of six sizes, and what follows.
    assert executable.specialisations == 2
    assert executable.launches == 7
    assert np.isnan(executable.flops)
    matches(executable, graph, feeds(100, 9))
    matches(executable, graph, feeds(100, 4))
    assert executable.specialisations == 2
    assert executable.launches == 1 + 9


def test_turns_of_exact_code_that_are_kept_are_bounded() -> None:
    graph = growing()
    with (
        mock.patch.object(open_part, "MOST_VARIANTS", 0),
        mock.patch.object(host_loop, "KEPT_TURNS", 3),
    ):
        executable = compiled(graph)
        assert isinstance(executable, StagedExecutable)
        for _ in range(2):
            matches(executable, graph, feeds(100, 6))
            assert len(executable.stages) == 1 + 3 + 1
    # Six turns of six sizes, and what follows.
    assert executable.specialisations == 6 + 1 + 6


def test_several_states_and_constant_weights() -> None:
    """One state grows along its rows, one stays, one is replaced by another size."""
    i, go = value("i64[]", "i"), value("bool[]", "go")
    a, b = value('f32["~loop_a", 3]', "a"), value("f32[3]", "b")
    c, w = value('f32["~loop_c"]', "c"), value("f32[3, 3]", "w")
    rows = Concat(0)(a, Reshape((1, 3))(b))
    sums = ReduceSum((0,))(Dot()(rows, w))
    step = body(
        (i, go, a, b, c, w),
        Less()(total(sums), constant(np.float32(50))),
        rows,
        Reshape((3,))(sums),
        Reshape((-1,))(rows),
        Mul()(b, b),
    )
    weights = constant(np.full((3, 3), 0.5, np.float32))
    made = Loop(step, 3)(
        constant(np.int64(1 << 40)),
        YES,
        value("f32[1, 3]", "a"),
        value("f32[3]", "b"),
        value("f32[2]", "c"),
        weights,
    )
    graph = graph_of(*unpack(made))
    executable = compiled(graph)
    ones = {"a": np.ones((1, 3), np.float32), "b": np.ones(3, np.float32)}
    matches(executable, graph, ones | {"c": np.ones(2, np.float32)})


def test_a_loop_in_a_loop() -> None:
    """The inner one doubles the state's length until it is long enough for this turn."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value('f32["~loop_s"]', "s")
    j, on, t = value("i64[]", "j"), value("bool[]", "on"), value('f32["~loop_t"]', "t")
    bound = value("f32[]", "bound")
    twice = Concat(0)(t, t)
    inner = Loop(body((j, on, t, bound), Less()(total(twice), bound), twice), 1)
    wanted = Mul()(Cast(f32)(i), constant(np.float32(4)))
    (grown,) = unpack(inner(constant(np.int64(50)), YES, s, wanted))
    longer = Concat(0)(grown, ONE)
    outer = Loop(body((i, go, s), Less()(total(longer), constant(np.float32(20))), longer), 1)
    graph = graph_of(*unpack(outer(value("i64[]", "n"), YES, value("f32[1]"))))
    executable = compiled(graph)
    for trips in (5, 0, 2):
        matches(executable, graph, {"x": np.ones(1, np.float32), "n": np.array(trips)})


def test_a_collected_result_without_a_bound() -> None:
    """As exporters write `while`: a trip count beyond any memory, and a condition."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[]", "s")
    more = Add()(s, s)
    step = body((i, go, s), Less()(more, constant(np.float32(100))), more, s)
    loop = Loop(step, 1)(constant(np.int64(2**63 - 1)), YES, value("f32[]"))
    graph = graph_of(*unpack(loop))
    executable = compiled(graph)
    matches(executable, graph, {"x": np.array(1, np.float32)})
    assert executable.specialisations == 1
    assert executable.launches == 7


def test_a_scan_whose_body_waits_for_data() -> None:
    """Each row is reshaped as the data of its turn say."""
    s, row, sizes = value("f32[]", "s"), value("f32[6]", "row"), value("i64[2]", "sizes")
    apart = Deferred("reshape", ("shape",))(row, sizes)
    first = ReduceSum((0, 1))(Mul()(apart, apart))
    step = body((s, row, sizes), Add()(s, Reshape(())(first)), s)
    scan = Scan(step, (0, 0), (False, False), (0,), (False,))
    graph = graph_of(
        *unpack(scan(value("f32[]"), value("f32[3, 6]", "r"), value("i64[3, 2]", "n")))
    )
    rows = np.arange(18, dtype=np.float32).reshape(3, 6)
    wanted = np.array([[2, 3], [6, 1], [2, 3]])
    matches(compiled(graph), graph, {"x": np.array(0, np.float32), "r": rows, "n": wanted})


def test_complex_state() -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("c64[2]", "s")
    loop = Loop(body((i, go, s), go, Add()(s, s), s), 1)
    graph = graph_of(*unpack(loop(constant(np.int64(3)), YES, value("c64[2]"))))
    matches(compiled(graph), graph, {"x": np.array([1 + 2j, 3 - 1j], np.complex64)})


def test_a_fault_inside_a_turn_fails_the_run_only() -> None:
    """The index of the turn is beyond the table in the third turn."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value('f32["~loop_s"]', "s")
    table = value("f32[2]", "table")
    found = Gather(0)(table, Reshape((1,))(i))
    longer = Concat(0)(s, found)
    step = body((i, go, s, table), Less()(total(longer), constant(np.float32(9))), longer)
    loop = Loop(step, 1)(value("i64[]", "n"), YES, value("f32[1]"), value("f32[2]", "t"))
    graph = graph_of(*unpack(loop))
    executable = compiled(graph)
    given = {"x": np.zeros(1, np.float32), "t": np.ones(2, np.float32)}
    with pytest.raises(ExecutionError, match="out of range"):
        executable.run(given | {"n": np.array(5)})
    matches(executable, graph, given | {"n": np.array(2)})


def test_random_numbers_go_on_from_turn_to_turn() -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value('f32["~loop_s"]', "s")
    drawn = RandomUniform((1,), f32, 0.0, 1.0, 7.0)()
    longer = Concat(0)(s, drawn)
    step = body((i, go, s), Less()(total(longer), constant(np.float32(3))), longer)
    loop = Loop(step, 1)(constant(np.int64(99)), YES, value("f32[1]"))
    (made,) = compiled(graph_of(*unpack(loop))).run({"x": np.zeros(1, np.float32)})
    assert len(set(made.tolist())) == len(made) > 3
    assert made[:-1].sum() < 3 <= made.sum()


def test_every_turn_is_held_to_the_reference_step_by_step() -> None:
    graph, checker = growing(), StepChecker()
    made = compile_stepped(graph, Compiler(host(), 2), checker.observe)(feeds(100, 4))
    np.testing.assert_allclose(made[0], evaluate(graph, feeds(100, 4))[0], rtol=1e-6)
    assert all(c.ok and not c.drifted for c in checker.checks)
    assert checker.stages >= 4


def test_only_the_sequence_in_a_turn_is_the_hosts() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["": 20]>
        g (float[3] x, int64 n, bool c) => (float[k] y) {
            none = SequenceEmpty<dtype = 1>()
            all, last = Loop(n, c, none, x) <body = b
                (int64 i, bool go, seq(float[s]) held, float[3] v)
                => (bool on, seq(float[s]) more, float[3] w) {
                on = Identity(go)
                w = Mul(v, v)
                e = Exp(w)
                more = SequenceInsert(held, e)
            }>
            y = ConcatFromSequence<axis = 0>(all)
        }
        """
    )
    session = monograph.load(model, target="cpu", cache_bytes=0)
    x = np.full(3, 0.5, np.float32)
    (made,) = session.run({"x": x, "n": np.array(3), "c": np.array(True)})
    np.testing.assert_allclose(made, np.exp(np.repeat([x[0] ** 2, x[0] ** 4, x[0] ** 8], 3)), 1e-6)
    assert session.stats["launches_per_run"] == 3
    assert set(session.stats["host_reasons"].values()) == {"a sequence"}
    assert not any(name.startswith("loop") for name in session.stats["host_steps"])


def test_only_what_is_text_in_a_turn_is_the_hosts() -> None:
    """The iterations of a loop do what the plan of the loop says."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[2]", "s")
    words = Cast(string)(s)
    step = body((i, go, s), go, Add()(Cast(f32)(words), s))
    graph = graph_of(*unpack(Loop(step, 1)(constant(np.int64(2)), YES, value("f32[2]"))))
    executable = compiled(graph)
    (made,) = executable.run({"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(made, [4, 8])
    assert executable.host_reasons == host_reasons(graph) == {"cast": "strings"}
    assert executable.launches == 2
