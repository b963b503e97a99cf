"""Totals of rows: elementwise combination, and reduction of a block.

Registers hold signed integers; unsigned order reads them as unsigned. Only Triton's sum, maximum
and minimum reduce a block, which every backend does in registers; NaN is detected separately,
because they ignore it.
"""

from __future__ import annotations

import math

from monograph.codegen.triton.emit.writer import TYPES, literal, unsigned
from monograph.codegen.triton.rows.rows import TritonRows
from monograph.ir import DType
from monograph.ir.dtype import BOOL, UINT
from monograph.ops.scalar import Scalar

SUM, PRODUCT, LARGEST, SMALLEST = "sum", "product", "largest", "smallest"
_PRODUCT = "@triton.jit\ndef product(x, y):\n    return x * y\n\n\n"


def neutral(how: str, dtype: DType) -> float | int:
    """Return the neutral element."""
    if how in (SUM, PRODUCT):
        return int(how == PRODUCT)
    low, high = _range(dtype)
    return low if how == LARGEST else high


def _range(dtype: DType) -> tuple[float | int, float | int]:
    if dtype.is_float:
        return -math.inf, math.inf
    if dtype.kind == BOOL:
        return 0, 1
    if dtype.kind == UINT:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def joined(rows: TritonRows, how: str, x: Scalar, y: Scalar) -> Scalar:
    """Combine two totals, element by element."""
    s = rows.s
    return {SUM: s.add, PRODUCT: s.mul, LARGEST: s.max, SMALLEST: s.min}[how](x, y)


def total(rows: TritonRows, how: str, x: Scalar, nan: bool = True) -> Scalar:
    """Return the total of each row of a block; `nan` if a NaN must be propagated."""
    if how in (SUM, PRODUCT):
        return _made(rows, x, along(rows, how, str(x.reg)))
    if x.dtype.kind == UINT and x.dtype.bits >= 32:
        text = along(rows, how, unsigned(x.reg))
        return _made(rows, x, f"{text}.to({TYPES[x.reg.type]}, bitcast=True)")
    best = _made(rows, x, along(rows, how, str(x.reg)))
    if not nan or not x.dtype.is_float:
        return best
    seen = rows.w.let(along(rows, LARGEST, f"({x.reg} != {x.reg}).to(tl.int32)"))
    return _made(rows, x, f"tl.where({seen} != 0, {literal(math.nan, x.reg.type)}, {best.reg})")


def along(rows: TritonRows, how: str, text: str) -> str:
    """The expression of a reduction along the elements of a block."""
    rest = "0" if rows.single else "1, keep_dims=True"
    if how == PRODUCT:
        rows.helpers["product"] = _PRODUCT
        axis, _, keep = rest.partition(", ")
        return f"tl.reduce({text}, {axis}, product{', ' + keep if keep else ''})"
    name = {SUM: "tl.sum", LARGEST: "tl.max", SMALLEST: "tl.min"}[how]
    return f"{name}({text}, {rest})"


def _made(rows: TritonRows, like: Scalar, text: str) -> Scalar:
    return Scalar(rows.w.set(like.reg.type, text), like.dtype)
