"""Attention in the spellings of exporters: masks, scales, grouped queries, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from monograph.ir import Value, constant
from monograph.ir.dtype import f16, f32
from monograph.ops.attention import MASK, Attention
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, And, Div, Exp, IsNan, Mul, Not, Sub, Tanh, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.shape import Broadcast, Reshape, Squeeze, Transpose, Unsqueeze
from monograph.rewrite import rules_in
from monograph.rules import recognise_attention as rules
from tests.rules.checks import check_declines, check_rewrite, graph_of, value

q, k, v = (value(f"f32[2, 4, {n}, 8]", name) for n, name in ((3, "q"), (5, "k"), (5, "v")))
RULES = rules_in(rules)
RULE = [rules.recognise_attention]
SCALE = float(np.float32(1 / math.sqrt(8)))
SWAP = Transpose((0, 1, 3, 2))
LOWEST = float(np.finfo(np.float32).min)


def plain_attention(*options: Any, **others: Any) -> Attention:
    """Attention that gives NaN for a fully masked query, as the arithmetic does."""
    return Attention(*options, **{"masked_nan": True, **others})


def c(number: float, kind: type = np.float32) -> Value:
    return constant(kind(number))


def softmax(x: Value, axis: int = 3) -> Value:
    e = Exp()(Sub()(x, ReduceMax((axis,), keep=True)(x)))
    return Div()(e, ReduceSum((axis,), keep=True)(e))


def scores(q: Value = q, k: Value = k) -> Value:
    return Mul()(Dot()(q, SWAP(k)), c(SCALE))


def attend(x: Value, v: Value = v) -> Value:
    return Dot()(softmax(x), v)


PLAIN = plain_attention(SCALE)(q, k, v)
ROOT = math.sqrt(SCALE)


@pytest.mark.parametrize(
    "before",
    [
        scores(),
        Div()(Dot()(q, SWAP(k)), c(1 / SCALE)),
        Dot()(Mul()(q, c(SCALE)), SWAP(k)),
        Dot()(q, SWAP(Mul()(k, c(SCALE)))),
        Dot()(q, Mul()(SWAP(k), c(SCALE))),
        Dot()(Mul()(q, c(ROOT)), Mul()(c(ROOT), SWAP(k))),
    ],
)
def test_the_scale_may_stand_anywhere(before: Value) -> None:
    after = check_rewrite(graph_of(attend(before)), RULES)
    (result,) = (out for _, out in after.outputs)
    assert isinstance(result.op, Attention)
    assert result.inputs == (q, k, v)
    assert result.op.scale == pytest.approx(SCALE, rel=1e-6)


def test_without_a_scale() -> None:
    before = attend(Dot()(q, SWAP(k)))
    check_rewrite(graph_of(before), RULES, graph_of(plain_attention(1.0)(q, k, v)))


def test_heads_that_are_split_off() -> None:
    """The transpose that splits heads and the one of the keys are one in the export."""
    flat = value("f32[2, 5, 32]", "k")
    heads = Reshape((2, 5, 4, 8))(flat)
    before = attend(Mul()(Dot()(q, Transpose((0, 2, 3, 1))(heads)), c(SCALE)))
    after = plain_attention(SCALE)(q, Transpose((0, 2, 1, 3))(heads), v)
    check_rewrite(graph_of(before), RULES, graph_of(after))


def test_transposed_values_and_weights() -> None:
    """As YOLO writes it: v softmax(qᵀ k)ᵀ, the scale below a transpose."""
    tall = [value(f"f32[2, 4, 8, {n}]", name) for n, name in ((3, "q"), (5, "k"), (5, "v"))]
    inner = Dot()(SWAP(Mul()(tall[0], c(SCALE))), tall[1])
    before = Dot()(tall[2], SWAP(softmax(inner)))
    after = SWAP(plain_attention(SCALE)(*map(SWAP, tall)))
    check_rewrite(graph_of(before), RULES, graph_of(after))


def test_rank_three() -> None:
    a, b, d = (value(f"f32[6, {n}, 8]", name) for n, name in ((3, "q"), (5, "k"), (5, "v")))
    before = Dot()(softmax(Mul()(Dot()(a, Transpose((0, 2, 1))(b)), c(SCALE)), 2), d)
    after = Squeeze((0,))(plain_attention(SCALE)(*(Unsqueeze((0,))(x) for x in (a, b, d))))
    check_rewrite(graph_of(before), RULES, graph_of(after))


def masked(mask: Value, **options: object) -> Value:
    return plain_attention(SCALE, extra=(MASK,), **options)(q, k, v, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["2, 1, 1, 5", "3, 5", "2, 4, 3, 5", "1, 1, 3, 5"])
def test_a_mask_that_is_added(shape: str) -> None:
    mask = value(f"f32[{shape}]", "mask")
    for x in (Add()(scores(), mask), Add()(mask, scores())):
        check_rewrite(graph_of(attend(x)), RULES, graph_of(masked(mask)))


def seen(name: str = "mask") -> Value:
    """A bool mask that hides all keys from the first query."""
    first = constant(np.arange(3).reshape(3, 1) > 0)
    return And()(value("bool[2, 1, 3, 5]", name), first)


def test_a_mask_that_fills_with_minus_infinity() -> None:
    mask = seen()
    before = attend(Where()(mask, scores(), c(-math.inf)))
    check_rewrite(graph_of(before), RULES, graph_of(masked(mask)))


def test_a_mask_that_says_what_is_hidden() -> None:
    hidden = Not()(seen())
    before = attend(Where()(hidden, c(-math.inf), scores()))
    check_rewrite(graph_of(before), RULES, graph_of(masked(Not()(hidden))))


def test_a_mask_that_fills_with_the_lowest_number() -> None:
    """A query that sees nothing then sees all alike: a mask that is added says so too."""
    mask = value("bool[2, 1, 3, 5]", "mask")
    before = attend(Where()(mask, scores(), c(LOWEST)))
    after = masked(Where()(mask, c(0), c(LOWEST)))
    check_rewrite(graph_of(before), RULES, graph_of(after))


def test_two_masks() -> None:
    mask, bias = seen(), value("f32[4, 3, 5]", "bias")
    before = attend(Add()(Where()(mask, scores(), c(-math.inf)), bias))
    after = masked(Where()(mask, bias, c(-math.inf)))
    check_rewrite(graph_of(before), RULES, graph_of(after))


def test_weights_whose_nans_are_replaced() -> None:
    mask = value("bool[2, 1, 3, 5]", "mask")
    weights = softmax(Where()(mask, scores(), c(-math.inf)))
    before = Dot()(Where()(IsNan()(weights), c(0), weights), v)
    after = masked(mask, masked_nan=False)
    check_rewrite(graph_of(before), RULES, graph_of(after))


TRIANGLE = np.tri(3, 5, 2, dtype=bool)


@pytest.mark.parametrize("low", [-math.inf, LOWEST])
def test_a_constant_triangle_is_causal(low: float) -> None:
    added = constant(np.where(TRIANGLE, 0, low).astype(np.float32)[None, None])
    filled = Where()(constant(TRIANGLE), scores(), c(low))
    reverse = Where()(constant(~TRIANGLE), c(low), scores())
    after = graph_of(plain_attention(SCALE, causal=True)(q, k, v))
    for before in (Add()(scores(), added), filled, reverse):
        check_rewrite(graph_of(attend(before)), RULES, after)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_another_triangle_is_a_mask(offset: int) -> None:
    mask = constant(np.tri(3, 5, offset, dtype=bool))
    before = attend(Where()(mask, scores(), c(-math.inf)))
    check_rewrite(graph_of(before), RULES, graph_of(masked(mask)))


def test_a_triangle_of_small_numbers_is_a_mask() -> None:
    mask = constant(np.where(TRIANGLE, 0, -1e4).astype(np.float32))
    before = attend(Add()(scores(), mask))
    check_rewrite(graph_of(before), RULES, graph_of(masked(mask)))


def test_a_mask_that_hides_nothing_goes() -> None:
    before = attend(Add()(scores(), constant(np.zeros((3, 5), np.float32))))
    check_rewrite(graph_of(before), RULES, graph_of(PLAIN))


def test_a_softcap() -> None:
    capped = Mul()(Tanh()(Mul()(Dot()(q, SWAP(k)), c(SCALE / 4))), c(4))
    mask = value("f32[3, 5]", "mask")
    after = check_rewrite(graph_of(attend(Add()(capped, mask))), RULES)
    op = after.outputs[0][1].op
    assert isinstance(op, Attention)
    assert (op.softcap, op.extra) == (4.0, (MASK,))
    assert op.scale == pytest.approx(SCALE, rel=1e-6)


def by_broadcast(x: Value) -> Value:
    batch, groups, length, size = x.tensor.static
    wide = Broadcast((batch, groups, 2, length, size))(Unsqueeze((2,))(x))
    return Reshape((batch, groups * 2, length, size))(wide)


def by_gather(x: Value) -> Value:
    return Gather(1)(x, constant(np.repeat(np.arange(2), 2)))


def before_transpose(x: Value) -> Value:
    """Repeats heads that still stand behind the positions."""
    y = Transpose((0, 2, 1, 3))(x)
    batch, length, groups, size = y.tensor.static
    wide = Broadcast((batch, length, groups, 2, size))(Unsqueeze((3,))(y))
    return Transpose((0, 2, 1, 3))(Reshape((batch, length, groups * 2, size))(wide))


FEW = [value("f32[2, 2, 5, 8]", name) for name in ("k", "v")]


@pytest.mark.parametrize("repeat", [by_broadcast, by_gather, before_transpose])
def test_grouped_queries_lose_the_repeats(repeat) -> None:
    before = attend(scores(k=repeat(FEW[0])), repeat(FEW[1]))
    after = check_rewrite(graph_of(before), RULES)
    result = after.outputs[0][1]
    assert isinstance(result.op, Attention)
    assert [x.tensor.static[1] for x in result.inputs] == [4, 2, 2]


def test_one_head_of_keys_for_all() -> None:
    k1, v1 = (value("f32[2, 1, 5, 8]", name) for name in ("k", "v"))
    before = attend(scores(k=k1), v1)
    check_rewrite(graph_of(before), RULES, graph_of(plain_attention(SCALE)(q, k1, v1)))


def test_heads_repeated_as_a_whole_are_kept() -> None:
    """Tiled heads (0 1 0 1) belong to other queries than repeated ones (0 0 1 1)."""
    places = constant(np.tile(np.arange(2), 2))
    many = [Gather(1)(x, places) for x in FEW]
    before = attend(scores(k=many[0]), many[1])
    check_rewrite(graph_of(before), RULES, graph_of(plain_attention(SCALE)(q, *many)))


def test_half_floats_with_a_wide_softmax() -> None:
    a, b, d = (value(f"f16[2, 4, {n}, 8]", name) for n, name in ((3, "q"), (5, "k"), (5, "v")))
    inner = Mul()(Dot()(a, SWAP(b)), c(0.25, np.float16))
    before = Dot()(Cast(f16)(softmax(Cast(f32)(inner))), d)
    check_rewrite(graph_of(before), RULES, graph_of(plain_attention(0.25)(a, b, d)))


LARGE = constant(np.zeros((2, 2, 4, 3, 5), np.float32))


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (Dot()(softmax(scores(k=q), 2), q), "not over the last axis (expected 3, given 2)"),
        (attend(Where()(seen(), scores(), c(-1e9))), "hidden scores still count"),
        (attend(Where()(seen(), scores(), value("f32[3, 5]", "y"))), "not one number"),
        (
            attend(Add()(Where()(seen(), scores(), c(LOWEST)), value("f32[3, 5]", "y"))),
            "a mask is added to scores that were filled",
        ),
        (attend(scores(k=value("f32[1, 4, 5, 8]", "k"))), "batch sizes differ"),
        (attend(scores(), value("f32[2, 1, 5, 8]", "v")), "differ in their heads"),
        (attend(scores(), value("f32[5, 8]", "v")), "not of rank 4"),
        (attend(scores(q=value("f32[2, 1, 3, 8]", "q"))), "no multiple of the number of key heads"),
        (
            Dot()(softmax(Add()(scores(), LARGE), 4), value("f32[2, 2, 4, 5, 8]", "v")),
            "makes the scores larger",
        ),
    ],
)
def test_what_is_not_attention_stays(before: Value, reason: str) -> None:
    check_declines(graph_of(before), RULE, reason)


def test_weights_with_another_user_stay() -> None:
    weights = softmax(scores())
    check_declines(graph_of(Dot()(weights, v), weights), RULE, "div has another user")


def test_scores_with_another_user_stay() -> None:
    x = scores()
    check_declines(graph_of(attend(x), x), RULE, "mul has another user")


def half(mask: Value) -> Value:
    """Attention of half floats whose scores and mask are wide."""
    a, b, d = (value(f"f16[2, 4, {n}, 8]", name) for n, name in ((3, "q"), (5, "k"), (5, "v")))
    wide = Add()(Mul()(Cast(f32)(Dot()(a, SWAP(b))), c(SCALE)), mask)
    return Dot()(Cast(f16)(softmax(wide)), d)


def test_a_wide_mask_stays() -> None:
    before = graph_of(half(value("f32[3, 5]", "mask")))
    check_declines(before, RULE, "the mask has another element type (expected f16, given f32)")


def test_a_wide_triangle_is_causal() -> None:
    before = half(constant(np.where(TRIANGLE, 0, LOWEST).astype(np.float32)))
    after = check_rewrite(graph_of(before), RULES)
    op = after.outputs[0][1].op
    assert isinstance(op, Attention)
    assert op.causal


def test_scores_made_narrower_stay() -> None:
    narrow = Cast(f16)(Dot()(q, SWAP(k)))
    before = Dot()(Cast(f32)(softmax(narrow)), v)
    assert rules.recognise_attention.function(value=before, context=None) is before


@pytest.mark.parametrize(("steps", "found"), [(0, True), (3, True), (8, True), (9, False)])
def test_repeats_are_found_behind_a_bounded_number_of_transposes(steps: int, found: bool) -> None:
    heads = Gather(1)(k, constant(np.repeat(np.arange(4), 3)))
    repeated, plain = heads, k
    for _ in range(steps):
        repeated, plain = SWAP(repeated), SWAP(plain)
    expected = (plain, plain) if found else (repeated, repeated)
    assert rules.without_repeats(repeated, repeated) == expected
