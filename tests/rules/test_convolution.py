"""Conv + 1x1 conv: every condition, with its twin."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Clip
from monograph.rewrite import CPU_COST, Work, apply_rules
from monograph.rules import convolution as rules
from tests.rules.checks import check_declines, check_numbers, check_rewrite, graph_of, value

rng = np.random.default_rng(0)
RULES = [rules.compose_pointwise]


@dataclass(frozen=True)
class Free:
    """A cost model to which only launches matter: every composition pays."""

    rows_normalised: int = 0
    decodes: bool = False

    def seconds(self, work: Work) -> float:
        return float(work.launches)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def conv(x: Value, out: int, kernel: int, *, groups: int = 1, **attributes) -> Value:
    spatial = x.tensor.rank - 2
    defaults = {
        "strides": (1,) * spatial,
        "pads_begin": (0,) * spatial,
        "pads_end": (0,) * spatial,
        "dilations": (1,) * spatial,
    }
    op = Conv(**{**defaults, **attributes}, groups=groups)
    return op(x, weight(out, x.tensor.static[1] // groups, *(kernel,) * spatial))


def bias(x: Value) -> Value:
    return Add()(x, weight(x.tensor.static[1], *(1,) * (x.tensor.rank - 2)))


def composed(before: Graph) -> Value:
    after = check_rewrite(before, RULES, cost=Free())
    convs = [v for v in after.values if isinstance(v.op, Conv)]
    assert len(convs) == 1
    return convs[0]


x = value("f32[2, 4, 9, 8]")


def test_before_and_after() -> None:
    w1, w2 = weight(6, 4, 3, 3), weight(5, 6, 1, 1)
    first = Conv((1, 1), (1, 1), (1, 1), (1, 1))
    second = replace(first, pads_begin=(0, 0), pads_end=(0, 0))
    before = graph_of(second(first(x, w1), w2))
    a, b = (v.op.value.array.astype(np.float64) for v in (w1, w2))
    product = np.einsum("om,mchw->ochw", b[:, :, 0, 0], a).astype(np.float32)
    check_rewrite(before, RULES, graph_of(first(x, constant(product))), cost=Free())


@pytest.mark.parametrize("out", [3, 6, 11])
def test_the_result_has_the_channels_of_the_second(out: int) -> None:
    before = graph_of(conv(conv(x, 6, 3), out, 1))
    assert composed(before).tensor.static[1] == out


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": (2, 1)},
        {"pads_begin": (1, 2), "pads_end": (2, 0)},
        {"dilations": (2, 2)},
        {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (2, 1)},
    ],
)
def test_the_first_may_stride_pad_and_dilate(attributes) -> None:
    composed(graph_of(conv(conv(x, 6, 3, **attributes), 5, 1)))


@pytest.mark.parametrize("stride", [(2, 2), (3, 2)])
def test_strides_multiply(stride) -> None:
    made = composed(graph_of(conv(conv(x, 6, 3, strides=(2, 1)), 5, 1, strides=stride)))
    assert made.op.strides == (2 * stride[0], stride[1])


@pytest.mark.parametrize("where", ["first", "second", "both", "padded"])
def test_biases(where: str) -> None:
    pads = {"pads_begin": (1, 1), "pads_end": (1, 1)} if where == "padded" else {}
    inner = conv(x, 6, 3, **pads)
    inner = bias(inner) if where != "second" else inner
    outer = conv(inner, 5, 1)
    outer = bias(outer) if where in ("second", "both") else outer
    composed(graph_of(outer))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(2, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 2), (4, 2, 2), (2, 6, 2)],
)
def test_groups(first: int, second: int, expected: int) -> None:
    before = graph_of(conv(bias(conv(x, 12, 3, groups=first)), 18, 1, groups=second))
    assert composed(before).op.groups == expected


def test_depthwise_then_pointwise_is_right_where_it_is_allowed() -> None:
    depthwise = conv(x, 4, 3, groups=4, pads_begin=(1, 1), pads_end=(1, 1))
    before = graph_of(conv(depthwise, 8, 1))
    assert composed(before).op.groups == 1


def test_depthwise_then_pointwise_is_usually_slower_and_says_so() -> None:
    image = value("f32[1, 64, 40, 40]")
    depthwise = conv(image, 64, 3, groups=64, pads_begin=(1, 1), pads_end=(1, 1))
    before = graph_of(conv(depthwise, 64, 1))
    check_declines(before, RULES, "one convolution is slower (expected below", cost=CPU_COST)


def test_a_dense_pair_pays() -> None:
    image = value("f32[1, 16, 40, 40]")
    before = graph_of(conv(conv(image, 64, 3), 16, 1))
    after = apply_rules(before, RULES, cost=CPU_COST)
    assert Counter(v.op.name for v in after.values)["conv"] == 1


@pytest.mark.parametrize("text", ["f32[2, 4, 9]", "f32[1, 4, 5, 4, 3]"])
def test_one_and_three_dimensions(text: str) -> None:
    composed(graph_of(conv(bias(conv(value(text), 6, 3)), 5, 1)))


def test_a_chain_of_three() -> None:
    composed(graph_of(conv(conv(conv(x, 6, 3), 7, 1), 5, 1)))


def test_another_user_declines() -> None:
    inner = conv(x, 6, 3)
    before = graph_of(conv(inner, 5, 1), inner)
    check_declines(before, RULES, "another user (expected 1, given 2)", cost=Free())
    biased = bias(inner)
    check_declines(graph_of(conv(biased, 5, 1), biased), RULES, "another user", cost=Free())
    check_declines(graph_of(conv(biased, 5, 1), inner), RULES, "another user", cost=Free())


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (conv(Clip(lo=0.0)(conv(x, 6, 3)), 5, 1), "given clip"),
        (conv(conv(x, 6, 3), 5, 3), "not 1x1 (expected 1x1, given (3, 3))"),
        (conv(conv(x, 6, 3), 5, 1, pads_begin=(1, 0)), "pads its input"),
        (conv(Add()(conv(x, 6, 1), value("f32[2, 6, 9, 8]", "y")), 5, 1), "given add"),
        (conv(Add()(conv(x, 6, 1), weight(9, 8)), 5, 1), "no bias per channel"),
    ],
    ids=["activation", "3x3", "padding", "residual", "image"],
)
def test_what_does_not_compose(before: Value, reason: str) -> None:
    check_declines(graph_of(before), RULES, reason, cost=Free())


def test_dynamic_weights_decline() -> None:
    w = value("f32[5, 6, 1, 1]", "w")
    op = Conv((1, 1), (0, 0), (0, 0), (1, 1))
    before = graph_of(op(conv(x, 6, 3), w))
    check_declines(before, RULES, "weights are not constant", cost=Free())
    dynamic = op(x, value("f32[6, 4, 3, 3]", "w"))
    check_declines(graph_of(conv(dynamic, 5, 1)), RULES, "not constant", cost=Free())


def test_integers_and_symbolic_shapes_decline() -> None:
    op = Conv((1, 1), (0, 0), (0, 0), (1, 1))
    whole = value("i32[1, 4, 5, 5]")
    w1 = constant(np.ones((6, 4, 3, 3), np.int32))
    w2 = constant(np.ones((5, 6, 1, 1), np.int32))
    check_declines(graph_of(op(op(whole, w1), w2)), RULES, "not a plain float", cost=Free())
    open_ = value("f32[N, 4, 9, 9]")
    before = graph_of(op(op(open_, weight(6, 4, 3, 3)), weight(5, 6, 1, 1)))
    check_declines(before, RULES, "not static", cost=Free())


def test_numbers_of_a_wide_pair() -> None:
    before = graph_of(bias(conv(bias(conv(x, 32, 3)), 16, 1)))
    after = apply_rules(before, RULES, cost=Free())
    check_numbers(before, after, exact=False)


@pytest.mark.parametrize("which", [0, 1])
def test_weights_that_are_not_finite_do_not_compose(which: int) -> None:
    """An infinity of the second would meet each term of the first, not their sum."""
    shapes = (4, 3, 3, 3), (5, 4, 1, 1)
    weights = [rng.normal(size=s).astype(np.float32) for s in shapes]
    weights[which][0, 1] = np.inf
    first, second = (Conv((1, 1), (0, 0), (0, 0), (1, 1)) for _ in shapes)
    y = second(first(value("f32[1, 3, 6, 5]"), constant(weights[0])), constant(weights[1]))
    check_declines(graph_of(y), [rules.compose_pointwise], "the weights are not finite")
