"""Products with one-hot rows, which become lookups of rows of a table."""

from __future__ import annotations

import numpy as np

from monograph.ir import Value, constant, known
from monograph.ir.dtype import i32, i64
from monograph.ops.cast import Cast
from monograph.ops.elementwise import And, Equal, Less, LessEqual, Where
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape
from monograph.rewrite import Reject, rewrite


@rewrite(Dot, exact=False)
def look_up_rows(value: Value) -> Value | Reject:
    """dot(cast(x[..., None] == [0 1 2 ...]), W) -> W[x], and zeros where x is no row of W"""
    hot, w = value.inputs
    weights = known(w)
    if weights is None or weights.ndim != 2 or not value.dtype.is_float:
        reason = "the second operand is no constant matrix of floats"
        return Reject(reason, "a table", f"{w.op.name} : {w.type}", near=False)
    numbers = _numbers(hot, len(weights))
    if isinstance(numbers, Reject):
        return numbers
    # Reads every weight, so it comes after the cheaper checks.
    if value.dtype != w.dtype or not np.isfinite(weights.astype(np.float64)).all():
        return Reject("a weight is not finite, so zero times it is not zero")
    rows, dtype = len(weights), i64 if numbers.dtype == i64 else i32
    at = Reshape(value.tensor.static[:-1])(
        Cast(dtype)(numbers) if numbers.dtype != dtype else numbers
    )
    first, beyond = (constant(np.array(k, dtype.numpy)) for k in (0, rows))
    inside = And()(LessEqual()(first, at), Less()(at, beyond))
    table = np.concatenate([weights, np.zeros_like(weights[:1])])
    return Gather(0)(constant(table), Where()(inside, at, beyond))


def _numbers(hot: Value, rows: int) -> Value | Reject:
    """Return the index of the one in each row."""
    shape = hot.tensor.shape
    while isinstance(hot.op, Reshape) and hot.inputs[0].tensor.dims[-1:] == hot.tensor.dims[-1:]:
        hot = hot.inputs[0]
    if not isinstance(hot.op, Cast) or not isinstance(hot.inputs[0].op, Equal):
        given = hot.op.name
        return Reject("the rows come from no comparison", "cast(x == y)", given, near=False)
    if shape is None or not hot.tensor.is_static or 0 in hot.tensor.static:
        return Reject("the shapes are not static", None, hot.type)
    for numbers, counted in (hot.inputs[0].inputs, hot.inputs[0].inputs[::-1]):
        data = known(counted)
        if data is None or not counted.dtype.is_integer or data.size != rows:
            continue
        if not np.array_equal(data.reshape(-1), np.arange(rows)):
            return Reject("the constant does not count from 0", "0 1 2 ...", counted.type)
        if numbers.tensor.dims[-1:] != (1,) or numbers.tensor.size * rows != hot.tensor.size:
            return Reject("the numbers are not one for each row", "[..., 1]", numbers.type)
        return numbers
    return Reject("nothing is compared with a constant as long as the table", rows)
