"""Transposition of square blocks of a matrix in registers."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder


def transposed(b: Builder, rows: Sequence[Reg]) -> list[Reg]:
    """Transpose as many rows as they have lanes: halves are swapped, then their halves."""
    made = list(rows)
    lanes = len(made)
    step = lanes // 2
    while step:
        # Blocks (i, j) and (j, i) of this size are swapped.
        for i in range(lanes):
            if i & step:
                continue
            low, high = made[i], made[i + step]
            first = [k if not k & step else lanes + k - step for k in range(lanes)]
            second = [k + step if not k & step else lanes + k for k in range(lanes)]
            made[i], made[i + step] = _shuffle(b, low, high, first), _shuffle(b, low, high, second)
        step //= 2
    return made


def _shuffle(b: Builder, x: Reg, y: Reg, lanes: Sequence[int]) -> Reg:
    mask = ", ".join(f"i32 {k}" for k in lanes)
    text = f"shufflevector {x.type} {x}, {y.type} {y}, <{len(lanes)} x i32> <{mask}>"
    return b.set(x.type, text)
