"""Shapes: reshape, transpose, slices, concat, and what computes them."""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value, constant
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred


@converter("Identity")
def identity(n: Node) -> Value:
    return n.input(0)


@converter("Reshape")
def reshape(n: Node) -> Value:
    """Zero copies a dimension unless `allowzero`; both are settled here."""
    x = n.input(0)
    target = n.attr_ints("shape") if n.has("shape") else n.known_ints(1)
    if target is None:
        sizes = n.input(1)
        if not n.attr_flag("allowzero"):
            copies = ew.Equal()(sizes, constant(0, sizes.dtype))
            sizes = ew.Where()(copies, constant(sh.COPY, sizes.dtype), sizes)
        return deferred(sh.Reshape, (x,), {"shape": sizes})
    if not n.attr_flag("allowzero"):
        target = tuple(sh.COPY if d == 0 else d for d in target)
    return sh.Reshape(target)(x)


@converter("Transpose")
def transpose(n: Node) -> Value:
    backwards = tuple(reversed(range(n.rank(0))))
    return sh.Transpose(n.attr_ints("perm", backwards))(n.input(0))


@converter("Concat", since=4)
def concat(n: Node) -> Value:
    return sh.Concat(n.attr_int("axis"))(*n.required())


@converter("Constant")
def constant_node(n: Node) -> Value:
    """The value is under one of several attributes, by kind."""
    if n.has("value"):
        return constant(n.attr_literal("value"))
    if n.has("value_float"):
        return constant(np.float32(n.attr_float("value_float")))
    if n.has("value_floats"):
        return constant(np.array(n.attr_floats("value_floats"), np.float32))
    if n.has("value_int"):
        return constant(np.int64(n.attr_int("value_int")))
    if n.has("value_ints"):
        return constant(np.array(n.attr_ints("value_ints"), np.int64))
    if n.has("value_string"):
        return constant(np.array(n.attr_string("value_string"), object))
    if n.has("value_strings"):
        return constant(np.array(n.attr_strings("value_strings"), object))
    if n.has("sparse_value"):
        return constant(n.attr_sparse("sparse_value"))
    n.fail("a Constant has no value")
