"""Recognises softmax and its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from monograph.ir import Value
from monograph.ops.cast import Cast
from monograph.ops.composite import LogSoftmax, Softmax
from monograph.ops.elementwise import Div, Exp, Log, Max, Mul, Sub
from monograph.ops.reduce import ReduceMax, ReduceSum, Reduction
from monograph.ops.shape import Broadcast
from monograph.rewrite import Context, Reject, rewrite
from monograph.rules.recognise import before_widening, core, product_of, reject_shared, uniform


@dataclass(frozen=True)
class Along:
    """A value computed from x along one axis."""

    x: Value
    axis: int


@rewrite(Div, exact=False)
def recognise_softmax(value: Value, context: Context) -> Value | Reject:
    """e^(x - max(x)) / sum(e^(x - max(x))) -> Softmax(x), maximum and sum along one axis"""
    return _softmax(value, context)


@rewrite(Mul, exact=False)
def recognise_softmax_by_product(value: Value, context: Context) -> Value | Reject:
    """e^(x - max(x)) * (1 / sum(e^(x - max(x)))) -> Softmax(x)"""
    return _softmax(value, context)


def _softmax(root: Value, context: Context) -> Value | Reject:
    found = softmax_of(root)
    if not isinstance(found, Along):
        return found or root
    return reject_shared(root, (found.x,), context) or Softmax(found.axis)(found.x)


@rewrite(Sub, exact=False)
def recognise_log_softmax(value: Value, context: Context) -> Value | Reject:
    """(x - max(x)) - log(sum(e^(x - max(x)))) -> LogSoftmax(x)"""
    shifted, logarithm = value.inputs
    logarithm = core(unrepeated(logarithm, shifted))
    if not isinstance(logarithm.op, Log):
        return value
    total = core(logarithm.inputs[0])
    if not (isinstance(total.op, ReduceSum) and total.inputs[0] is Exp()(shifted)):
        return value
    if (reason := reject_misaligned(value.inputs[1], total.op, shifted)) is not None:
        return reason
    found = _shifted(shifted, total.op)
    if not isinstance(found, Along):
        return found
    return reject_shared(value, (found.x,), context) or LogSoftmax(found.axis)(found.x)


def softmax_of(value: Value) -> Along | Reject | None:
    """Match a softmax; None if the value does not look like one."""
    if not isinstance(value.op, (Div, Mul)) or not value.dtype.is_float:
        return None
    product = product_of(value)
    if len(product.factors) != 1 or len(product.divisors) != 1 or product.number != 1.0:
        return None
    e, divisor = product.factors[0], product.divisors[0]
    total = core(unrepeated(divisor, e))
    if not (isinstance(e.op, Exp) and isinstance(total.op, ReduceSum) and total.inputs[0] is e):
        return None
    if (reason := reject_misaligned(divisor, total.op, e)) is not None:
        return reason
    return _shifted(e.inputs[0], total.op)


def _shifted(shifted: Value, total: Reduction) -> Along | Reject:
    """Return x and the axis, given x - max(x) and its sum along an axis."""
    if not isinstance(shifted.op, Sub):
        return Reject("no maximum is subtracted, so the exponential may overflow")
    x, subtracted = shifted.inputs
    largest = core(unrepeated(subtracted, x))
    # A lower bound of -inf changes nothing: exporters write it as the start of the reduction.
    while isinstance(largest.op, Max) and -math.inf in map(uniform, largest.inputs):
        largest = core(next(v for v in largest.inputs if uniform(v) is None))
    if not isinstance(largest.op, ReduceMax) or largest.inputs[0] is not x:
        return Reject("the subtrahend is not the maximum", "max(x)", subtracted.op.name)
    if largest.op.axes != total.axes:
        return Reject("maximum and sum reduce different axes", largest.op.axes, total.axes)
    if (reason := reject_misaligned(subtracted, largest.op, x)) is not None:
        return reason
    # Axes of size 1 add nothing: early opsets list every axis from the given one on.
    axes = [a for a in total.axes if x.tensor.dims[a] != 1] or [*total.axes[-1:]]
    if len(axes) != 1:
        return Reject("the softmax is over several axes", "one axis", total.axes)
    return Along(x, axes[0])


def unrepeated(value: Value, like: Value) -> Value:
    """Return a value before a broadcast to the shape of `like`: elementwise ops broadcast."""
    if isinstance(value.op, Broadcast) and value.tensor.dims == like.tensor.dims:
        return value.inputs[0]
    return value


def reject_misaligned(value: Value, reduction: Reduction, x: Value) -> Reject | None:
    """Decline if the reduced axes of a reduction of x do not line up with x again."""
    kept = tuple(1 if i in reduction.axes else d for i, d in enumerate(x.tensor.dims))
    given = unrepeated(value, x).tensor.dims
    if given == kept:
        return None
    return Reject("the reduced axes are not put back in place", list(kept), list(given))


@rewrite(Cast, exact=False)
def narrow_softmax(value: Value, context: Context) -> Value | Reject:
    """Cast(Softmax(Cast(x, wide)), type of x) -> Softmax(x): it computes in a wide type anyway"""
    return narrowed(value, (Softmax, LogSoftmax), context)


def narrowed(root: Value, ops: tuple[type, ...], context: Context) -> Value | Reject:
    """Return a composite op without the casts around it to a wider type and back."""
    (inner,) = root.inputs
    if not isinstance(inner.op, ops):
        return root
    operands = [before_widening(v) for v in inner.inputs]
    if any(v.dtype != root.dtype for v in operands):
        given = " ".join(str(v.dtype) for v in operands)
        return Reject("the operands are not of the type of the result", root.dtype, given)
    if context.use_count(inner) > 1:
        return Reject(f"{inner.op.name} has another user", 1, context.use_count(inner))
    return inner.op(*operands)
