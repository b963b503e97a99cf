"""Folding of a norm's scale into the weights of the product after it."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from monograph.ir import Array, Constant, Value, constant, known
from monograph.ops.composite import RmsNorm
from monograph.ops.linear import Dot
from monograph.rewrite import ANY, Context, Reject, Work, rewrite, variables
from monograph.rewrite.cost import rows_normalised

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
    most = rows_normalised(context.cost)
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
    products = 2.0 * rows * depth * width
    moved = float(w.tensor.nbytes + norm.tensor.nbytes)
    before = context.cost.seconds(Work(2, products, moved + 2.0 * norm.tensor.nbytes))
    # Each program adds up the squares again: at most as many operations as the product has.
    after = context.cost.seconds(Work(1, 2 * products, moved))
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
