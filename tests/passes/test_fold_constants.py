"""Constant folding and its budget."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Constant, Graph, constant, dtype, verify
from monograph.ops.elementwise import Add, Exp, Mul
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Broadcast, Reshape, Transpose
from monograph.passes.base import Environment, run_pass
from monograph.passes.fold_constants import FoldConstants
from tests.rules.checks import check_numbers, graph_of, value


def fold(before: Graph, **options) -> tuple[Graph, list[str]]:
    environment = Environment()
    after = verify(run_pass(FoldConstants(**options), before, environment))
    check_numbers(before, after, exact=True)
    return after, [m.reason for m in environment.trace.nearest("fold_constants")]


x = value("f32[4, 9]")
w = constant(np.arange(36, dtype=np.float32).reshape(9, 4))


def test_whole_expressions_fold_at_once() -> None:
    shifted = Add()(Transpose((1, 0))(w), constant(np.float32(1)))
    after, _ = fold(graph_of(Mul()(x, shifted)))
    assert [v.op.name for v in after.values] == ["input", "constant", "mul"]


def test_an_output_that_is_constant_folds() -> None:
    after, _ = fold(graph_of(Exp()(w)))
    assert isinstance(after.outputs[0][1].op, Constant)


def test_a_constant_that_would_grow_stays_an_expression() -> None:
    wide = Broadcast((100, 4, 9))(constant(np.ones(9, np.float32)))
    before = graph_of(Mul()(x, wide))
    after, reasons = fold(before, small=64)
    assert after == before
    assert any("would grow (expected at most 2 x 36 bytes, given 14,400)" in r for r in reasons)


@pytest.mark.parametrize(("kind", "to"), [("i4", "f16"), ("i8", "f16"), ("i4", "f32")])
def test_weights_of_few_bits_stay_packed_for_a_product(kind: str, to: str) -> None:
    codes = constant(np.ones((6, 9)).astype(dtype(kind).numpy))
    decoded = Transpose((1, 0))(
        Dequantize(dtype(to))(codes, constant(np.ones((), dtype(to).numpy)))
    )
    data = value(f"{to}[4, 9]")
    before = graph_of(Dot()(data, decoded))
    after, reasons = fold(before, small=64)
    assert after == before
    assert any("packed" in r or "would grow" in r for r in reasons)
    small, _ = fold(before, small=1 << 10)
    assert not any(isinstance(v.op, Dequantize) for v in small.values)
    # What no product reads has no kernel that decodes it.
    other = graph_of(Add()(value(f"{to}[9, 6]"), decoded))
    after, _ = fold(other, small=64)
    assert (kind, to) == ("i4", "f32") or not any(
        isinstance(v.op, Dequantize) for v in after.values
    )


@pytest.mark.parametrize("zero", ["none", "floats"])
def test_operands_of_weights_that_stay_packed_fold(zero: str) -> None:
    """Older exporters store scales and zero points of blocks as vectors."""
    codes = constant(np.ones((6, 64)).astype(dtype("u4").numpy))
    vector = constant(np.linspace(1, 2, 12, dtype=np.float32))
    square = Reshape((6, 2))(vector)
    zeros = () if zero == "none" else (Reshape((6, 2))(Add()(vector, vector)),)
    decoded = Dequantize(dtype("f32"), 1, 32)(codes, square, *zeros)
    after, _ = fold(graph_of(Dot()(value("f32[4, 64]"), Transpose((1, 0))(decoded))), small=64)
    (kept,) = [v for v in after.values if isinstance(v.op, Dequantize)]
    assert all(isinstance(v.op, Constant) for v in kept.inputs)


def test_operands_of_a_constant_that_would_grow_fold() -> None:
    row = Add()(constant(np.ones(9, np.float32)), constant(np.float32(1)))
    before = graph_of(Mul()(x, Broadcast((100, 4, 9))(row)))
    after, _ = fold(before, small=64)
    assert [v.op.name for v in after.values] == ["input", "constant", "broadcast", "mul"]


def test_the_budget_is_for_all_folding_together() -> None:
    before = graph_of(Mul()(x, Transpose((1, 0))(w)), Mul()(x, Exp()(Transpose((1, 0))(w))))
    after, reasons = fold(before, budget=200)
    assert sum(v.op.name == "exp" for v in after.values) == 1
    assert any("budget is spent" in r for r in reasons)


def test_an_expression_that_fails_stays_where_it_is() -> None:
    broken = Gather(0)(w, constant(np.array([99], np.int64)))
    before = graph_of(Mul()(value("f32[4]"), broken))
    environment = Environment()
    assert run_pass(FoldConstants(), before, environment) == before
    assert "it fails" in environment.trace.nearest("fold_constants")[0].reason


def test_huge_intermediates_are_never_made() -> None:
    huge = Broadcast((1 << 20, 1 << 14))(constant(np.ones((), np.float32)))
    picked = Gather(0)(Gather(0)(huge, constant(np.array([0]))), constant(np.array([0])))
    before = graph_of(Add()(value("f32[1, 16384]"), picked))
    environment = Environment()
    assert run_pass(FoldConstants(), before, environment) == before
    assert "budget" in environment.trace.nearest("fold_constants")[0].reason
