"""Elements at indices that are expressions: reads of operands, writes of results, small tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.elements import INT32_MOST, BlockAxis, Point, TritonElements
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import KernelWriter, TritonPacked
from monograph.ir import Array, DType, Value, from_numpy
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Indices
from monograph.program.index import Index, kept_counter


def _nest(value: Value, numbers: Sequence[str], mask: str | None) -> tuple[Indices, Point]:
    """Return an index and a point at which a value's dimensions have these numbers."""
    shape = value.tensor.static
    counters = [kept_counter(f"o{i}", d) for i, d in enumerate(shape)]
    point = {c: BlockAxis(text, mask, True) for c, text in zip(counters, numbers, strict=True)}
    return tuple(Index(0, ((c, 1),)) for c in counters), point


def _operand(value: Value, numbers: Sequence[str], mask: str | None) -> tuple[Indices, Point]:
    """The same for an operand, some of whose numbers may be literals.

    Literals are not masked: alone they are no block that a mask could fit.
    """
    at, nest = _nest(value, numbers, mask)
    pairs = zip(at, numbers, strict=True)
    point = {c: axis for c, axis in nest.items() if not axis.text.isdigit()}
    return tuple(Index(int(n)) if n.isdigit() else index for index, n in pairs), point


def read(e: TritonElements, value: Value, numbers: Sequence[str], mask: str | None) -> Scalar:
    """Load an operand's elements through its views, in register form."""
    at, point = _operand(value, numbers, mask)
    return e.element(value, at, point)


def write(
    e: TritonElements, value: Value, numbers: Sequence[str], scalar: Scalar, mask: str | None
) -> None:
    """Store elements of a result."""
    at, point = _nest(value, numbers, mask)
    e.store(value, at, scalar, point)


def coordinates(w: Writer, number: str, sizes: Sequence[int]) -> list[str]:
    """The coordinates of a number in row-major order."""
    step = math.prod(sizes)
    found = []
    for place, size in enumerate(sizes):
        step //= max(size, 1)
        text = number if step <= 1 else f"({number}) // {step}"
        found.append(w.let(f"({text}) % {size}" if place else text, "b"))
    return found


def joined(w: Writer, numbers: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the row-major number of some coordinates."""
    wide = math.prod(sizes) > INT32_MOST
    text = "0"
    for number, size in zip(numbers, sizes, strict=True):
        own = f"({number}).to(tl.int64)" if wide else f"({number})"
        text = own if text == "0" else w.let(f"{text} * {size} + {own}", "n")
    return w.let(text, "n") if numbers else "0"


def table(k: KernelWriter, array: Array) -> str:
    """A pointer to a constant of the kernel's own."""
    return k.pointer(TritonPacked(np.ascontiguousarray(array), from_numpy(array.dtype)))


def register(w: Writer, text: str, dtype: DType) -> Scalar:
    """An expression as elements of a type in registers."""
    return Scalar(Reg(w.let(text), types.register(dtype)), dtype)
