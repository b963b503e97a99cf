"""Gathers and scatters."""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import broadcast_like, cast
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import iota, reshape, scalar, size_of
from monograph.ir import Value, constant
from monograph.ir.dtype import i64
from monograph.ops import elementwise as ew
from monograph.ops import index as ix
from monograph.ops.base import normalise_axis


@converter("Gather")
def gather(n: Node) -> Value:
    return ix.Gather(n.attr_int("axis", 0))(n.input(0), n.input(1))


@converter("GatherElements")
def gather_elements(n: Node) -> Value:
    return ix.GatherElements(n.attr_int("axis", 0))(n.input(0), n.input(1))


@converter("GatherND")
def gather_nd(n: Node) -> Value:
    return ix.GatherNd(n.attr_int("batch_dims", 0))(n.input(0), n.input(1))


@converter("Scatter", "ScatterElements")
def scatter_elements(n: Node) -> Value:
    op = ix.ScatterElements(n.attr_int("axis", 0), n.attr_string("reduction", "none"))
    return op(n.input(0), n.input(1), n.input(2))


@converter("ScatterND")
def scatter_nd(n: Node) -> Value:
    return ix.ScatterNd(n.attr_string("reduction", "none"))(n.input(0), n.input(1), n.input(2))


def along(x: Value, axis: int, rank: int) -> Value:
    """Reshape a vector so that it lies along one axis and broadcasts along the others."""
    return reshape(x, [size_of(x, 0) if i == axis else 1 for i in range(rank)])


@converter("TensorScatter")
def tensor_scatter(n: Node) -> Value:
    """Convert TensorScatter: each sample's update is written to the cache at its own index."""
    cache, update, starts = n.input(0), n.input(1), n.optional(2)
    rank = cache.tensor.rank
    axis = normalise_axis(n.attr_int("axis", -2), rank)
    places = along(iota(size_of(update, axis)), axis, rank)
    if starts is not None:
        places = ew.Add()(places, along(cast(starts, i64), 0, rank))
    if n.attr_string("mode", "linear") == "circular":
        places = ew.Mod()(places, scalar(size_of(cache, axis)))
    return ix.ScatterElements(axis)(cache, broadcast_like(places, update), update)


@converter("ReverseSequence")
def reverse_sequence(n: Node) -> Value:
    """Convert ReverseSequence: elements within the length are reversed, others are kept."""
    x, lengths = n.input(0), cast(n.input(1), i64)
    rank = n.rank(0)
    time = normalise_axis(n.attr_int("time_axis", 0), rank)
    batch = normalise_axis(n.attr_int("batch_axis", 1), rank)
    if time == batch:
        n.fail("time and batch must be different axes", given=time)
    step, length = along(iota(size_of(x, time)), time, rank), along(lengths, batch, rank)
    mirrored = ew.Sub()(ew.Sub()(length, constant(1, i64)), step)
    places = ew.Where()(ew.Less()(step, length), mirrored, step)
    return ix.GatherElements(time)(x, broadcast_like(places, x))
