"""The sizes of a matrix product, and which rows of a batch are one product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monograph.codegen.llvm.matmul.tiles import MAX_ROWS
from monograph.ir import Value
from monograph.ir.sizes import hint_of, proven, same_sizes


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
    if not proven(math.prod(w.tensor.static[:-2]), "==", 1):
        return None
    if hint_of(math.prod(p.batch)) <= 1 or hint_of(p.rows) >= MAX_ROWS:
        return None
    if not same_sizes(shape, (*p.batch, p.rows)):
        return None
    apart: int | None = None
    rows = 1
    for extent, stride in zip(reversed(shape), reversed(strides[:-1]), strict=True):
        if proven(extent, "==", 1):
            continue
        apart = stride if apart is None else apart
        if not proven(stride, "==", apart * rows):
            return None
        rows *= extent
    return apart
