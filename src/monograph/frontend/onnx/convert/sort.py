"""Sorting, and ops whose result sizes depend on data."""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import as_scalar
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value, unpack
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.sort import NonZero, TopK, Unique


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
