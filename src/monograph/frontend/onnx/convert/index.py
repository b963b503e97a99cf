"""Gathers and scatters; sorting, and ops whose result sizes depend on data."""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import as_scalar, broadcast_like, cast
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, reshape, scalar, size_of
from monograph.ir import Value, constant, unpack
from monograph.ir.dtype import i64
from monograph.ops import elementwise as ew
from monograph.ops import index as ix
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.scatter import ScatterElements, ScatterNd
from monograph.ops.sort import NonZero, TopK, Unique


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
    op = ScatterElements(n.attr_int("axis", 0), n.attr_string("reduction", "none"))
    return op(n.input(0), n.input(1), n.input(2))


@converter("ScatterND")
def scatter_nd(n: Node) -> Value:
    return ScatterNd(n.attr_string("reduction", "none"))(n.input(0), n.input(1), n.input(2))


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
    return ScatterElements(axis)(cache, broadcast_like(places, update), update)


@converter("ReverseSequence")
def reverse_sequence(n: Node) -> Value:
    """Convert ReverseSequence: elements within the length are reversed, others are kept."""
    x, lengths = n.input(0), cast(n.input(1), i64)
    rank = n.rank(0)
    time = normalise_axis(n.attr_int("time_axis", 0), rank)
    batch = normalise_axis(n.attr_int("batch_axis", 1), rank)
    if time == batch:
        n.fail("time and batch must be different axes", given=time)
    # Where these are the first axes, whole slices move.
    leading = {time, batch} == {0, 1}
    across = 2 if leading else rank
    step, length = along(iota(size_of(x, time)), time, across), along(lengths, batch, across)
    mirrored = ew.Sub()(ew.Sub()(length, constant(1, i64)), step)
    places = ew.Where()(ew.Less()(step, length), mirrored, step)
    if not leading:
        return ix.GatherElements(time)(x, broadcast_like(places, x))
    row = broadcast_like(along(iota(size_of(x, batch)), batch, 2), places)
    both = [sh.Unsqueeze((2,))(i) for i in ((places, row) if time == 0 else (row, places))]
    return ix.GatherNd()(x, sh.Concat(2)(*both))


@converter("TopK")
def top_k(n: Node) -> tuple[Value, ...]:
    """Convert TopK. Before opset 10 the count is an attribute; since 11 order is selectable."""
    x, axis = n.input(0), n.attr_int("axis", -1)
    largest, ordered = n.attr_flag("largest", True), n.attr_flag("sorted", True)
    if n.has("k"):
        return unpack(TopK(n.attr_int("k"), axis, largest, ordered)(x))
    count = fold(as_scalar(n.input(1)))
    static = {"axis": axis, "largest": largest, "sorted": ordered}
    return unpack(deferred(TopK, (x,), {"k": count}, **static))


@converter("NonZero")
def nonzero(n: Node) -> Value:
    return NonZero()(n.input(0))


@converter("Unique")
def unique(n: Node) -> tuple[Value, ...]:
    axis = n.attr_int("axis") if n.has("axis") else None
    return unpack(Unique(axis, n.attr_flag("sorted", True))(n.input(0)))


@converter("Compress")
def compress(n: Node) -> Value:
    """Convert Compress: the elements of x, or of x flattened, at which the condition holds."""
    x = n.input(0)
    places = sh.Squeeze((0,))(NonZero()(n.input(1)))
    if n.has("axis"):
        return Gather(n.attr_int("axis"))(x, places)
    return Gather(0)(sh.Reshape((sh.INFER,))(x), places)
