"""Random small graphs: samples of ops composed by type, and the shapes that big passes look for.

Every value is computed as it is made. One that overflows, or has no numbers at all, is dropped:
rewrites that reassociate promise nothing about those. What exact rewrites do on edge values is
checked apart, on the same graphs fed with edge values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype, from_numpy, unpack
from monograph.ir.evaluate import apply
from monograph.ops import OPS
from monograph.ops.cast import Cast
from monograph.ops.control import If
from monograph.ops.conv import Conv
from monograph.ops.elementwise import (
    Abs,
    Add,
    Clip,
    Div,
    Equal,
    Erf,
    Exp,
    Less,
    Max,
    Min,
    Mul,
    Neg,
    Not,
    Pow,
    Sigmoid,
    Sqrt,
    Sub,
    Tanh,
    Where,
)  # fmt: skip
from monograph.ops.extend import Pad
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.pool import AveragePool, MaxPool
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.reduce import ReduceMax, ReduceMin, ReduceSum
from monograph.ops.shape import (
    Broadcast,
    Concat,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)  # fmt: skip
from tests.samples import make_operand

SIZES = (1, 2, 2, 3, 4, 4, 6, 8)
MOST_ELEMENTS = 768
LARGEST = 1e4
UNARY = (Neg(), Abs(), Exp(), Sigmoid(), Tanh(), Erf(), Clip(0.0, 6.0), Clip(-1.0, 1.0))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e-5)
FLOATS = ("f32", "f32", "f32", "f32", "f64", "f16", "bf16")
LEFT_OUT = {
    "input", "constant", "item", "fail", "random_normal", "random_uniform", "decode_image",
    "mel_weights", "unique", "non_zero", "string_split", "deferred", "loop", "scan",
}  # fmt: skip
"""Samples that are no use here: no tensors, random, or with sizes known only at run time."""


@dataclass
class Maker:
    """A graph that grows by random moves."""

    generator: np.random.Generator
    float_type: str = "f32"
    pool: list[tuple[Value, np.ndarray]] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)

    # Choices -----------------------------------------------------------------------------------

    def some(self, options: Sequence[Any]) -> Any:
        return options[int(self.generator.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = int(self.generator.integers(1, 5)) if rank is None else rank
        return tuple(int(self.some(SIZES)) for _ in range(rank))

    def pick(self, wanted: Callable[[TensorType], bool] = lambda t: True) -> Value:
        """A value that is there already, recent ones more often; a new input where none fits."""
        fits = [v for v, _ in self.pool if wanted(v.tensor)]
        if not fits:
            for _ in range(50):
                made = TensorType(dtype(self.float_type), self.shape())
                if wanted(made):
                    return self.input(made)
            raise MonographError("nothing fits")
        if self.chance(0.6):
            fits = fits[-4:]
        return self.some(fits)

    def pick_float(self, least_rank: int = 0) -> Value:
        return self.pick(lambda t: t.dtype.is_float and t.rank >= least_rank)

    # Leaves ------------------------------------------------------------------------------------

    def input(self, type_: TensorType, data: Any = None) -> Value:
        name = f"x{len(self.inputs)}"
        value = Input(name, type_)()
        if data is None:
            data = self.numbers(type_)
        self.inputs.append(value)
        self.feeds[name] = data
        self.pool.append((value, data))
        return value

    def numbers(self, type_: TensorType) -> np.ndarray:
        if type_.dtype.is_float:
            data = self.generator.normal(size=type_.static)
        else:
            data = self.generator.integers(0, 2, type_.static)
        return np.asarray(data).astype(type_.dtype.numpy)

    def weights(self, *shape: int, like: Value) -> Value:
        """A constant whose products keep their scale."""
        fan = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        data = self.generator.normal(size=shape) / math.sqrt(max(1, fan))
        return constant(data, like.dtype)

    def operand(self, like: Value) -> Value:
        """A constant that broadcasts with a value: a special number, or one per element of axes."""
        shape = like.tensor.static
        if self.chance(0.4):
            return constant(np.full((1,) * int(self.generator.integers(2)), self.some(NUMBERS)),
                            like.dtype)  # fmt: skip
        cut = int(self.generator.integers(0, len(shape) + 1))
        kept = tuple(d if self.chance(0.6) else 1 for d in shape[cut:])
        return constant(self.generator.normal(size=kept), like.dtype)

    # Growth ------------------------------------------------------------------------------------

    def add(self, value: Value) -> Value:
        """Computes a value and all below it that is new; keeps what has plain numbers."""
        known = dict(self.pool)
        stack = [value]
        while stack:
            top = stack[-1]
            missing = [v for v in top.inputs if v not in known]
            if top in known:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                known[top] = apply(top, [known[v] for v in top.inputs])
                stack.pop()
        data = known[value]
        self.check(value, data)
        self.pool.append((value, data))
        return value

    def add_results(self, value: Value) -> None:
        """As `add`, for an op that may have several results."""
        items = (value,) if isinstance(value.type, TensorType) else unpack(value)
        for item in items:
            self.add(item)

    def check(self, value: Value, data: Any) -> None:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            raise MonographError("no static tensor")
        if value.type.size > MOST_ELEMENTS:
            raise MonographError("too large")
        if value.dtype.is_float:
            wide = np.abs(np.asarray(data).astype(np.float64))
            if not np.isfinite(wide).all() or wide.max(initial=0) > LARGEST:
                raise MonographError("not plain numbers")

    def grow(self, moves: int) -> None:
        made = 0
        for _ in range(4 * moves):
            try:
                self.some(MOVES)(self)
                made += 1
            except MonographError:
                continue
            if made == moves:
                return

    def graph(self) -> Graph:
        """The values that nothing reads, and a few others, as outputs."""
        values = [v for v, _ in self.pool if not isinstance(v.op, Input)]
        if not values:
            values = [self.add(Neg()(self.pick_float()))]
        read = {i for v in values for i in _below(v)}
        ends = list(dict.fromkeys(v for v in values if v not in read))
        ends = ends[-6:]
        ends += [v for v in dict.fromkeys(values) if v not in ends and self.chance(0.08)]
        outputs = tuple((f"y{i}", v) for i, v in enumerate(ends))
        used = set(Graph(tuple(self.inputs), outputs).values)
        inputs = tuple(v for v in self.inputs if v in used)
        self.feeds = {v.op.label: self.feeds[v.op.label] for v in inputs}  # type: ignore[attr-defined]
        graph = Graph(inputs, outputs)
        origins = {v: f"{v.op.name}_{i}" for i, v in enumerate(graph.values)
                   if not isinstance(v.op, Input)}  # fmt: skip
        return Graph(inputs, outputs, "random", origins)


def _below(value: Value) -> set[Value]:
    seen: set[Value] = set()
    stack = list(value.inputs)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack.extend(v.inputs)
    return seen


def random_graph(seed: int) -> tuple[Graph, dict[str, Any]]:
    """The graph of a seed, and arrays to feed it."""
    generator = np.random.default_rng(seed)
    maker = Maker(generator)
    maker.float_type = maker.some(FLOATS)
    for _ in range(int(generator.integers(1, 4))):
        maker.input(TensorType(dtype(maker.float_type), maker.shape()))
    maker.grow(int(generator.integers(2, 14)))
    graph = maker.graph()
    return graph, maker.feeds


# Moves: elementwise ------------------------------------------------------------------------------


def unary(m: Maker) -> None:
    m.add(m.some(UNARY)(m.pick_float()))


def binary(m: Maker) -> None:
    op = m.some((Add(), Sub(), Mul(), Div(), Max(), Min(), Add(), Mul()))
    a = m.pick_float()
    fits = [v for v, _ in m.pool if v.dtype == a.dtype]
    b = m.operand(a) if m.chance(0.6) else m.some(fits)
    m.add(op(b, a) if m.chance(0.3) else op(a, b))


def chain_of_constants(m: Maker) -> None:
    """Scales and biases one after another, as normalisations leave them."""
    x = m.pick_float()
    for _ in range(int(m.generator.integers(2, 5))):
        x = m.add(m.some((Add(), Mul(), Sub(), Div()))(x, m.operand(x)))


def select(m: Maker) -> None:
    x = m.pick_float()
    condition = Less()(x, m.operand(x)) if m.chance(0.7) else Equal()(x, x)
    if m.chance(0.3):
        condition = Not()(Not()(condition))
    m.add(Where()(condition, x, m.operand(x)))


def cast(m: Maker) -> None:
    x = m.pick()
    y = m.add(Cast(dtype(m.some(("f32", "f16", "f64", "i32", "i64", "bool"))))(x))
    if m.chance(0.6):
        m.add(Cast(dtype(m.some(("f32", m.float_type, "f64"))))(y))


# Moves: shape ------------------------------------------------------------------------------------


def reshaped_size(m: Maker, size: int) -> tuple[int, ...]:
    dims: list[int] = []
    while size > 1 and len(dims) < 4:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        d = int(m.some(divisors))
        dims.append(d)
        size //= d
    return (*dims, size) if size > 1 or m.chance(0.3) else tuple(dims)


def reshape(m: Maker) -> None:
    x = m.pick()
    m.add(Reshape(reshaped_size(m, x.tensor.size))(x))


def transpose(m: Maker) -> None:
    x = m.pick(lambda t: t.rank >= 2)
    m.add(Transpose(tuple(map(int, m.generator.permutation(x.tensor.rank))))(x))


def ones(m: Maker) -> None:
    x = m.pick()
    axes = [i for i, d in enumerate(x.tensor.static) if d == 1]
    if axes and m.chance(0.5):
        m.add(Squeeze((int(m.some(axes)),))(x))
    else:
        m.add(Unsqueeze((int(m.generator.integers(x.tensor.rank + 1)),))(x))


def broadcast(m: Maker) -> None:
    x = m.pick()
    shape = tuple(int(m.some(SIZES)) if d == 1 else d for d in x.tensor.static)
    m.add(Broadcast((int(m.some(SIZES)), *shape) if m.chance(0.4) else shape)(x))


def cut(x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    shape = x.tensor.static
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(shape))
    steps = tuple(step if i == axis else 1 for i in range(len(shape)))
    return Slice(starts, stops, steps)(x)


def pieces(m: Maker, x: Value, axis: int) -> list[Value]:
    """Slices along an axis: a tiling, mostly; else with a gap or an overlap."""
    size = x.tensor.static[axis]
    count = int(m.generator.integers(2, 5))
    points = sorted(int(p) for p in m.generator.integers(0, size + 1, count - 1))
    if m.chance(0.6) and size % count == 0:
        points = [size // count * i for i in range(1, count)]
    bounds = list(zip([0, *points], [*points, size], strict=True))
    if m.chance(0.25):
        i = int(m.generator.integers(len(bounds)))
        a, b = bounds[i]
        bounds[i] = (max(0, a - 1), b) if m.chance(0.5) else (min(a + 1, b), b)
    return [cut(x, axis, a, b) for a, b in bounds if b > a]


def slice_(m: Maker) -> None:
    x = m.pick(lambda t: t.rank >= 1 and t.size > 0)
    axis = int(m.generator.integers(x.tensor.rank))
    size = x.tensor.static[axis]
    a, b = sorted(int(i) for i in m.generator.integers(0, size + 1, 2))
    step = int(m.some((1, 1, 1, 2)))
    if m.chance(0.1):
        m.add(cut(x, axis, size - 1, -size - 1, -1))
    elif b > a:
        m.add(cut(x, axis, a, b, step))


def split_work_join(m: Maker) -> None:
    """The slices of a value, work on each, and (often) a concat of what came of them."""
    x = m.pick_float(least_rank=1)
    axis = int(m.generator.integers(x.tensor.rank))
    parts = pieces(m, x, axis)
    kind = m.some(("none", "unary", "silu", "constants", "shared", "unsqueeze", "mixed"))
    shared = m.operand(x)
    made = []
    for i, part in enumerate(parts):
        if kind == "unary" or (kind == "mixed" and i % 2):
            part = Exp()(Clip(-2.0, 2.0)(part))
        elif kind == "silu":
            part = Mul()(part, Sigmoid()(part))
        elif kind == "constants":
            part = Add()(Mul()(part, m.operand(part)), m.operand(part))
        elif kind == "shared" and shared.tensor.size == 1:
            part = Tanh()(Add()(part, shared))
        elif kind == "unsqueeze":
            part = Unsqueeze((int(axis),))(Sigmoid()(part))
        made.append(m.add(part))
    if m.chance(0.25):
        made = [made[i] for i in m.generator.permutation(len(made))]
    if m.chance(0.7):
        m.add(Concat(axis)(*made))


def join(m: Maker) -> None:
    x = m.pick(lambda t: t.rank >= 1)
    axis = int(m.generator.integers(x.tensor.rank))
    rest = x.tensor.static[:axis] + x.tensor.static[axis + 1 :]
    fits = [
        v for v, _ in m.pool
        if v.dtype == x.dtype and v.tensor.rank == x.tensor.rank
        and v.tensor.static[:axis] + v.tensor.static[axis + 1 :] == rest
    ]  # fmt: skip
    chosen = [m.some(fits) for _ in range(int(m.generator.integers(2, 4)))]
    if m.chance(0.3):
        chosen.append(m.weights(*x.tensor.static, like=x))
    m.add(Concat(axis)(*chosen))


def pad(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    before = tuple(int(m.some((0, 0, 1, 2))) for _ in x.tensor.static)
    after = tuple(int(m.some((0, 0, 1))) for _ in x.tensor.static)
    m.add(Pad(before, after)(x))


# Moves: layers -----------------------------------------------------------------------------------


def activation(m: Maker, x: Value) -> Value:
    def number(n: float) -> Value:
        return constant(n, x.dtype)

    kind = m.some(("none", "silu", "gelu", "tanh_gelu", "relu", "sigmoid", "hard", "swish"))
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


def towers(m: Maker) -> None:
    """Alike chains over one input or several, some deeper than others, joined or not."""
    x = m.pick_float(least_rank=2)
    others = [v for v, _ in m.pool if v.type == x.type]
    widths = [int(m.some(SIZES)) for _ in range(int(m.generator.integers(1, 4)))]
    act = m.some((Sigmoid(), Tanh(), None))
    ends = []
    for _ in range(int(m.generator.integers(2, 5))):
        y = m.some(others) if m.chance(0.3) else x
        deep = len(widths) if m.chance(0.7) else int(m.generator.integers(1, len(widths) + 1))
        for width in widths[:deep]:
            y = Dot()(y, m.weights(y.tensor.static[-1], width, like=y))
            y = Add()(y, m.weights(width, like=y))
            if act is not None:
                y = Mul()(y, act(y)) if m.chance(0.9) else y
        ends.append(m.add(y))
    if m.chance(0.5) and len({v.type for v in ends}) == 1:
        if m.chance(0.5):
            m.add(Concat(0)(*(Unsqueeze((0,))(v) for v in ends)))
        else:
            total = ends[0]
            for v in ends[1:]:
                total = Add()(total, v)
            m.add(total)


def convolution(m: Maker, x: Value, out: int | None = None) -> Value:
    channels, spatial = x.tensor.static[1], x.tensor.rank - 2
    if channels == 0:
        raise MonographError("no channels")
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
    x = m.pick_float(least_rank=3)
    if x.tensor.rank > 4:
        return
    if m.chance(0.3):
        spatial = x.tensor.rank - 2
        before = (0, 0, *(int(m.some((0, 1))) for _ in range(spatial)))
        after = (0, 0, *(int(m.some((0, 1))) for _ in range(spatial)))
        x = Pad(before, after)(x)
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
    x = m.pick(lambda t: t.dtype.is_float and 3 <= t.rank <= 4)
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
    x = m.pick(lambda t: t.dtype.is_float and 3 <= t.rank <= 4)
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


# Moves: reductions and what is recognised --------------------------------------------------------


def reduce(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    axes = tuple(i for i in range(x.tensor.rank) if m.chance(0.5)) or (x.tensor.rank - 1,)
    m.add(m.some((ReduceSum, ReduceMax, ReduceMin))(axes, m.chance(0.5))(x))


def softmax(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
    axis = (x.tensor.rank - 1,) if m.chance(0.7) else (int(m.generator.integers(x.tensor.rank)),)
    if m.chance(0.3):
        x = Mul()(x, constant(0.125, x.dtype))
    shifted = Sub()(x, ReduceMax(axis, True)(x)) if m.chance(0.8) else x
    e = Exp()(shifted)
    m.add(Div()(e, ReduceSum(axis, True)(e)))


def norm(m: Maker) -> None:
    x = m.pick_float(least_rank=1)
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
    m.add(y)


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
    mixed = Transpose((0, 2, 1, 3))(Dot()(weights, v))
    m.add(Reshape((batch, length, heads * size))(mixed))


def rope(m: Maker) -> None:
    x = m.pick(lambda t: t.dtype.is_float and t.rank == 4 and t.static[-1] % 2 == 0)
    length, size = x.tensor.static[2:]
    angle = np.arange(length)[:, None] / 10.0 ** (np.arange(size // 2) / size)[None]
    both = np.concatenate([angle, angle], -1)
    first, second = cut(x, 3, 0, size // 2), cut(x, 3, size // 2, size)
    turned = Concat(3)(Neg()(second), first)
    cos, sin = constant(np.cos(both), x.dtype), constant(np.sin(both), x.dtype)
    m.add(Add()(Mul()(x, cos), Mul()(turned, sin)))


# Moves: others -----------------------------------------------------------------------------------


def lookups(m: Maker) -> None:
    shape = m.shape(int(m.some((1, 2))))
    width = int(m.some(SIZES))
    for _ in range(int(m.generator.integers(1, 4))):
        rows = int(m.some((2, 3, 5)))
        index = m.generator.integers(-rows, rows, shape).astype(np.int64)
        where = m.input(TensorType(from_numpy(index.dtype), shape), index)
        table = constant(m.generator.normal(size=(rows, width)), dtype(m.float_type))
        m.add(Gather(0)(table, where))


def quantise(m: Maker) -> None:
    x = m.pick(lambda t: t.dtype.name == "f32" and t.rank >= 1)
    scale, zero = constant(np.float32(0.05)), constant(np.uint8(128))
    y = m.add(Quantize(dtype("u8"))(x, scale, zero))
    m.add(Dequantize(dtype("f32"))(y, scale, zero))


def branches(m: Maker) -> None:
    """A sub-graph on each side of a condition."""
    x = m.pick_float(least_rank=1)
    inner = Input("inner", x.type)()
    one = constant(1.0, x.dtype)
    then = Graph((inner,), (("r", Mul()(Neg()(Neg()(inner)), one)),), "then")
    doubled = Mul()(Mul()(inner, constant(2.0, x.dtype)), constant(3.0, x.dtype))
    other = Graph((inner,), (("r", Add()(doubled, one)),), "else")
    flag = m.input(TensorType(dtype("bool"), ()), np.asarray(m.chance(0.5)))
    m.add_results(If(then, other)(flag, x, x))


SAMPLES = [(op, s) for op in OPS.values() if op.name not in LEFT_OUT for s in op.samples]


def sample(m: Maker) -> None:
    """A sample of any op, fed with values of its types where there are some."""
    op, chosen = m.some(SAMPLES)
    operands = []
    for i, description in enumerate(chosen.inputs):
        type_, data = make_operand(description, int(m.generator.integers(1 << 30)) + i)
        if not isinstance(type_, TensorType) or type_.dtype.is_string:
            raise MonographError("no tensor")
        alike = [v for v, _ in m.pool if v.type == type_]
        plain = isinstance(description, str) and " in " not in description
        if alike and plain and m.chance(0.7):
            operands.append(m.some(alike))
        elif m.chance(0.2):
            operands.append(constant(data))
        else:
            operands.append(m.input(type_, data))
    m.add_results(op(**chosen.attributes)(*operands))


MOVES: tuple[Callable[[Maker], None], ...] = (
    unary, binary, binary, binary, chain_of_constants, select, cast,
    reshape, reshape, transpose, transpose, ones, broadcast, slice_, split_work_join,
    split_work_join, join, pad,
    layer, layer, towers, towers, conv_block, conv_block, conv_siblings, pool, product,
    reduce, softmax, norm, attention, rope, lookups, quantise, branches, sample, sample, sample,
)  # fmt: skip
