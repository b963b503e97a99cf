"""The sizes of a matrix product, and which rows of a batch are one product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monograph.codegen.llvm.matmul.tiles import MAX_ROWS
from monograph.ir import Value
from monograph.ir.sizes import is_open


@dataclass(frozen=True)
class DotProblem:
    """out[b, m, n] = sum over k of x[b, m, k] * w[b, k, n]."""

    batch: tuple[int, ...]
    rows: int
    depth: int
    columns: int


def shared_row_stride(p: DotProblem, x: Value, w: Value, strides: Sequence[int]) -> int | None:
    """Return the stride from row to row of a whole batch; None if it is not one product.

    The rows of a batch that share weights are one product, so that weights are read once: a step of
    a decoder has one row for each sequence. Products with many rows each gain nothing.
    """
    shape = x.tensor.static[:-1]
    if any(map(is_open, shape)) or math.prod(w.tensor.static[:-2]) != 1:
        return None
    if math.prod(p.batch) <= 1 or p.rows >= MAX_ROWS or shape != (*p.batch, p.rows):
        return None
    apart, rows = 0, 1
    for extent, stride in zip(reversed(shape), reversed(strides[:-1]), strict=True):
        if extent == 1:
            continue
        apart = apart if rows > 1 else stride
        if stride != apart * rows:
            return None
        rows *= extent
    return apart
