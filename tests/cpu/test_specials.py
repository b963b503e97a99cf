"""NaN, infinities, denormals and numbers out of range: kernels say what the reference says.

Shapes are larger than a vector and no multiple of one, so that whole vectors and tails both see
them. `make sweep` does the same with every sample of every op.
"""

from __future__ import annotations

import numpy as np
import pytest

import monograph
from monograph.codegen.llvm.conv import winograd
from monograph.errors import ExecutionError
from monograph.ir import Value, constant, dtype, evaluate, unpack
from monograph.ops.attention import LENGTHS, MASK, Attention
from monograph.ops.cast import Cast
from monograph.ops.composite import Gelu, LayerNorm, LogSoftmax, RmsNorm, Silu, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Clip, Less, Max, Min, Mul, Neg, Sign, Where
from monograph.ops.linear import Dot
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.reduce import ArgMax, ArgMin, CumSum, ReduceMax, ReduceMin, ReduceSum
from monograph.ops.sort import TopK
from tests.cpu.against import check, feeds_for
from tests.cpu.pool.stress import load, lookup, rows
from tests.rules.checks import graph_of, value

LAST = "channels_last"
NUMBERS = (np.nan, np.inf, -np.inf)
rng = np.random.default_rng(5)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def with_specials(shape: tuple[int, ...], numbers: tuple[float, ...], every: int) -> np.ndarray:
    """Normal numbers, and in one place of so many a special one."""
    x = rng.normal(size=shape).astype(np.float32)
    places = rng.random(shape) < 1 / every
    return np.where(places, rng.choice(np.array(numbers, np.float32), shape), x)


def test_winograd_spoils_no_more_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a tile, in corners of the image, beside weights that are zero."""
    monkeypatch.setattr(winograd, "pays", lambda *_: True)
    weights = rng.normal(size=(37, 19, 3, 3)).astype(np.float32)
    weights[3, 2, 1, 1] = 0
    weights[5] = 0
    conv = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=LAST)
    y = conv(Neg()(value("f32[4, 11, 14, 19]")), constant(weights))
    # The transform of the last one overflows, and the sum does not.
    x = rng.normal(size=(4, 11, 14, 19)).astype(np.float32) * np.float32(1e-3)
    for n, number in enumerate((*NUMBERS, 3e35)):
        for place in ((5, 6, 3), (6, 2, 2), (0, 0, 18), (10, 13, 2)):
            x[(n, *place)] = number
    graph = graph_of(y, Silu()(Add()(y, weight(37))))
    with np.errstate(all="ignore"):
        spoilt = ~np.isfinite(evaluate(graph, {"x": x})[0])
    assert spoilt[:3].any(axis=(1, 2, 3)).all()
    assert spoilt.mean() < 0.5, "a tile with such a number in it has results without"
    check(graph, {"x": x})


def test_winograd_leaves_weights_that_are_no_numbers_to_others() -> None:
    weights = rng.normal(size=(64, 64, 3, 3)).astype(np.float32)
    x = value("f32[1, 80, 80, 64]")
    conv = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=LAST)
    machine = winograd.Features("wide", 512, 32, "")
    assert winograd.pays(conv(x, constant(weights)), machine, 1)
    weights[3, 2, 1, 1] = np.inf
    assert not winograd.pays(conv(x, constant(weights)), machine, 1)


@pytest.mark.parametrize(
    ("kernel", "stride", "groups"),
    [(1, 1, 1), (3, 2, 1), (5, 1, 1), (3, 1, 19), (3, 1, 1)],
    ids=["1x1", "strided", "5x5", "depthwise", "3x3"],
)
def test_convolutions(kernel: int, stride: int, groups: int) -> None:
    pad = (kernel // 2,) * 2
    results = 19 if groups > 1 else 21
    op = Conv((stride,) * 2, pad, pad, (1, 1), groups=groups, layout=LAST)
    y = op(Neg()(value("f32[1, 9, 7, 19]")), weight(results, 19 // groups, kernel, kernel))
    check(graph_of(y), {"x": with_specials((1, 9, 7, 19), NUMBERS, 200)})


@pytest.mark.parametrize("layout", [LAST, "channels_first"])
def test_padding_is_zeros_that_weights_multiply(layout: str) -> None:
    """Weights that are no numbers make a NaN of padding, constant or not."""
    w = with_specials((6, 3, 3, 3), NUMBERS, 40)
    x = value("f32[1, 7, 5, 3]" if layout == LAST else "f32[1, 3, 7, 5]")
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=layout)
    graph = graph_of(op(Abs()(x), constant(w)), op(x, value("f32[6, 3, 3, 3]", "w")))
    check(graph, feeds_for(graph) | {"w": w})


def test_elements() -> None:
    x, y = value("f32[3, 37]"), value("f32[3, 37]", "y")
    graph = graph_of(
        Max()(x, y), Min()(x, y), Clip(0.0, 6.0)(x), Clip(0.0, np.inf)(x), Sign()(x), Gelu()(x),
        Silu()(x), Where()(Less()(x, y), x, Mul()(x, y)),
    )  # fmt: skip
    some = {n: with_specials((3, 37), (*NUMBERS, 0.0, -0.0), 3) for n in ("x", "y")}
    check(graph, some)


def test_rows() -> None:
    """Rows with a NaN, with infinities, of nothing but -inf."""
    x = value("f32[7, 37]")
    data = rng.normal(size=(7, 37)).astype(np.float32)
    data[1, 20], data[2, 3], data[3, 36], data[4] = np.nan, np.inf, -np.inf, -np.inf
    data[5, [4, 30]] = np.inf, -np.inf
    made = [op((1,))(x) for op in (ReduceMax, ReduceMin, ReduceSum, LayerNorm, RmsNorm)]
    made += [op(1)(x) for op in (Softmax, LogSoftmax, ArgMax, ArgMin, CumSum)]
    made += [ReduceMax((0,))(x), Softmax(0)(x), Dot()(x, weight(37, 5))]
    check(graph_of(*made), {"x": data})


@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_the_largest_when_sorted(largest: bool) -> None:
    x = value("f32[4, 37]")
    made = unpack(TopK(37, 1, largest)(x)) + unpack(TopK(5, 1, largest)(x))
    check(graph_of(*made), {"x": with_specials((4, 37), (*NUMBERS, 0.0, -0.0), 3)})


def test_pools() -> None:
    x = value("f32[1, 8, 7, 21]")
    window = ((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    made = [p(*window, layout=LAST)(x) for p in (MaxPool, AveragePool)]
    check(graph_of(*made), {"x": with_specials((1, 8, 7, 21), NUMBERS, 50)})


@pytest.mark.parametrize("to", ["i8", "u8", "i16", "i32", "i64", "u32", "bool", "f16", "bf16"])
def test_casts_of_what_does_not_fit(to: str) -> None:
    edges = (*NUMBERS, 1e12, -1e12, 2.0**31, -(2.0**31), 255.5, -128.5, 65519.0, 65520.0, 1e-8)
    check(graph_of(Cast(dtype(to))(value("f32[5, 37]"))), {"x": with_specials((5, 37), edges, 2)})


@pytest.mark.parametrize("queries", [1, 9])
def test_attention_to_nothing(queries: int) -> None:
    """Masks of -inf throughout, false throughout, lengths of 0; a NaN in a query and in a key."""
    q = value(f"f32[2, 2, {queries}, 19]", "q")
    k, v = value("f32[2, 2, 21, 19]", "k"), value("f32[2, 2, 21, 19]", "v")
    hidden = np.where(np.arange(21) < 5, 0, -np.inf).astype(np.float32) * np.ones((2, 1, 1, 1))
    hidden[1] = -np.inf
    bools = constant(np.isfinite(hidden))
    floats = constant(hidden.astype(np.float32))
    lengths = constant(np.array([0, 13], np.int64))
    graph = graph_of(
        Attention(extra=(MASK,))(q, k, v, floats),
        Attention(extra=(MASK,))(q, k, v, bools),
        Attention(extra=(LENGTHS,))(q, k, v, lengths),
        Attention()(q, k, v),
    )
    feeds = feeds_for(graph)
    feeds["v"][:, :, 13:] = np.nan  # in the last one everywhere
    feeds["k"][0, 0, 2, 5], feeds["q"][0, 1, 0, 3], feeds["k"][1, 0, 1, 1] = np.nan, np.nan, np.inf
    check(graph, feeds)


# Denormals are zeros inside. That they are not slow follows; a test that took the time could not
# tell a busy machine from a slow one. That workers set the mode is in test_pool.

TINY = np.float32(1e-40)


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_zeros_to_a_session_and_to_nobody_else(threads: int) -> None:
    session = load(rows(), threads)
    noise = np.full((5, 37), TINY)
    (given,) = session.run({"x": noise})
    (zeros,) = session.run({"x": np.zeros((5, 37), np.float32)})
    assert np.array_equal(given, zeros)
    assert TINY * np.float32(0.5) != 0


def test_the_float_mode_comes_back_after_a_failure() -> None:
    session = load(lookup(), 1)
    with pytest.raises(ExecutionError):
        session.run({"x": np.full(40, 50)})
    assert TINY * np.float32(0.5) != 0
    assert isinstance(session, monograph.Session)
