"""Reshape, transpose, concat and other views, and computations of shapes."""

from __future__ import annotations

import numpy as np

from monograph.errors import UnknownRankError
from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.slice import as_vector, numbers
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import (
    divided,
    reshape,
    reshape_to,
    shape_vector,
    sizes_of,
    times,
)
from monograph.ir import Value, constant
from monograph.ir.dtype import i64
from monograph.ops import shape as sh
from monograph.ops.base import check_rank
from monograph.ops.deferred import deferred
from monograph.ops.index import Col2Im, ScatterElements
from monograph.ops.pad_tile import Tile
from monograph.ops.reduce import ReduceProd


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
