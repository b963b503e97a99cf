"""Moves that grow a random graph by what the big passes look for: layers, towers, norms."""

from __future__ import annotations

import math

import numpy as np

from monograph.ir import Array, Op, Value, constant, dtype
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.elementwise import (
    Add,
    Clip,
    Div,
    Erf,
    Exp,
    Log,
    Max,
    Mul,
    Neg,
    Pow,
    Sigmoid,
    Sqrt,
    Sub,
    Tanh,
)
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.reduce import ReduceMax, ReduceMin, ReduceSum
from monograph.ops.shape import (
    Concat,
    Reshape,
    Slice,
    Transpose,
    Unsqueeze,
)
from tests.fuzz.maker import SIZES, Maker
from tests.fuzz.plain_moves import cut


def activation(m: Maker, x: Value) -> Value:
    def number(n: float) -> Value:
        return constant(n, x.dtype)

    kinds = ("none", "silu", "exp_silu", "gelu", "tanh_gelu", "relu", "sigmoid", "hard", "swish")
    kind = m.some(kinds)
    if kind == "exp_silu":
        return Div()(x, Add()(Exp()(Neg()(x)), number(1)))
    if kind == "silu":
        return Mul()(x, Sigmoid()(x))
    if kind == "swish":
        return Mul()(Sigmoid()(Mul()(x, number(1.702))), x)
    if kind == "gelu":
        half = Mul()(x, number(0.5))
        return Mul()(half, Add()(Erf()(Div()(x, number(math.sqrt(2)))), number(1)))
    if kind == "tanh_gelu":
        cubed = Mul()(number(0.044715), Pow()(x, number(3)))
        inner = Tanh()(Mul()(number(math.sqrt(2 / math.pi)), Add()(x, cubed)))
        return Mul()(Mul()(number(0.5), x), Add()(number(1), inner))
    if kind == "relu":
        return Max()(x, number(0))
    if kind == "hard":
        return Mul()(x, Mul()(Clip(0.0, 6.0)(Add()(x, number(3))), number(1 / 6)))
    return Sigmoid()(x) if kind == "sigmoid" else x


def dense(m: Maker, x: Value, width: int) -> Value:
    y = Dot()(x, m.weights(x.tensor.static[-1], width, like=x))
    if m.chance(0.5):
        y = Mul()(y, m.weights(width, like=x))
    return Add()(y, m.weights(width, like=x)) if m.chance(0.7) else y


def layer(m: Maker) -> None:
    x = m.pick_float(least_rank=2)
    m.add(activation(m, m.add(dense(m, x, int(m.some(SIZES))))))


def tower(m: Maker, y: Value, widths: list[int], act: Op | None, between: Op | None) -> Value:
    """Layers of these widths: operands in any order, weights that others may have too."""
    for width in widths:
        depth = y.tensor.static[-1]
        common = np.linspace(-1, 1, depth * width).reshape(depth, width)
        shared = constant(common.astype(y.dtype.numpy))
        y = Dot()(y, shared if m.chance(0.2) else m.weights(depth, width, like=y))
        bias = m.weights(width, like=y)
        y = Add()(bias, y) if m.chance(0.2) else Add()(y, bias)
        if between is not None:
            y = between(y)
        if act is not None and m.chance(0.9):
            y = Mul()(y, act(y)) if m.chance(0.8) else Mul()(act(y), y)
    return y


def towers(m: Maker) -> None:
    """Alike chains over one input or several, some deeper than others, joined or not."""
    x = m.pick_float(least_rank=2)
    others = [v for v, _ in m.pool if v.type == x.type]
    widths = [int(m.some(SIZES)) for _ in range(int(m.generator.integers(1, 4)))]
    acts = (Sigmoid(), Tanh(), None)
    act = m.some(acts)
    between = m.some((None, None, LayerNorm((-1,), 0.1), RmsNorm((-1,), 0.1), Softmax(-1)))
    ends = []
    for _ in range(int(m.generator.integers(2, 5))):
        y = m.some(others) if m.chance(0.3) else x
        if m.chance(0.1):
            y = Tanh()(dense(m, y, y.tensor.static[-1]))
        deep = len(widths) if m.chance(0.7) else int(m.generator.integers(1, len(widths) + 1))
        own = m.some(acts) if m.chance(0.2) else act
        ends.append(m.add(tower(m, y, widths[:deep], own, between)))
    if m.chance(0.5) and len({v.type for v in ends}) == 1:
        if m.chance(0.5):
            m.add(Concat(0)(*(Unsqueeze((0,))(v) for v in ends)))
        else:
            total = ends[0]
            for v in ends[1:]:
                total = Add()(total, v)
            m.add(total)


def sliced_rows(m: Maker) -> None:
    """Reductions, softmax and norms of slices that tile a value, of one width or not."""
    x = m.pick_float(least_rank=2)
    size = x.tensor.static[-1]
    if not size:
        return
    width = int(m.some([n for n in range(1, size + 1) if size % n == 0]))
    starts = [*range(0, size, width)] if m.chance(0.8) else [0, *([1] if size > 1 else [])]
    axis = int(m.some((-1, -1, 0)))
    keep = m.chance(0.5)
    choices = (
        ReduceSum((axis,), keep),
        ReduceMax((axis,), keep),
        Softmax(axis),
        LayerNorm((axis,), 0.1),
    )
    op = m.some(choices)
    for start, stop in zip(starts, [*starts[1:], size], strict=True):
        lows = (*(0,) * (x.tensor.rank - 1), start)
        highs = (*x.tensor.static[:-1], stop)
        m.add(Sigmoid()(op(Slice(lows, highs, (1,) * x.tensor.rank)(x))))


def convolution(m: Maker, x: Value, out: int | None = None) -> Value:
    channels, spatial = x.tensor.static[1], x.tensor.rank - 2
    groups = int(m.some([g for g in (1, 1, 1, 2, channels) if channels % g == 0]))
    out = out or groups * int(m.some((1, 2, 3)))
    kernel = tuple(int(m.some((1, 1, 2, 3))) for _ in range(spatial))
    pads = tuple(int(m.some((0, 0, 1))) for _ in range(spatial))
    more = tuple(int(m.some((0, 1))) for _ in range(spatial)) if m.chance(0.3) else pads
    strides = tuple(int(m.some((1, 1, 2))) for _ in range(spatial))
    dilations = tuple(int(m.some((1, 1, 2))) for _ in range(spatial))
    w = m.weights(out, channels // groups, *kernel, like=x)
    return Conv(strides, pads, more, dilations, groups)(x, w)


def per_channel(m: Maker, x: Value) -> Value:
    return m.weights(x.tensor.static[1], *(1,) * (x.tensor.rank - 2), like=x)


def conv_block(m: Maker) -> None:
    """Convolutions with what surrounds them in real models."""
    x = m.pick(lambda t: t.dtype.is_float and 3 <= t.rank <= 4 and t.size > 0)
    if m.chance(0.3):
        spatial = x.tensor.rank - 2
        before = (0, 0, *(int(m.some((0, 1))) for _ in range(spatial)))
        after = (0, 0, *(int(m.some((0, 1))) for _ in range(spatial)))
        zero = (constant(0.0, x.dtype),) if m.chance(0.4) else ()
        x = Pad(before, after)(x, *zero)
    if m.chance(0.3):
        x = m.some((Add(), Mul()))(x, per_channel(m, x))
    y = convolution(m, x)
    if m.chance(0.4):
        y = Add()(y, per_channel(m, y))
    if m.chance(0.4):
        y = Add()(Mul()(y, per_channel(m, y)), per_channel(m, y))
    if m.chance(0.5):
        groups = int(m.some([g for g in (1, 1, 2) if y.tensor.static[1] % g == 0]))
        spatial = y.tensor.rank - 2
        w = m.weights(2 * groups, y.tensor.static[1] // groups, *(1,) * spatial, like=y)
        one, none = (1,) * spatial, (0,) * spatial
        y = Conv((int(m.some((1, 2))),) * spatial, none, none, one, groups)(y, w)
        if m.chance(0.5):
            y = Add()(y, per_channel(m, y))
    m.add(activation(m, m.add(y)))


def conv_siblings(m: Maker) -> None:
    x = m.pick(lambda t: t.dtype.is_float and 3 <= t.rank <= 4 and t.size > 0)
    spatial = x.tensor.rank - 2
    kernel = (int(m.some((1, 3))),) * spatial
    op = Conv((1,) * spatial, (1,) * spatial, (1,) * spatial, (1,) * spatial)
    same = int(m.some((1, 2)))
    for i in range(int(m.generator.integers(2, 4))):
        out = same if m.chance(0.7) else i + 1
        y = Add()(op(x, m.weights(out, x.tensor.static[1], *kernel, like=x)),
                  m.weights(out, *(1,) * spatial, like=x))  # fmt: skip
        if m.chance(0.5):
            again = m.weights(2, out, *kernel, like=x)
            y = op(Mul()(y, Sigmoid()(y)), again)
        m.add(y)


def pool(m: Maker) -> None:
    x = m.pick(lambda t: t.dtype.is_float and 3 <= t.rank <= 4 and t.size > 0)
    spatial = x.tensor.rank - 2
    kind = m.some((MaxPool, AveragePool))
    kernel, none, one = (2,) * spatial, (0,) * spatial, (1,) * spatial
    m.add(kind(kernel, one, none, none, one)(x))


def product(m: Maker) -> None:
    """A dot of two values, neither constant."""
    x = m.pick_float(least_rank=2)
    y = Transpose((*range(x.tensor.rank - 2), x.tensor.rank - 1, x.tensor.rank - 2))(x)
    fits = [v for v, _ in m.pool if v.dtype == x.dtype and v.tensor.rank >= 2
            and v.tensor.static[-2] == x.tensor.static[-1]]  # fmt: skip
    m.add(Dot()(x, m.some(fits) if fits and m.chance(0.6) else y))


def reduce(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    axes = tuple(i for i in range(x.tensor.rank) if m.chance(0.5)) or (x.tensor.rank - 1,)
    m.add(m.some((ReduceSum, ReduceMax, ReduceMin))(axes, m.chance(0.5))(x))


def softmax(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    axis = (x.tensor.rank - 1,) if m.chance(0.7) else (int(m.generator.integers(x.tensor.rank)),)
    if m.chance(0.3):
        x = Mul()(x, constant(0.125, x.dtype))
    narrow = x.dtype
    if m.chance(0.3):
        x = Cast(dtype("f32"))(x)
    shifted = Sub()(x, ReduceMax(axis, True)(x)) if m.chance(0.8) else x
    e = Exp()(shifted)
    total = ReduceSum(axis, True)(e)
    kind = m.some(("quotient", "quotient", "product", "log"))
    if kind == "quotient":
        y = Div()(e, total)
    elif kind == "product":
        y = Mul()(e, Div()(constant(1.0, x.dtype), total))
    else:
        y = Sub()(shifted, Log()(total))
    m.add(y if x.dtype == narrow else Cast(narrow)(y))


def norm(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    narrow = x.dtype
    if m.chance(0.2):
        x = Cast(dtype("f32"))(x)
    axis = (x.tensor.rank - 1,)
    count = constant(float(x.tensor.static[-1]), x.dtype)
    centred = x if m.chance(0.4) else Sub()(x, Div()(ReduceSum(axis, True)(x), count))
    squares = Mul()(centred, centred) if m.chance(0.6) else Pow()(centred, constant(2.0, x.dtype))
    variance = Div()(ReduceSum(axis, True)(squares), count)
    deviation = Sqrt()(Add()(variance, constant(1e-3, x.dtype)))
    if m.chance(0.5):
        y = Div()(centred, deviation)
    else:
        y = Mul()(centred, Div()(constant(1.0, x.dtype), deviation))
    if m.chance(0.7):
        y = Mul()(y, m.weights(x.tensor.static[-1], like=x))
        if m.chance(0.6):
            y = Add()(y, m.weights(x.tensor.static[-1], like=x))
    m.add(y if x.dtype == narrow else Cast(narrow)(y))


def attention(m: Maker) -> None:
    """Heads cut out of one projection, with or without a mask."""
    x = m.pick(lambda t: t.dtype.is_float and t.rank == 3)
    batch, length, width = x.tensor.static
    heads, size = int(m.some((1, 2))), int(m.some((2, 4)))

    def head(rows: tuple[int, ...]) -> Value:
        y = Dot()(x, m.weights(width, heads * size, like=x))
        return Transpose(rows)(Reshape((batch, length, heads, size))(y))

    q, v = head((0, 2, 1, 3)), head((0, 2, 1, 3))
    k = head((0, 2, 3, 1))
    scale = constant(1 / math.sqrt(size), x.dtype)
    scores = Mul()(Dot()(q, k), scale) if m.chance(0.7) else Dot()(Mul()(q, scale), k)
    if m.chance(0.5):
        allowed = np.tril(np.ones((length, length))) > 0
        scores = Add()(scores, constant(np.where(allowed, 0.0, -1e3), x.dtype))
    e = Exp()(Sub()(scores, ReduceMax((3,), True)(scores)))
    weights = Div()(e, ReduceSum((3,), True)(e))
    if m.chance(0.3):
        across = Dot()(Transpose((0, 1, 3, 2))(v), Transpose((0, 1, 3, 2))(weights))
        mixed = Transpose((0, 3, 1, 2))(across)
    else:
        mixed = Transpose((0, 2, 1, 3))(Dot()(weights, v))
    m.add(Reshape((batch, length, heads * size))(mixed))


def _rope_by_parts(m: Maker, x: Value, angle: Array) -> Value:
    """The halves of x turned, or its even and odd elements."""
    size = x.tensor.static[3]
    cos, sin = constant(np.cos(angle), x.dtype), constant(np.sin(angle), x.dtype)
    by_turns = m.chance(0.5)
    if by_turns:
        a, b = cut(x, 3, 0, size, 2), cut(x, 3, 1, size, 2)
    else:
        a, b = cut(x, 3, 0, size // 2), cut(x, 3, size // 2, size)
    first, second = Sub()(Mul()(a, cos), Mul()(b, sin)), Add()(Mul()(a, sin), Mul()(b, cos))
    if not by_turns:
        return Concat(3)(first, second)
    pairs = Concat(4)(Unsqueeze((4,))(first), Unsqueeze((4,))(second))
    return Reshape(x.tensor.static)(pairs)


def rope(m: Maker) -> None:
    x = m.pick(lambda t: t.dtype.is_float and t.rank == 4 and t.static[-1] % 2 == 0)
    length, size = x.tensor.static[2:]
    angle = np.arange(length)[:, None] / 10.0 ** (np.arange(size // 2) / size)[None]
    if m.chance(0.5):
        m.add(_rope_by_parts(m, x, angle))
        return
    both = np.concatenate([angle, angle], -1)
    first, second = cut(x, 3, 0, size // 2), cut(x, 3, size // 2, size)
    turned = Concat(3)(Neg()(second), first)
    cos, sin = constant(np.cos(both), x.dtype), constant(np.sin(both), x.dtype)
    m.add(Add()(Mul()(x, cos), Mul()(turned, sin)))
