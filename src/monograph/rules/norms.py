"""Recognition of LayerNorm and RMSNorm; folding of a norm's scale into the product after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from monograph.ir import Array, Constant, Input, Value, constant, known
from monograph.ir.sizes import hint_of
from monograph.ops.cast import Cast
from monograph.ops.composite import LayerNorm, RmsNorm
from monograph.ops.elementwise import Add, Clip, Div, Max, Mul, Pow, Sqrt, Sub
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.rewrite import ANY, Context, Reject, Work, rewrite, rows_normalised, variables
from monograph.rules.recognise import core, is_close, product_of, reject_shared, uniform
from monograph.rules.recognise_softmax import narrowed, unrepeated

BLOCK = 1 << 18
"""The number of elements scaled at a time: they fit a processor's cache."""
x, g, w = variables("x g w")


@rewrite(Dot(ANY, ANY)(RmsNorm(ANY, ANY)(x, g), w), exact=False)
def norm_scale_into_dot(
    x: Value, g: Value, w: Value, root: Value, context: Context
) -> Value | Reject:
    """Dot(RmsNorm(x, g), W) -> Dot(RmsNorm(x), g W), where products normalise their rows"""
    norm = root.inputs[0]
    assert isinstance(norm.op, RmsNorm)
    if refused := _unfit(norm, g, w, root, context):
        return refused
    scale, weights = known(g), known(w)
    assert scale is not None
    assert weights is not None
    scaled = w if (scale == 1).all() else _scaled(weights, scale.reshape(-1), w)
    if isinstance(scaled, Reject):
        return scaled
    return root.op(norm.op(x), scaled)


def _unfit(norm: Value, g: Value, w: Value, root: Value, context: Context) -> Reject | None:
    """Return the reason why a scale stays where it is; None if it may move."""
    assert isinstance(norm.op, RmsNorm)
    most = rows_normalised(context.cost, root.dtype)
    if not root.tensor.is_static or not norm.tensor.is_static:
        return Reject("sizes are not known", "static", norm.type)
    rows = math.prod(root.tensor.static[:-1])
    if rows > most:
        return Reject("a kernel of its own normalises this many rows", most, rows)
    if norm.op.axes != (norm.tensor.rank - 1,):
        return Reject("other axes than the last are normalised", (norm.tensor.rank - 1,), norm.op)
    if not all(isinstance(v.op, Constant) for v in (g, w)):
        return Reject("scale or weights are not constant", "constants", (g.op.name, w.op.name))
    if w.tensor.rank != 2 or g.tensor.size != w.tensor.static[0]:
        return Reject("the scale is not one per row of the weights", w.type, g.type)
    if context.use_count(w) > 1:
        return Reject("the weights have another user", 1, context.use_count(w))
    depth, width = w.tensor.static
    products = 2.0 * hint_of(rows) * depth * width
    made = float(hint_of(norm.tensor.nbytes))
    moved = w.tensor.nbytes + made
    before = context.cost.seconds(Work(2, products, moved + 2.0 * made))
    # Each program adds up the squares again: as many operations as the product has if numbers are
    # wide, and few if matrix units do it beside some columns.
    squares = products / 16 if root.dtype.itemsize <= 2 else products
    after = context.cost.seconds(Work(1, products + squares, moved))
    if after >= before:
        times = (f"below {before * 1e6:.2f} us", f"{after * 1e6:.2f} us")
        return Reject("adding up squares in every program costs more than a kernel", *times)
    return None


def _scaled(weights: Array, scale: Array, w: Value) -> Value | Reject:
    """Return g W, rounded once: the product of two 16-bit floats is exact in 32 bits."""
    wide = np.dtype(np.float32 if w.dtype.itemsize < 4 else np.float64)
    kept = np.empty(weights.shape, w.dtype.numpy)
    wide_scale, most = scale.astype(wide)[:, None], wide.type(0)
    rows = max(1, BLOCK // max(weights.shape[1], 1))
    with np.errstate(all="ignore"):
        for first in range(0, len(weights), rows):
            part = weights[first : first + rows].astype(wide)
            part *= wide_scale[first : first + rows]
            kept[first : first + rows] = part
            most = np.maximum(most, np.abs(part).max(initial=0))
        # rounded like the weights, because rounding keeps the order
        largest = float(np.asarray(most, kept.dtype))
    kept.flags.writeable = False
    limits = ml_dtypes.finfo(w.dtype.numpy)  # type: ignore[no-untyped-call]
    if not math.isfinite(largest):
        return Reject("the joint constant overflows", float(limits.max), largest)
    if 0 < largest < float(limits.smallest_normal):
        return Reject("the joint constant loses bits", float(limits.smallest_normal), largest)
    return constant(kept)


NORMS = (LayerNorm, RmsNorm)


@dataclass(frozen=True)
class Mean:
    """The mean of a value along axes."""

    of: Value
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Norm:
    """x, or x less its mean, over the root of its mean square."""

    centred: Value
    """The dividend."""
    x: Value
    """The operand of the mean and the variance."""
    axes: tuple[int, ...]
    epsilon: float
    root: Value
    """The divisor, or the factor that is its reciprocal."""


@rewrite(Div, exact=False)
def recognise_norm(value: Value, context: Context) -> Value | Reject:
    """(x - mean) / sqrt(variance + epsilon) -> LayerNorm(x);
    x / sqrt(mean(x^2) + epsilon) -> RmsNorm(x)"""
    return _norm(value, context)


@rewrite(Mul, exact=False)
def recognise_norm_by_product(value: Value, context: Context) -> Value | Reject:
    """(x - mean) * (scale / sqrt(variance + epsilon)) -> LayerNorm(x, scale), and RmsNorm alike"""
    return _norm(value, context)


@rewrite(Mul, exact=False)
def scale_norm(value: Value, context: Context) -> Value | Reject:
    """LayerNorm(x) * scale -> LayerNorm(x, scale), and RmsNorm alike"""
    for norm, scale in (value.inputs, value.inputs[::-1]):
        if isinstance(norm.op, NORMS) and len(norm.inputs) == 1:
            return _with_parameter(norm, scale, context)
    return value


@rewrite(Add, exact=False)
def shift_norm(value: Value, context: Context) -> Value | Reject:
    """LayerNorm(x, scale) + bias -> LayerNorm(x, scale, bias)"""
    for norm, bias in (value.inputs, value.inputs[::-1]):
        if isinstance(norm.op, LayerNorm) and len(norm.inputs) == 2:
            return _with_parameter(norm, bias, context)
    return value


@rewrite(Cast, exact=False)
def narrow_norm(value: Value, context: Context) -> Value | Reject:
    """Cast(LayerNorm(Cast(x, wide)), type of x) -> LayerNorm(x), and RmsNorm alike"""
    return narrowed(value, NORMS, context)


def _with_parameter(norm: Value, given: Value, context: Context) -> Value | Reject:
    """Add an operand to a norm if it is a parameter."""
    if (reason := _no_parameter(given, norm)) is not None:
        return reason
    if context.use_count(norm) > 1:
        return Reject(f"{norm.op.name} has another user", 1, context.use_count(norm))
    return norm.op(*norm.inputs, given)


def _no_parameter(given: Value, norm: Value) -> Reject | None:
    """Return the reason why a value is no scale or bias of a norm; None if it is one.

    A parameter varies along the normalised axes only. An added residual may look the same (where
    all other sizes are 1), but has the rank of x.
    """
    assert isinstance(norm.op, NORMS)
    x = norm.inputs[0]
    missing = x.tensor.rank - given.tensor.rank
    varying = {i + missing for i, d in enumerate(given.tensor.dims) if d != 1}
    if missing < 0 or not varying <= {*norm.op.axes}:
        return Reject("the operand varies along other axes", norm.op.axes, given.type)
    if given.dtype != x.dtype:
        return Reject("the element types differ", x.dtype, given.dtype)
    if missing == 0 and not given.closed and not isinstance(given.op, Input):
        return Reject("the operand is computed at run time", "a parameter", given.op.name)
    return None


def _norm(root: Value, context: Context) -> Value | Reject:
    if not root.dtype.is_float:
        return root
    found = _find(root)
    if not isinstance(found, Norm):
        return found or root
    product = product_of(root, (found.centred, found.root))
    (product.divisors if found.root in product.divisors else product.factors).remove(found.root)
    if found.centred not in product.factors:
        return root  # A part of a product; the rule matches at the whole product.
    product.factors.remove(found.centred)
    others = product.factors
    if product.divisors or len(others) > 1:
        return Reject("more than a scale is multiplied", 1, len(others + product.divisors))
    if product.number != 1.0:
        return Reject("the result is multiplied by a number", 1.0, product.number)
    plain = found.centred is found.x
    norm = (RmsNorm if plain else LayerNorm)(found.axes, found.epsilon)(found.x)
    if norm.type != found.centred.type:
        return Reject("the mean makes x larger", norm.type, found.centred.type)
    if others and (reason := _no_parameter(others[0], norm)) is not None:
        return reason
    leaves = {found.x, *others}
    return reject_shared(root, leaves, context) or norm.op(found.x, *others)


def _find(root: Value) -> Norm | Reject | None:
    """Find the division by the root of a mean square in a product."""
    product = product_of(root)
    for v in product.divisors:
        sum_ = _rooted(v, 0.5)
        if sum_ is not None:
            return _statistics(product.factors, v, sum_)
    for v in product.factors:
        sum_ = _rooted(v, -0.5)
        if sum_ is not None:
            return _statistics(product.factors, v, sum_)
    return None


def _rooted(value: Value, exponent: float) -> Value | None:
    """Return the base of a power; a square root is the power 0.5."""
    value = core(value)
    if exponent == 0.5 and isinstance(value.op, Sqrt):
        return value.inputs[0]
    if isinstance(value.op, Pow) and uniform(value.inputs[1]) == exponent:
        return value.inputs[0]
    return None


def _statistics(factors: list[Value], root: Value, sum_: Value) -> Norm | Reject | None:
    """Match the normalised value from variance + epsilon below the root."""
    variance, epsilon = _with_epsilon(sum_)
    found = _mean_square(variance) or _difference_of_squares(variance, factors)
    if not isinstance(found, tuple):
        return found
    centred, x, axes = found
    kept = tuple(1 if i in axes else d for i, d in enumerate(x.tensor.dims))
    given = unrepeated(root, x).tensor.dims
    if given != kept:
        return Reject("the deviation does not line up with x", list(kept), list(given))
    return Norm(centred, x, axes, epsilon, root)


def _with_epsilon(sum_: Value) -> tuple[Value, float]:
    """Split value + number; the number is 0 if none is added."""
    sum_ = core(sum_)
    if isinstance(sum_.op, Add):
        for value, number in (sum_.inputs, sum_.inputs[::-1]):
            epsilon = uniform(number)
            if epsilon is not None and epsilon >= 0 and math.isfinite(epsilon):
                return core(value), epsilon
    return sum_, 0.0


def _mean_square(variance: Value) -> tuple[Value, Value, tuple[int, ...]] | Reject | None:
    """Return (base of the square, x, axes) of mean(x^2) or mean((x - mean(x))^2)."""
    mean = mean_of(variance)
    if not isinstance(mean, Mean):
        return mean
    squared = _squared(mean.of)
    if squared is None:
        return None
    if isinstance(squared.op, Sub):
        x, subtracted = squared.inputs
        centre = mean_of(unrepeated(subtracted, x))
        if isinstance(centre, Mean) and centre.of is x:
            if centre.axes != mean.axes:
                return Reject("mean and variance reduce different axes", centre.axes, mean.axes)
            if (reason := _misplaced(subtracted, x, mean.axes)) is not None:
                return reason
            return squared, x, mean.axes
    return squared, squared, mean.axes


def _difference_of_squares(
    variance: Value, factors: list[Value]
) -> tuple[Value, Value, tuple[int, ...]] | Reject | None:
    """Return (x - mean, x, axes) of mean(x^2) - mean(x)^2, at least 0."""
    if isinstance(variance.op, Clip) and variance.op.lo == 0 and variance.op.hi == math.inf:
        variance = core(variance.inputs[0])
    if isinstance(variance.op, Max) and 0.0 in map(uniform, variance.inputs):
        variance = core(next(v for v in variance.inputs if uniform(v) != 0.0))
    if not isinstance(variance.op, Sub):
        return None
    square, other = mean_of(variance.inputs[0]), _squared(core(variance.inputs[1]))
    if not isinstance(square, Mean) or other is None:
        return None
    x, centre = _squared(square.of), mean_of(other)
    if x is None or not isinstance(centre, Mean) or centre.of is not x:
        return None
    if centre.axes != square.axes:
        return Reject("mean and variance reduce different axes", centre.axes, square.axes)
    for v in factors:
        if isinstance(v.op, Sub) and v.inputs[0] is x:
            mean = mean_of(unrepeated(v.inputs[1], x))
            if isinstance(mean, Mean) and mean == centre:
                reason = _misplaced(v.inputs[1], x, mean.axes)
                return reason or (v, x, mean.axes)
    return None


def _misplaced(mean: Value, x: Value, axes: tuple[int, ...]) -> Reject | None:
    kept = tuple(1 if i in axes else d for i, d in enumerate(x.tensor.dims))
    given = unrepeated(mean, x).tensor.dims
    if given == kept:
        return None
    return Reject("the mean does not line up with x", list(kept), list(given))


def _squared(value: Value) -> Value | None:
    """Return the base of a square; None for any other value."""
    if isinstance(value.op, Mul) and value.inputs[0] is value.inputs[1]:
        return value.inputs[0]
    if isinstance(value.op, Pow) and uniform(value.inputs[1]) == 2.0:
        return value.inputs[0]
    return None


def mean_of(value: Value) -> Mean | Reject | None:
    """Match a mean: a sum divided by the number of its terms."""
    value, factor = core(value), 1.0
    while isinstance(value.op, (Mul, Div)):
        product = product_of(value)
        if len(product.factors) != 1 or product.divisors:
            return None
        factor *= product.number
        value = core(product.factors[0])
    if not isinstance(value.op, ReduceSum):
        return None
    x = value.inputs[0]
    sizes = [d for a in value.op.axes if isinstance(d := x.tensor.dims[a], int)]
    if len(sizes) != len(value.op.axes):
        return Reject("the number of terms is not known", "known sizes", x.type)
    count = math.prod(sizes)
    if count and is_close(factor * count, 1.0, value.dtype):
        return Mean(x, value.op.axes)
    return Reject("a sum is not divided by the number of its terms", 1 / max(count, 1), factor)
