"""Moves that grow a random ONNX graph whose sizes differ from run to run."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from tests.campaign.graphs.grower import DroppedError, Grower, Held

FAR = 2**40
UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Floor", "Sqrt", "Softsign", "Sin")
REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def weights(g: Grower, *shape: int, like: Held) -> np.ndarray:
    """A constant whose products keep their scale."""
    fan = math.prod(shape[1:]) if len(shape) > 2 else max(shape[0], 1)
    return (g.d.generator.normal(size=shape) / math.sqrt(max(fan, 1))).astype(like.dtype)


def unary(g: Grower) -> Held:
    op, x = g.d.some(UNARY), g.floats()
    return g.add(op, g.add("Abs", x) if op == "Sqrt" else x)


def binary(g: Grower) -> Held:
    x = g.pick(lambda h: h.dtype.kind in "fi" and h.dtype.itemsize >= 4)
    op = g.d.some(("Add", "Sub", "Mul", "Add", "Max", "Min"))
    others = [h for h in g.pool if h.dtype == x.dtype]
    if g.d.chance(0.5):
        other = g.d.some(others)
        return g.add(op, other, x) if g.d.chance(0.3) else g.add(op, x, other)
    shape = tuple(1 if n is None or g.d.chance(0.3) else n for n in x.shape)
    return g.add(op, x, g.d.array(x.dtype, shape[g.d.number(0, len(shape)) :], -3, 3))


def select(g: Grower) -> Held:
    x = g.floats()
    return g.add("Where", g.add("Less", x, np.array(0.25, x.dtype)), x, np.array(-1, x.dtype))


def cast(g: Grower) -> Held:
    x = g.pick(lambda h: h.dtype.kind in "fib")
    to = g.d.some((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64,
                   TensorProto.BOOL, TensorProto.DOUBLE))  # fmt: skip
    return g.add("Cast", x, to=to)


def transpose(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 2)
    return g.add("Transpose", x, perm=[int(i) for i in g.d.generator.permutation(x.rank)])


def reshape(g: Grower) -> Held:
    """By a constant target with -1, or by one that is computed from sizes."""
    x = g.pick(lambda h: h.rank >= 1)
    if g.d.chance(0.4):
        return g.add("Reshape", x, ints(-1))
    if g.d.chance(0.4):
        sizes = g.add("Shape", x)
        last = g.add("Slice", sizes, ints(x.rank - 1), ints(x.rank))
        target = g.add("Concat", ints_held(g, -1), last, axis=0)
        return g.add("Reshape", x, target)
    if x.rank >= 2 and g.d.chance(0.5):
        return g.add("Reshape", x, ints(*(0,) * (x.rank - 2), -1))
    size = x.shape[-1]
    if size is None or size < 2:
        return g.add("Flatten", x, axis=g.d.number(-x.rank, x.rank))
    part = g.d.some([k for k in range(1, size + 1) if size % k == 0])
    return g.add("Reshape", x, ints(*(0,) * (x.rank - 1), part, size // part))


def ints_held(g: Grower, *values: int) -> Held:
    """A constant as an operand among computed ones."""
    name = g.constant(ints(*values))
    return Held(name, (ints(*values),) * g.runs)


def ranks(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank <= 4)
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if ones and g.d.chance(0.5):
        return g.add("Squeeze", x, ints(g.d.some(ones)))
    return g.add("Unsqueeze", x, ints(g.d.number(-x.rank - 1, x.rank)))


def slices(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1)
    axis = g.d.axis(x.rank)
    least = x.least[axis]
    kind = g.d.number(0, 4)
    if kind == 0:
        bounds = (-1, -FAR, -1)
    elif kind == 1:
        bounds = (g.d.number(0, least), FAR, g.d.some((1, 1, 2, 3)))
    elif kind == 2:
        bounds = (0, -g.d.number(0, max(least, 1)) or FAR, 1)
    elif kind == 3:
        bounds = (-g.d.number(1, least + 1), FAR, g.d.some((1, 2)))
    else:
        bounds = (-g.d.number(1, least + 1), -FAR, -g.d.number(1, 3))
    start, end, step = bounds
    return g.add("Slice", x, ints(start), ints(end), ints(axis), ints(step))


def slice_by_size(g: Grower) -> Held:
    """A slice whose end is the size of another value."""
    x, y = g.pick(lambda h: h.rank >= 1), g.pick(lambda h: h.rank >= 1)
    axis, other = g.d.axis(x.rank), g.d.number(0, y.rank - 1)
    end = g.add("Slice", g.add("Shape", y), ints(other), ints(other + 1))
    return g.add("Slice", x, ints(0), end, ints(axis))


def concat(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1)
    alike = [h for h in g.pool if h.dtype == x.dtype and h.rank == x.rank]
    return g.add("Concat", x, *(g.d.some(alike) for _ in range(g.d.number(1, 2))),
                 axis=g.d.axis(x.rank))  # fmt: skip


def split(g: Grower) -> list[Held]:
    x = g.pick(lambda h: h.rank >= 1)
    axis, count = g.d.axis(x.rank), g.d.number(2, 3)
    return g.add_all("Split", x, outputs=count, axis=axis, num_outputs=count)


def tile(g: Grower) -> Held:
    x = g.pick(lambda h: 1 <= h.rank <= 4)
    return g.add("Tile", x, ints(*(g.d.some((1, 1, 2, 3)) for _ in range(x.rank))))


def expand(g: Grower) -> Held:
    x, y = g.pick(), g.pick(lambda h: h.rank >= 1)
    return g.add("Expand", x, g.add("Shape", y))


def pad(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1 and h.is_float)
    mode = g.d.some(("constant", "constant", "edge", "reflect"))
    most = [2 if mode != "reflect" else max(0, min(2, n - 1)) for n in x.least]
    pads = [g.d.number(0, m) if g.d.chance(0.5) else 0 for _ in range(2) for m in most]
    return g.add("Pad", x, ints(*pads), mode=mode)


def gather(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1)
    axis = g.d.axis(x.rank)
    least = x.least[axis]
    if least < 1:
        raise DroppedError("nothing to gather")
    where = g.d.array(np.int64, g.d.some(((), (2,), (3,), (2, 2))), -least, least - 1)
    return g.add("Gather", x, where, axis=axis)


def gather_elements(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1 and h.is_float)
    axis = g.d.axis(x.rank)
    where = g.add("ArgMax", x, axis=axis, keepdims=1)
    return g.add("GatherElements", x, where, axis=axis)


def scatter(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1 and h.is_float)
    axis = g.d.axis(x.rank)
    where = g.add("ArgMin", x, axis=axis, keepdims=1)
    least = g.add("ReduceMin", x, ints(axis), keepdims=1)
    return g.add("ScatterElements", x, where, least, axis=axis,
                 reduction=g.d.some(("none", "add", "max")))  # fmt: skip


def scan(g: Grower) -> Held:
    x = g.pick(lambda h: h.rank >= 1 and h.dtype.kind in "fi" and h.dtype.itemsize >= 4)
    return g.add("CumSum", x, np.array(g.d.axis(x.rank), np.int64), reverse=g.d.number(0, 1),
                 exclusive=g.d.number(0, 1))  # fmt: skip


def reduce(g: Grower) -> Held:
    x = g.floats(least=1)
    return g.add(g.d.some(REDUCE), x, ints(*g.d.axes(x.rank)), keepdims=g.d.number(0, 1)) \
        if g.opset >= 18 else g.add("ReduceSum", x, ints(*g.d.axes(x.rank)))  # fmt: skip


def arg_reduce(g: Grower) -> Held:
    x = g.floats(least=1)
    return g.add(g.d.some(("ArgMax", "ArgMin")), x, axis=g.d.axis(x.rank),
                 keepdims=g.d.number(0, 1), select_last_index=g.d.number(0, 1))  # fmt: skip


def top_k(g: Grower) -> Held:
    x = g.floats(least=1)
    axis = g.d.axis(x.rank)
    k = g.d.number(1, max(1, x.least[axis]))
    return g.add_all("TopK", x, ints(k), outputs=2, axis=axis, largest=g.d.number(0, 1))[0]


def softmax(g: Grower) -> Held:
    x = g.floats(least=1)
    return g.add(g.d.some(("Softmax", "LogSoftmax")), x, axis=g.d.axis(x.rank))


def norm(g: Grower) -> Held:
    x = g.floats(least=2)
    size = x.shape[-1]
    if size is None or size < 2:
        raise DroppedError("no fixed size")
    scale = np.abs(weights(g, size, like=x)) + x.dtype.type(0.5)
    return g.add("LayerNormalization", x, scale, weights(g, size, like=x), axis=-1, epsilon=0.01)


def dense(g: Grower) -> Held:
    x = g.floats(least=2)
    size = x.shape[-1]
    if size is None:
        raise DroppedError("no fixed size")
    out = g.d.some((1, 3, 4, 8))
    y = g.add("MatMul", x, weights(g, size, out, like=x))
    if g.d.chance(0.6):
        y = g.add("Add", y, weights(g, out, like=x))
    return g.add("Relu", y) if g.d.chance(0.4) else y


def gram(g: Grower) -> Held:
    """x times its own transpose: both sizes may be open."""
    x = g.floats(least=2, most=4)
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    y = g.add("Transpose", x, perm=perm)
    return g.add("MatMul", x, y) if g.d.chance(0.5) else g.add("MatMul", y, x)


def attend(g: Grower) -> Held:
    x = g.floats(least=2, most=4)
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    scores = g.add("MatMul", x, g.add("Transpose", x, perm=perm))
    scores = g.add("Mul", scores, np.array(0.3, x.dtype))
    return g.add("MatMul", g.add("Softmax", scores, axis=-1), x)


def conv(g: Grower) -> Held:
    x = g.floats(least=3, most=4)
    channels = x.shape[1]
    if channels is None or channels == 0:
        raise DroppedError("no fixed channels")
    spatial = x.rank - 2
    groups = g.d.some([n for n in (1, 1, channels) if channels % n == 0])
    kernel = [g.d.some((1, 2, 3)) for _ in range(spatial)]
    w = weights(g, groups * g.d.some((1, 2, 4)), channels // groups, *kernel, like=x)
    pads = [g.d.number(0, 1) for _ in range(2 * spatial)]
    strides = [g.d.some((1, 1, 2)) for _ in range(spatial)]
    return g.add("Conv", x, w, group=groups, pads=pads, strides=strides)


def pool(g: Grower) -> Held:
    x = g.floats(least=3, most=4)
    spatial = x.rank - 2
    if g.d.chance(0.25):
        return g.add(g.d.some(("GlobalAveragePool", "GlobalMaxPool")), x)
    op = g.d.some(("MaxPool", "AveragePool"))
    return g.add(op, x, kernel_shape=[2] * spatial, strides=[g.d.number(1, 2)] * spatial,
                 pads=[g.d.number(0, 1) for _ in range(2 * spatial)])  # fmt: skip


def resize(g: Grower) -> Held:
    x = g.pick(lambda h: h.dtype == np.float32 and h.rank == 4)
    scales = np.array([1, 1, g.d.some((1, 2)), g.d.some((1, 2, 3))], np.float32)
    return g.add("Resize", x, None, scales, mode=g.d.some(("nearest", "linear")),
                 coordinate_transformation_mode=g.d.some(("asymmetric", "half_pixel")),
                 **{"nearest_mode": "floor"})  # fmt: skip


def from_size(g: Grower) -> Held:
    """A range, or zeros, as long as a dimension is."""
    x = g.pick(lambda h: h.rank >= 1)
    axis = g.d.number(0, x.rank - 1)
    size = g.add("Gather", g.add("Shape", x), np.array(axis, np.int64), axis=0)
    if g.d.chance(0.6):
        return g.add("Range", np.array(0, np.int64), size, np.array(1, np.int64))
    shape = g.add("Unsqueeze", size, ints(0))
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])
    return g.add("ConstantOfShape", shape, value=value)


def one_hot(g: Grower) -> Held:
    x = g.pick(lambda h: h.dtype == np.int64 and h.rank <= 3)
    return g.add("OneHot", x, np.array(4, np.int64), np.array([0, 1], np.float32), axis=-1)


def triangle(g: Grower) -> Held:
    x = g.floats(least=2)
    return g.add("Trilu", x, np.array(g.d.number(-2, 2), np.int64), upper=g.d.number(0, 1))


WEIGHTS = {
    unary: 2, binary: 4, select: 1, cast: 1, transpose: 2, reshape: 3, ranks: 1, slices: 4,
    slice_by_size: 1, concat: 2, split: 1, tile: 1, expand: 1, pad: 1, gather: 2,
    gather_elements: 1, scatter: 1, scan: 1, reduce: 2, arg_reduce: 1, top_k: 1, softmax: 1,
    norm: 1, dense: 2, gram: 1, attend: 1, conv: 2, pool: 2, resize: 1, from_size: 1, one_hot: 1,
    triangle: 1,
}  # fmt: skip
"""The weight of each move against the others."""
MOVES = [move for move, weight in WEIGHTS.items() for _ in range(weight)]
