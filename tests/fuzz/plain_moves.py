"""Moves that grow a random graph: elementwise work, views, samples of any op."""

from __future__ import annotations

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype, from_numpy
from monograph.ops import OPS
from monograph.ops.cast import Cast
from monograph.ops.control import If
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
    Sigmoid,
    Sub,
    Tanh,
    Where,
)
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Pad
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from tests.fuzz.maker import SIZES, Maker
from tests.samples import make_operand

UNARY = (Neg(), Abs(), Exp(), Sigmoid(), Tanh(), Erf(), Clip(0.0, 6.0), Clip(-1.0, 1.0))
LEFT_OUT = {
    "input", "constant", "item", "fail", "random_normal", "random_uniform", "decode_image",
    "mel_weights", "unique", "non_zero", "string_split", "deferred", "loop", "scan",
}  # fmt: skip
"""Samples that are no use here: no tensors, random, or with sizes known only at run time."""


def unary(m: Maker) -> None:
    y = m.add(m.some(UNARY)(m.pick_float()))
    if m.chance(0.3):
        m.add(m.some((Abs(), Neg(), Clip(-0.5, 2.0), Clip(0.0, 1.0)))(y))


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
