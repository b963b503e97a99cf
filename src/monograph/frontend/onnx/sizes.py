"""Arithmetic on sizes during import: ints if they are known, values if not.

Converters write `reshape(x, [size_of(x, 0), 4, ...])` without a check for open dimensions.
Errors for sizes that a model cannot accept name the feed or the `dims` at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx

from monograph.errors import ConfigError, FeedError, InferError
from monograph.frontend.onnx.dtypes import value_type
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.size_search import known_sizes
from monograph.ir import UNKNOWN, Array, Dim, TensorType, Value, constant
from monograph.ir.dtype import i64
from monograph.ir.sizes import any_open, hint_of
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import Require, deferred
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Iota

Size: TypeAlias = int | Value
"""A size: an int, or a scalar i64 computed at run time."""


def size_of(x: Value, axis: int) -> Size:
    """One dimension of a value."""
    dim = x.tensor.dim(axis)
    if isinstance(dim, int):
        return dim
    return Gather(0)(sh.ShapeOf()(x), constant(axis % x.tensor.rank, i64))


def size_value(x: Value, axis: int) -> Value:
    """Return one dimension of a value as a scalar: a constant if it is known."""
    return scalar(size_of(x, axis))


def sizes_of(x: Value) -> list[Size]:
    return [size_of(x, axis) for axis in range(x.tensor.rank)]


def shape_vector(x: Value) -> Value:
    """All dimensions of a value, as a vector; the rank need not be known."""
    return constant(x.tensor.static, i64) if x.tensor.is_static else sh.ShapeOf()(x)


def scalar(size: Size) -> Value:
    return constant(_checked(size), i64) if isinstance(size, int) else size


def vector(sizes: Sequence[Size]) -> Value:
    """Return sizes as a vector: a constant if all are known."""
    ints = [s for s in sizes if isinstance(s, int)]
    if len(ints) == len(sizes):
        made: Array = np.array([_checked(s) for s in ints], object if any_open(ints) else np.int64)
        return constant(made, i64)
    return fold(sh.Concat(0)(*[sh.Unsqueeze((0,))(scalar(s)) for s in sizes]))


def _checked(size: int) -> int:
    """Return a computed size; raise an error if it does not fit 64 bits."""
    if not -(2**63) <= hint_of(size) < 2**63:
        raise InferError("a size does not fit 64 bits", given=size)
    return size


def plus(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return ew.Add()(scalar(a), scalar(b))


def times(*factors: Size) -> Size:
    fixed = 1
    result: Value | None = None
    for f in factors:
        if isinstance(f, int):
            fixed *= f
        else:
            result = f if result is None else ew.Mul()(result, f)
    if result is None:
        return fixed
    return result if fixed == 1 else ew.Mul()(result, scalar(fixed))


def divided(a: Size, b: Size) -> Size:
    """a / b of sizes (none negative), rounded down."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return ew.Div()(scalar(a), scalar(b))


def iota(size: Size) -> Value:
    """0, 1, ... size - 1."""
    return deferred(Iota, (), {"size": fold(scalar(size))})


def broadcast_to(x: Value, sizes: Sequence[Size]) -> Value:
    return deferred(sh.Broadcast, (x,), {"shape": vector(sizes)})


def reshape(x: Value, sizes: Sequence[Size]) -> Value:
    """x under a shape of as many elements."""
    return reshape_to(x, vector(sizes))


def reshape_to(x: Value, sizes: Value, copy_zeros: bool = False) -> Value:
    """Reshape x to the shape in a vector of sizes, `sh.INFER` and `sh.COPY`.

    With `copy_zeros` a zero stands for `sh.COPY`.
    """
    settled = _settled_shape(x.tensor, known_sizes(sizes), copy_zeros)
    if settled is not None:
        return sh.Reshape(settled)(x)
    if copy_zeros:
        copies = ew.Equal()(sizes, constant(0, sizes.dtype))
        sizes = ew.Where()(copies, constant(sh.COPY, sizes.dtype), sizes)
    return deferred(sh.Reshape, (x,), {"shape": sizes})


def _settled_shape(
    x: TensorType, sizes: tuple[Dim, ...] | None, copy_zeros: bool
) -> tuple[int, ...] | None:
    """Return an equivalent shape without run-time sizes, if there is one.

    A symbol that x has at the same position becomes a copy. One unknown size is inferred from the
    others if none of those is zero.
    """
    if sizes is None:
        return None
    given = x.shape or ()
    result: list[int] = []
    for i, d in enumerate(sizes):
        if isinstance(d, int):
            result.append(sh.COPY if d == 0 and copy_zeros else d)
        elif d != UNKNOWN and i < len(given) and given[i] == d:
            result.append(sh.COPY)
        elif sh.INFER in result or sh.INFER in sizes or (0 in sizes and not copy_zeros):
            return None
        else:
            result.append(sh.INFER)
    return tuple(result)


# Conditions


def _dim(size: Size) -> Dim:
    """Return a size as a dimension: an int, a symbol, or UNKNOWN."""
    found = (size,) if isinstance(size, int) else known_sizes(size)
    return found[0] if found is not None and len(found) == 1 else UNKNOWN


def required(x: Value, rule: str, expected: Sequence[Size], given: Sequence[Size]) -> Value:
    """Return x if sizes agree; raise an error now if they are known to differ, else at run time."""
    pairs = [(_dim(a), _dim(b)) for a, b in zip(expected, given, strict=True)]
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise InferError(rule, expected=[a for a, _ in pairs], given=[b for _, b in pairs])
    if all(a == b != UNKNOWN for a, b in pairs):
        return x
    return Require(rule)(x, vector(expected), vector(given))


def broadcast_onto(x: Value, like: Value) -> Value:
    """Return x, which must broadcast to the exact shape of another value.

    numpy broadcasts both operands; where ONNX broadcasts one only, `like` must not grow.
    """
    own, wanted = x.tensor.shape, like.tensor.shape
    rule = "an operand broadcasts to the shape of the other"
    if own is None or wanted is None:
        shape = sh.ShapeOf()(like)
        wide = deferred(sh.Broadcast, (x,), {"shape": shape})
        return Require(rule)(wide, shape, sh.ShapeOf()(wide))
    if len(own) > len(wanted):
        raise InferError(rule, expected=like.type, given=x.type)
    expected: list[Size] = []
    given: list[Size] = []
    for axis in range(-len(own), 0):
        if own[axis] in (1, wanted[axis]):
            continue
        if isinstance(own[axis], int) and isinstance(wanted[axis], int):
            raise InferError(rule, expected=like.type, given=x.type)
        a, b = size_of(like, axis), size_of(x, axis)
        expected.append(a)
        given.append(unless_one(b, a))
    return required(x, rule, expected, given)


def unless_one(size: Size, other: Size) -> Size:
    """Return `size`, or `other` if it is 1."""
    if isinstance(size, int):
        return other if size == 1 else size
    return ew.Where()(ew.Equal()(size, constant(1, i64)), scalar(other), size)


def feed_misfit(
    graph: onnx.GraphProto, error: InferError, arrays: Mapping[str, Array]
) -> FeedError:
    """Return the error for feeds whose sizes break a rule of an op.

    It names the inputs with open dimensions that the op depends on, with the declared and the given
    shapes.
    """
    needed = _ancestors(graph, error.node)
    lines: list[str] = []
    others: list[str] = []
    for info in graph.input:
        kind = value_type(info.type, info.name)
        array = arrays.get(info.name)
        if array is None or not isinstance(kind, TensorType) or kind.is_static:
            continue
        line = f"    {info.name}: expected {kind}, given {[*array.shape]}"
        (lines if needed is None or info.name in needed else others).append(line)
    listed = "\n".join(lines or others)
    return FeedError(
        f"the model cannot take inputs of these sizes: {error.message}\n{listed}".rstrip(),
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint or "give sizes for which this holds",
    )


def dims_misfit(error: InferError, dims: Mapping[str, int]) -> ConfigError:
    """The error for sizes of dimensions that break a rule of an op."""
    listed = ", ".join(f"{name}={size}" for name, size in dims.items())
    return ConfigError(
        f"the model cannot take these sizes ({listed}): {error.message}",
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint or "give other sizes: dims={...}",
    )


def _ancestors(graph: onnx.GraphProto, label: str | None) -> set[str] | None:
    """Return the names of all values that a node depends on; None if the node is not found."""
    makers: dict[str, onnx.NodeProto] = {}
    start: onnx.NodeProto | None = None
    for index, node in enumerate(graph.node):
        makers |= dict.fromkeys(node.output, node)
        if label is not None and label in (node.name, f"{node.op_type}#{index}"):
            start = node
    if start is None:
        return None
    found: set[str] = set()
    stack = [*start.input]
    while stack:
        name = stack.pop()
        if name in found:
            continue
        found.add(name)
        if name in makers:
            node = makers[name]
            # The captures of a sub-graph are not listed, so any input may matter.
            if any(a.HasField("g") or a.graphs for a in node.attribute):
                return None
            stack.extend(node.input)
    return found
