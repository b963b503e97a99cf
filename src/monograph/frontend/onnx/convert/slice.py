"""Slices, splits and padding."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np

from monograph.errors import UnknownRankError
from monograph.frontend.onnx.convert.common import as_scalar, cast
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import (
    Size,
    divided,
    plus,
    required,
    size_of,
    times,
    vector,
)
from monograph.ir import Value, constant, known
from monograph.ir.dtype import i64
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather, ScatterElements
from monograph.ops.pad_tile import Pad

FAR = int(np.iinfo(np.int64).max)
Numbers: TypeAlias = "tuple[int, ...] | Value"
"""A vector of integers: known, or computed at run time."""


def numbers(n: Node, attribute: str, index: int) -> Numbers | None:
    """Return integers that are an attribute in early opsets and an input in later ones."""
    if n.has(attribute):
        ints: tuple[int, ...] = n.attr_ints(attribute)
        return ints
    value = n.optional(index)
    if value is None:
        return None
    ints_known = n.known_ints(index)
    return cast(value, i64) if ints_known is None else ints_known


def as_vector(given: Numbers) -> Value:
    return given if isinstance(given, Value) else constant(np.array(given, np.int64))


def count_of(n: Node, given: Numbers) -> int:
    """Return the number of elements of a vector of integers."""
    if not isinstance(given, Value):
        return len(given)
    if given.tensor.rank != 1:
        n.fail("the operand must be a vector", given=given.type)
    count = given.tensor.dim(0)
    if not isinstance(count, int):
        raise UnknownRankError("the length of a vector must be known", given=given.type)
    return count


def spread(n: Node, given: Numbers | None, axes: Numbers, rank: int, default: int) -> Value:
    """Return one number per dimension: the given ones at their axes, the default elsewhere."""
    if given is None:
        return constant(np.full(rank, default, np.int64))
    if not isinstance(given, Value) and not isinstance(axes, Value):
        if len(given) != len(axes):
            n.fail("there must be one number for each axis", expected=axes, given=given)
        full = [default] * rank
        for axis, number in zip(axes, given, strict=True):
            full[normalise_axis(axis, rank)] = number
        return constant(np.array(full, np.int64))
    base = constant(np.full(rank, default, np.int64))
    return ScatterElements(0)(base, as_vector(axes), as_vector(given))


@converter("Slice")
def slice_node(n: Node) -> Value:
    """Convert Slice. Bounds are attributes before opset 10 and inputs since, with steps."""
    x, rank = n.input(0), n.rank(0)
    starts, stops = numbers(n, "starts", 1), numbers(n, "ends", 2)
    if starts is None or stops is None:
        n.fail("a slice must have starts and ends")
    axes = numbers(n, "axes", 3)
    if axes is None:
        axes = tuple(range(count_of(n, starts)))
    late = {
        "starts": spread(n, starts, axes, rank, 0),
        "stops": spread(n, stops, axes, rank, FAR),
        "steps": spread(n, numbers(n, "steps", 4), axes, rank, 1),
    }
    return deferred(sh.Slice, (x,), late)


def part(x: Value, axis: int, start: Size, stop: Size) -> Value:
    """x[start:stop] along one axis."""
    rank = x.tensor.rank
    starts: list[Size] = [0] * rank
    stops: list[Size] = [FAR] * rank
    starts[axis], stops[axis] = start, stop
    late = {"starts": vector(starts), "stops": vector(stops)}
    return deferred(sh.Slice, (x,), late, steps=(1,) * rank)


@converter("Split")
def split(n: Node) -> list[Value]:
    """Convert Split into parts of given sizes, or into equal parts; the last may be smaller."""
    x, count = n.input(0), len(n.outputs)
    axis = normalise_axis(n.attr_int("axis", 0), n.rank(0))
    sizes = numbers(n, "split", 1)
    if sizes is None:
        return _equal_parts(n, x, axis, count)
    if count_of(n, sizes) != count:
        n.fail("there must be one size for each output", expected=count, given=sizes)
    if isinstance(sizes, tuple) and min(sizes, default=0) < 0:
        n.fail("the size of a part must not be negative", given=sizes)
    bounds: list[Size] = [0]
    for i in range(count):
        size: Size = sizes[i] if isinstance(sizes, tuple) else Gather(0)(sizes, constant(i, i64))
        bounds.append(plus(bounds[-1], size))
    x = required(x, "the sizes of a split add up", [size_of(x, axis)], [bounds[-1]])
    return [part(x, axis, *pair) for pair in itertools.pairwise(bounds)]


def _equal_parts(n: Node, x: Value, axis: int, count: int) -> list[Value]:
    asked = n.attr_int("num_outputs", count)
    if asked != count:
        n.fail("there must be as many outputs as parts", expected=asked, given=count)
    whole = size_of(x, axis)
    if n.opset < 18:
        even = times(divided(whole, count), count)
        x = required(x, "a split into equal parts divides the size", [even], [whole])
    size = divided(plus(whole, count - 1), count)
    bounds = [times(size, i) for i in range(count + 1)]
    return [part(x, axis, bounds[i], bounds[i + 1]) for i in range(count)]


@converter("Pad")
def pad(n: Node) -> Value:
    """Convert Pad. Counts are an attribute before opset 11 and an input since; axes since 18."""
    x, rank = n.input(0), n.rank(0)
    mode = n.attr_string("mode", "constant")
    counts = numbers(n, "paddings" if n.has("paddings") else "pads", 1)
    if counts is None:
        n.fail("Pad must have counts")
    axes = numbers(n, "axes", 3)
    axes = tuple(range(rank)) if axes is None else axes
    half = count_of(n, axes)
    if isinstance(counts, tuple):
        before: Numbers = counts[:half]
        after: Numbers = counts[half:]
    else:
        before = sh.Slice((0,), (half,), (1,))(counts)
        after = sh.Slice((half,), (2 * half,), (1,))(counts)
    late = {
        "before": spread(n, before, axes, rank, 0),
        "after": spread(n, after, axes, rank, 0),
    }
    fill = _fill(n) if mode == "constant" else None
    return deferred(Pad, (x,) if fill is None else (x, fill), late, mode=mode)


def _fill(n: Node) -> Value | None:
    """Return the fill value of Pad; None for zero."""
    if n.has("value"):
        value = constant(np.asarray(n.attr_float("value")), n.tensor(0).dtype)
    else:
        given = n.optional(2)
        if given is None:
            return None
        value = fold(as_scalar(given))
    data = known(value)
    if data is None or data.dtype == object:
        return value
    zero = np.zeros((), data.dtype)
    return None if data.tobytes() == zero.tobytes() else value
