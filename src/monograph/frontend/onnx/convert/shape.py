"""Reshape, transpose, concat, slices, padding and other views, and computations of shapes."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np

from monograph.errors import UnknownRankError
from monograph.frontend.onnx.convert.common import as_scalar, cast
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import (
    Size,
    divided,
    plus,
    required,
    reshape,
    reshape_to,
    shape_vector,
    size_of,
    sizes_of,
    times,
    vector,
)
from monograph.ir import Value, constant, known
from monograph.ir.dtype import i64
from monograph.ops import shape as sh
from monograph.ops.base import check_rank, normalise_axis
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.reduce import ReduceProd
from monograph.ops.scatter import Col2Im, ScatterElements

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
        return constant(full, i64)
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


@converter("Identity")
def identity(n: Node) -> Value:
    return n.input(0)


@converter("Reshape")
def reshape_node(n: Node) -> Value:
    """Convert Reshape. Zero copies a dimension unless `allowzero`; before opset 5 the shape is an
    attribute.
    """
    sizes = constant(np.array(n.attr_ints("shape"), np.int64)) if n.has("shape") else n.input(1)
    return reshape_to(n.input(0), sizes, copy_zeros=not n.attr_flag("allowzero"))


@converter("Flatten")
def flatten(n: Node) -> Value:
    """Convert Flatten to a matrix: the dimensions before the axis, and those from it on."""
    x, rank = n.input(0), n.rank(0)
    axis = n.attr_int("axis", 1)
    if not -rank <= axis <= rank:
        n.fail("axis out of range", expected=f"{-rank}..{rank}", given=axis)
    sizes = sizes_of(x)
    axis = axis + rank if axis < 0 else axis
    return reshape(x, [times(*sizes[:axis]), times(*sizes[axis:])])


@converter("Squeeze")
def squeeze(n: Node) -> Value:
    """Convert Squeeze. Without axes all dimensions of size 1 are removed, so all must be known."""
    x, axes = n.input(0), numbers(n, "axes", 1)
    if axes is None:
        dims = n.tensor(0).dims
        if not n.tensor(0).is_static:
            raise UnknownRankError(
                "Squeeze without axes needs all dimensions to be known", given=x.type
            )
        axes = tuple(i for i, d in enumerate(dims) if d == 1)
    return deferred(sh.Squeeze, (x,), {"axes": as_vector(axes)}) if axes != () else x


@converter("Unsqueeze")
def unsqueeze(n: Node) -> Value:
    axes = numbers(n, "axes", 1)
    if axes is None:
        n.fail("Unsqueeze must have axes")
    return deferred(sh.Unsqueeze, (n.input(0),), {"axes": as_vector(axes)})


@converter("Transpose")
def transpose(n: Node) -> Value:
    permutation = n.attr_ints("perm", ()) or tuple(reversed(range(n.rank(0))))
    return sh.Transpose(permutation)(n.input(0))


@converter("Expand")
def expand(n: Node) -> Value:
    return deferred(sh.Broadcast, (n.input(0),), {"shape": n.input(1)})


@converter("Tile", since=6)
def tile(n: Node) -> Value:
    return deferred(Tile, (n.input(0),), {"repeats": n.input(1)})


@converter("Tile")
def tile_one_axis(n: Node) -> Value:
    """Convert Tile of opset 1: a count and an axis, both scalars."""
    ones = constant(np.ones(n.rank(0), np.int64))
    count, axis = (sh.Reshape((1,))(cast(n.input(i), i64)) for i in (1, 2))
    repeats = fold(ScatterElements(0)(ones, axis, count))
    return deferred(Tile, (n.input(0),), {"repeats": repeats})


@converter("Concat", since=4)
def concat(n: Node) -> Value:
    return sh.Concat(n.attr_int("axis"))(*n.required())


@converter("Concat")
def concat_default(n: Node) -> Value:
    """Convert Concat before opset 4, whose axis is optional."""
    return sh.Concat(n.attr_int("axis", 1))(*n.required())


@converter("Shape")
def shape(n: Node) -> Value:
    """Convert Shape. Since opset 15 it may return a part of the shape; bounds are clamped."""
    sizes = shape_vector(n.input(0))
    if not n.has("start") and not n.has("end"):
        return sizes
    start, end = n.attr_int("start", 0), n.attr_int("end", 2**31)
    return sh.Slice((start,), (end,), (1,))(sizes)


@converter("Size")
def size(n: Node) -> Value:
    return ReduceProd((0,))(shape_vector(n.input(0)))


@converter("DepthToSpace")
def depth_to_space(n: Node) -> Value:
    """Convert DepthToSpace: blocks of channels become blocks of pixels."""
    x, block = _image(n)
    batch, channels, height, width = sizes_of(x)
    depth = divided(channels, block * block)
    if n.attr_string("mode", "DCR") == "DCR":
        order = (0, 3, 4, 1, 5, 2)
        x = reshape(x, [batch, block, block, depth, height, width])
    else:
        order = (0, 1, 4, 2, 5, 3)
        x = reshape(x, [batch, depth, block, block, height, width])
    pixels = [batch, depth, times(height, block), times(width, block)]
    return reshape(sh.Transpose(order)(x), pixels)


@converter("SpaceToDepth")
def space_to_depth(n: Node) -> Value:
    """Convert SpaceToDepth: blocks of pixels become blocks of channels."""
    x, block = _image(n)
    batch, channels, height, width = sizes_of(x)
    rows, columns = divided(height, block), divided(width, block)
    x = reshape(x, [batch, channels, rows, block, columns, block])
    # Since opset 28 the channels may come before the positions in a block.
    crd = n.attr_string("mode", "DCR") == "CRD"
    x = sh.Transpose((0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4))(x)
    return reshape(x, [batch, times(channels, block * block), rows, columns])


def _image(n: Node) -> tuple[Value, int]:
    if n.rank(0) != 4:
        n.fail("the image must have rank 4", expected="[N, C, H, W]", given=n.tensor(0))
    block = n.attr_int("blocksize")
    if block < 1:
        n.fail("the block size must be positive", given=block)
    return n.input(0), block


@converter("Col2Im")
def col2im(n: Node) -> Value:
    image, block = numbers(n, "", 1), numbers(n, "", 2)
    if image is None or block is None:
        n.fail("Col2Im must have an image shape and a block shape")
    length = as_vector(block).tensor.dim(0)
    if not isinstance(length, int):
        raise UnknownRankError("the rank of the image must be known", given=n.tensor(2))
    check_rank(length)
    ones, zeros = (1,) * length, (0,) * (2 * length)
    pads = n.attr_ints("pads", zeros)
    return deferred(
        Col2Im,
        (n.input(0),),
        {"image": as_vector(image), "block": as_vector(block)},
        strides=n.attr_ints("strides", ones),
        dilations=n.attr_ints("dilations", ones),
        pads_begin=pads[:length],
        pads_end=pads[length:],
    )
