"""Matrix products, determinants and affine maps."""

from __future__ import annotations

import numpy as np

from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.index import along
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.frontend.onnx.sizes import broadcast_onto, broadcast_to, iota, reshape, size_of
from monograph.ir import DType, Value, constant
from monograph.ir.dtype import i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.index import Gather
from monograph.ops.linear import Det, Dot


def matmul(x: Value, y: Value, out: DType | None = None, left_bits: int = 0) -> Value:
    """numpy's matmul: a vector is a row on the left and a column on the right."""
    row, column = x.tensor.rank == 1, y.tensor.rank == 1
    if row:
        x = sh.Unsqueeze((0,))(x)
    if column:
        y = sh.Unsqueeze((1,))(y)
    result = Dot(out, left_bits)(x, y)
    dropped = (-2,) * row + (-1,) * column
    return sh.Squeeze(dropped)(result) if dropped else result


@converter("MatMul")
def matmul_node(n: Node) -> Value:
    return matmul(n.input(0), n.input(1))


@converter("Gemm")
def gemm(n: Node) -> Value:
    """alpha * A' B' + beta * C."""
    a, b, c = n.input(0), n.input(1), n.optional(2)
    if n.rank(0) != 2 or n.rank(1) != 2:
        n.fail(
            "the inputs of Gemm must be matrices",
            expected="rank 2",
            given=(n.tensor(0), n.tensor(1)),
        )
    if n.attr_flag("transA"):
        a = sh.Transpose((1, 0))(a)
    if n.attr_flag("transB"):
        b = sh.Transpose((1, 0))(b)
    result = _scaled(Dot()(a, b), n.attr_float("alpha", 1.0))
    beta = n.attr_float("beta", 1.0)
    if c is None or beta == 0.0:
        return result
    return ew.Add()(result, _scaled(broadcast_onto(c, result), beta))


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1.0 else ew.Mul()(x, constant(np.asarray(factor), x.dtype))


@converter("Det")
def det(n: Node) -> Value:
    return Det()(n.input(0))


@converter("AffineGrid")
def affine_grid(n: Node) -> Value:
    """Return the positions of the pixels of an image or volume, under an affine map of [-1, 1]^k.

    Positions are (x, y) or (x, y, z): the last dimension of the image comes first.
    """
    theta, sizes = n.input(0), cast(n.input(1), i64)
    rows = theta.tensor.dim(1) if n.rank(0) == 3 else None
    if isinstance(rows, str):
        n.undecided("the number of rows of theta is not known", given=theta.type)
    if rows not in (2, 3):
        n.fail("theta must be [N, 2, 3] or [N, 3, 4]", given=theta.type)
    extents = [fold(Gather(0)(sizes, constant(i + 2, i64))) for i in range(rows)]
    aligned = n.attr_flag("align_corners")
    lines = [_positions(extents[i], aligned, theta.dtype) for i in range(rows)]
    columns = [broadcast_to(along(lines[i], i, rows), extents) for i in reversed(range(rows))]
    columns.append(broadcast_to(constant(1, theta.dtype), extents))
    points = sh.Concat(1)(*[sh.Reshape((sh.INFER, 1))(c) for c in columns])
    moved = Dot()(points, sh.Transpose((0, 2, 1))(theta))
    return reshape(moved, [size_of(theta, 0), *extents, rows])


def _positions(extent: Value, aligned: bool, dtype: DType) -> Value:
    """Return evenly spaced positions in [-1, 1]: the centres of pixels, or the ends included."""
    count, steps = cast(extent, dtype), cast(iota(extent), dtype)
    one, two = constant(1, dtype), constant(2, dtype)
    if aligned:
        # A single pixel is at -1; this avoids a division by zero.
        gaps = ew.Max()(ew.Sub()(count, one), one)
        return ew.Sub()(ew.Div()(ew.Mul()(steps, two), gaps), one)
    return ew.Sub()(ew.Div()(ew.Add()(ew.Mul()(steps, two), one), count), one)
