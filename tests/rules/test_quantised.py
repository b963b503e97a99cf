"""Layers of quantised numbers become layers of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Array, Graph, Value, constant, verify
from monograph.ir.dtype import f32, i8, i32, u8
from monograph.ops.cast import Cast
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Mul, Sub
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose
from monograph.passes.base import Environment, run_pass
from monograph.passes.rule_passes import FoldZeroPoints
from monograph.rewrite import Rule, Trace, apply_rules
from monograph.rules import quantised as rules
from monograph.runtime.numerics.bisect import first_difference
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

rng = np.random.default_rng(0)
PADDED = Conv((2, 1), (1, 0), (2, 1), (1, 2))


def whole(low: int, high: int, *shape: int) -> Array:
    """Whole numbers from low to high, both among them."""
    data = rng.integers(low, high + 1, shape)
    data.reshape(-1)[:2] = (low, high)
    return data


def bytes_(*shape: int) -> Value:
    return constant(whole(-128, 127, *shape).astype(np.int8))


def wide(x: Value) -> Value:
    return Cast(i32)(x)


def check_on_all_bytes(before: Graph, rule: Rule, exact: bool = True) -> Graph:
    """A rule fires, and gives the same numbers for bytes of every size."""
    after = verify(apply_rules(before, [rule], trace=Trace()))
    assert after != before
    feeds = {}
    for name, type_ in zip(before.input_names, before.input_types, strict=True):
        low, high = {i8: (-128, 127), u8: (0, 255)}.get(type_.dtype, (1, 1))  # type: ignore[union-attr]
        data = rng.integers(low, high + 1, type_.static)  # type: ignore[union-attr]
        feeds[name] = np.asarray(data).astype(type_.dtype.numpy)  # type: ignore[union-attr]
    wrong = first_difference(before, after, feeds, exact=exact)
    assert wrong is None, wrong
    return after


def operands(graph: Graph, kind: type) -> list[tuple[str, str]]:
    """The element types of every layer of a kind."""
    layers = [v for v in graph.values if isinstance(v.op, kind)]
    return [(str(v.inputs[0].dtype), str(v.inputs[1].dtype)) for v in layers]


x, z = value("u8[2, 5, 8]"), value("u8[]", "z")
image = value("u8[2, 4, 6, 7]", "image")


def test_a_zero_point_moves_behind_a_dot() -> None:
    w = bytes_(8, 3)
    before = graph_of(Dot()(Sub()(wide(x), wide(z)), wide(w)))
    totals = w.op.value.array.sum(0, dtype=np.int32)
    expected = graph_of(Sub()(Dot(i32)(x, w), Mul()(wide(z), constant(totals))))
    check_rewrite(before, [rules.dot_of_bytes], expected)
    check_on_all_bytes(before, rules.dot_of_bytes)


def test_a_zero_point_of_each_row() -> None:
    rows = value("u8[5, 1]", "z")
    before = graph_of(Dot()(Sub()(wide(x), wide(rows)), wide(bytes_(8, 3))))
    check_on_all_bytes(before, rules.dot_of_bytes)
    along = value("u8[8]", "z")
    before = graph_of(Dot()(Sub()(wide(x), wide(along)), wide(bytes_(8, 3))))
    check_declines(before, [rules.dot_of_bytes], "vary along the sums")
    more = value("u8[4, 2, 5, 1]", "z")
    before = graph_of(Dot()(Sub()(wide(x), wide(more)), wide(bytes_(8, 3))))
    check_declines(before, [rules.dot_of_bytes], "broadcasts beyond")


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-3, 252), (-128, 127), (-250, -1)])
def test_weights_of_any_byte(low: int, high: int) -> None:
    w = constant(whole(low, high, 8, 3).astype(np.int32))
    after = check_on_all_bytes(graph_of(Dot()(Sub()(wide(x), wide(z)), w)), rules.dot_of_bytes)
    assert operands(after, Dot) == [("u8", "i8")]
    w = constant(whole(low, high, 6, 4, 3, 3).astype(np.int32))
    before = graph_of(PADDED(Sub()(wide(image), wide(z)), w))
    after = check_on_all_bytes(before, rules.conv_of_bytes)
    assert set(operands(after, Conv)) == {("u8", "i8")}


def test_what_is_no_layer_of_bytes_stays() -> None:
    too_wide = constant(whole(-200, 200, 8, 3).astype(np.int32))
    check_declines(graph_of(Dot()(wide(x), too_wide)), [rules.dot_of_bytes], "do not fit bytes")
    dynamic = value("i32[8, 3]", "w")
    check_declines(graph_of(Dot()(wide(x), dynamic)), [rules.dot_of_bytes], "not constant")
    words = value("i16[2, 8]", "words")
    before = graph_of(Dot()(wide(words), wide(bytes_(8, 3))))
    check_declines(before, [rules.dot_of_bytes], "not bytes less a zero point")
    several = constant(whole(-5, 5, 2, 8, 3).astype(np.int32))
    check_declines(graph_of(Dot()(wide(x), several)), [rules.dot_of_bytes], "not one matrix")


def test_padding_of_a_convolution_becomes_its_zero_point() -> None:
    w = bytes_(6, 4, 3, 3)
    before = graph_of(PADDED(Sub()(wide(image), wide(z)), wide(w)))
    after = check_on_all_bytes(before, rules.conv_of_bytes)
    assert operands(after, Conv) == [("u8", "i8")]
    (pad,) = [v for v in after.values if isinstance(v.op, Pad)]
    assert pad.inputs[1].dtype == u8
    no_zero = graph_of(PADDED(wide(image), wide(w)))
    after = check_on_all_bytes(no_zero, rules.conv_of_bytes)
    assert not [v for v in after.values if isinstance(v.op, Pad)]


def test_groups() -> None:
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1), groups=2)
    before = graph_of(op(Sub()(wide(image), wide(z)), wide(bytes_(6, 2, 3, 3))))
    check_on_all_bytes(before, rules.conv_of_bytes)
    unsigned = constant(whole(0, 255, 6, 2, 3, 3).astype(np.int32))
    before = graph_of(op(Sub()(wide(image), wide(z)), unsigned))
    check_declines(before, [rules.conv_of_bytes], "a grouped convolution has unsigned weights")


def test_more_than_one_zero_point_stays() -> None:
    each = value("u8[4, 1, 1]", "z")
    before = graph_of(PADDED(Sub()(wide(image), wide(each)), wide(bytes_(6, 4, 3, 3))))
    check_declines(before, [rules.conv_of_bytes], "more than one zero point")


def scales(*shape: int) -> Value:
    return constant(rng.uniform(0.01, 0.1, shape).astype(np.float32))


def test_scales_move_behind_a_dot() -> None:
    s = value("f32[]", "s")
    real = Dequantize(f32)(x, s, z)
    weights = Dequantize(f32, axis=0)(bytes_(3, 8), scales(3))
    before = graph_of(Dot()(real, Transpose((1, 0))(weights)))
    after = check_on_all_bytes(before, rules.dot_of_scaled, exact=False)
    assert operands(after, Dot) == [("u8", "i8")]
    unsigned = Dequantize(f32)(constant(whole(0, 255, 8, 3).astype(np.uint8)), s, z)
    check_declines(graph_of(Dot()(real, unsigned)), [rules.dot_of_scaled], "not constant")
    zero = constant(np.uint8(7))
    fixed = Dequantize(f32)(constant(whole(0, 255, 8, 3).astype(np.uint8)), scales(), zero)
    check_on_all_bytes(graph_of(Dot()(real, fixed)), rules.dot_of_scaled, exact=False)


def test_scales_that_vary_along_the_sums_stay() -> None:
    real = Dequantize(f32)(x, scales())
    weights = Dequantize(f32, axis=0)(bytes_(8, 3), scales(8))
    check_declines(graph_of(Dot()(real, weights)), [rules.dot_of_scaled], "vary along the sums")
    blocks = Dequantize(f32, axis=0, block=4)(bytes_(8, 3), scales(2, 3))
    check_declines(graph_of(Dot()(real, blocks)), [rules.dot_of_scaled], "vary along the sums")
    floats = value("f32[2, 8]", "f")
    plain = Dequantize(f32)(bytes_(8, 3), scales())
    check_declines(graph_of(Dot()(floats, plain)), [rules.dot_of_scaled], "not dequantised")


def test_scales_move_behind_a_convolution() -> None:
    real = Dequantize(f32)(image, scales(), z)
    weights = Dequantize(f32, axis=0)(bytes_(6, 4, 3, 3), scales(6))
    after = check_on_all_bytes(
        graph_of(PADDED(real, weights)), rules.conv_of_scaled_bytes, exact=False
    )
    assert operands(after, Conv) == [("u8", "i8")]
    along = Dequantize(f32, axis=1)(bytes_(6, 4, 3, 3), scales(4))
    before = graph_of(PADDED(real, along))
    check_declines(before, [rules.conv_of_scaled_bytes], "vary along the sums")


def test_the_pass_runs_before_weights_become_floats() -> None:
    real = Dequantize(f32)(x, scales(), z)
    before = graph_of(Dot()(real, Dequantize(f32)(bytes_(8, 3), scales())))
    after = run_pass(FoldZeroPoints(), before, Environment())
    assert operands(after, Dot) == [("u8", "i8")]
