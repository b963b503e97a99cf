"""Rules for sizes that become known when dimensions are bound, and for the ops deferred by them."""

from __future__ import annotations

from monograph.errors import MonographError
from monograph.frontend.onnx.fold import fold
from monograph.ir import Graph, Value, constant, evaluate, known
from monograph.ir.dtype import i64
from monograph.ops.deferred import Deferred, settle
from monograph.ops.shape import ShapeOf
from monograph.rewrite import Reject, rewrite, variables

(x,) = variables("x")

MAX_LATE = 1024
"""The longest operand taken as an attribute: a longer one is data."""


@rewrite(ShapeOf()(x), exact=True)
def known_shape(x: Value) -> Value | Reject:
    """shape_of(x) -> its sizes, where they are known"""
    if not x.tensor.is_static:
        return Reject("the sizes are not known", "a static shape", x.type)
    return constant(list(x.tensor.static), i64)


@rewrite(Deferred, exact=True)
def settle_deferred(value: Value) -> Value | Reject:
    """deferred op(x, attributes) -> op(x), where the attributes depend on no input"""
    assert isinstance(value.op, Deferred)
    count = len(value.inputs) - len(value.op.late)
    late = tuple(map(fold, value.inputs[count:]))
    for name, operand in zip(value.op.late, late, strict=True):
        if not operand.closed and known(operand) is None:
            return Reject(f"{name} depends on an input", "a constant", repr(operand))
        if not operand.tensor.is_static or operand.tensor.size > MAX_LATE:
            return Reject(f"{name} is too long to be an attribute", MAX_LATE, operand.type)
    try:
        return settle(value.op(*value.inputs[:count], *map(_computed, late)))
    except MonographError as e:
        # An op with invalid attributes must raise its error at run time, and only if it runs.
        return Reject(f"the op does not accept its attributes: {e.message}")


def _computed(value: Value) -> Value:
    if known(value) is not None:
        return value
    (data,) = evaluate(Graph((), (("", value),)), {})
    return constant(data)
