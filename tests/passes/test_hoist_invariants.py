"""Work that no turn of a loop changes moves out of it, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Item, Value, constant, known, unpack, verify
from monograph.ops.control import Loop, Scan
from monograph.ops.elementwise import Add, Div, Exp, Mul
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.shape import Transpose
from monograph.passes.base import Environment, run_pass
from monograph.passes.hoist_invariants import HoistInvariants
from tests.cpu.dynamic.staging import body
from tests.rules.checks import check_numbers, graph_of, value

TURN, GOES = value("i64[]", "i"), value("bool[]", "go")
YES = constant(np.array(True))
S, X, W = value("f32[2, 3]", "s"), value("f32[2, 3]", "x"), value("f32[3, 3]", "w")


def hoist(before: Graph) -> Graph:
    after = verify(run_pass(HoistInvariants(), before, Environment()))
    check_numbers(before, after, exact=True)
    assert run_pass(HoistInvariants(), after, Environment()) == after, "the pass does not settle"
    return after


def repeated(step: Graph, carried: int, *operands: Value, turns: int = 3) -> Graph:
    return graph_of(*unpack(Loop(step, carried)(constant(np.int64(turns)), YES, *operands)))


def loop_of(graph: Graph) -> Value:
    (found,) = (v for v in graph.values if isinstance(v.op, (Loop, Scan)))
    return found


@pytest.mark.parametrize("turns", [3, 1, 0])
def test_a_product_of_captures_is_computed_once(turns: int) -> None:
    step = body((TURN, GOES, S, X, W), GOES, Add()(S, Dot()(Exp()(X), W)))
    after = hoist(repeated(step, 1, value("f32[2, 3]", "a"), X, W, turns=turns))
    loop = loop_of(after)
    assert [v.op.name for v in loop.op.body.values if v.inputs] == ["add"]
    assert [v.op.name for v in loop.inputs[2:]] == ["input", "dot"]


def test_state_that_is_only_passed_on_becomes_a_capture() -> None:
    """Its result is its operand; the results behind it keep their meaning."""
    t = value("f32[2, 3]", "t")
    step = body((TURN, GOES, X, S, t), GOES, X, Add()(S, X), Mul()(t, S), S)
    before = repeated(step, 3, *(value("f32[2, 3]", n) for n in "xab"))
    after = hoist(before)
    assert loop_of(after).op.carried == 2
    assert after.outputs[0][1] is value("f32[2, 3]", "x")
    assert [v.op.index for _, v in after.outputs[1:] if isinstance(v.op, Item)] == [0, 1, 2]


def test_captured_constants_are_constants_of_the_body() -> None:
    step = body((TURN, GOES, S, W), GOES, Dot()(S, Transpose((1, 0))(W)))
    weights = constant(np.arange(9, dtype=np.float32).reshape(3, 3) / 8)
    loop = loop_of(hoist(repeated(step, 1, value("f32[2, 3]", "a"), weights)))
    assert len(loop.inputs) == 3
    assert any(known(v) is known(weights) for v in loop.op.body.values)


def test_a_scan_hoists_too() -> None:
    row = value("f32[1, 3]", "row")
    state = value("f32[1, 3]", "s")
    step = body((state, row, W), Add()(state, row), Dot()(row, Mul()(W, W)))
    scan = Scan(step, (0,), (True,), (0,), (False,))
    after = hoist(graph_of(*unpack(scan(value("f32[1, 3]", "a"), value("f32[4, 1, 3]", "x"), W))))
    assert [v.op.name for v in loop_of(after).inputs] == ["input", "input", "mul"]


def test_nested_loops_hoist_as_far_out_as_possible() -> None:
    inner = body((TURN, GOES, S, X), GOES, Add()(S, Exp()(X)))
    (made,) = unpack(Loop(inner, 1)(constant(np.int64(2)), YES, S, X))
    outer = body((TURN, GOES, S, X), GOES, made)
    after = hoist(repeated(outer, 1, value("f32[2, 3]", "a"), X))
    assert [v.op.name for v in after.values if v.op.name == "exp"] == ["exp"]


def test_what_may_fail_or_is_a_view_stays() -> None:
    """A loop without turns must not fail on an index, and a view computes nothing."""
    index, table = value("i64[]", "k"), value("f32[5, 3]", "table")
    fails = Add()(Gather(0)(table, index), Transpose((1, 0))(W))
    step = body((TURN, GOES, value("f32[3, 3]", "s"), index, table, W), GOES, fails)
    n = value("i64[]", "n")
    divides = body((TURN, GOES, n, index), GOES, Add()(n, Div()(index, index)))
    for before in (
        repeated(step, 1, value("f32[3, 3]", "a"), index, table, W),
        repeated(divides, 1, n, index),
    ):
        assert run_pass(HoistInvariants(), before, Environment()) == before
