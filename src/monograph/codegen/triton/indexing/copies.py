"""Copies between memory locations, several in one kernel, at offsets that a counter may give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from monograph.codegen.triton.emit.elements import INT32_MOST
from monograph.codegen.triton.module.kernel import (
    BufferView,
    GpuContext,
    KernelWriter,
    Launch,
    TritonPacked,
    TritonScratch,
)
from monograph.ir import TensorType, Value
from monograph.program.index import strides_of
from monograph.program.program import Program

BLOCK = 512


@dataclass(frozen=True)
class CopyOperand:
    """The location of elements: the memory of an argument, a byte offset, strides."""

    of: Value | TritonPacked | TritonScratch
    offset: int
    type: TensorType
    strides: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """True if the elements are contiguous."""
        steps = zip(self.type.static, self.strides, strides_of(self.type.static), strict=True)
        return all(d == 1 or a == b for d, a, b in steps) or 0 in self.type.static

    def part(self, offset: int = 0) -> BufferView:
        """Return the kernel argument for these elements."""
        dtype, shape = self.type.dtype, self.type.static
        return BufferView(
            self.of, self.offset + offset * dtype.itemsize, dtype, shape, self.strides
        )

    def slice(self, axis: int, number: int) -> CopyOperand:
        """Return the elements at one index of an axis."""
        skipped = number * self.strides[axis] * self.type.dtype.itemsize
        return replace(self.without(axis), offset=self.offset + skipped)

    def without(self, axis: int) -> CopyOperand:
        """Return the operand without one axis, at its index 0."""
        shape = [d for k, d in enumerate(self.type.static) if k != axis]
        strides = tuple(s for k, s in enumerate(self.strides) if k != axis)
        return CopyOperand(self.of, self.offset, self.type.with_shape(shape), strides)


def room(type_: TensorType) -> CopyOperand:
    """Return memory for elements of a type, for as long as a step runs."""
    return dense(TritonScratch(max(type_.nbytes, 1), type_.dtype), type_)


def dense(
    of: Value | TritonPacked | TritonScratch, type_: TensorType, offset: int = 0
) -> CopyOperand:
    """Return contiguous elements in the memory of an argument."""
    return CopyOperand(of, offset, type_, strides_of(type_.static))


def stored(program: Program, value: Value) -> CopyOperand:
    """Return the location of a value of a program."""
    return CopyOperand(value, 0, value.tensor, program.places.storage[value].strides)


@dataclass(frozen=True)
class Copied:
    """Elements to copy; zeros without a source.

    A source or a target with an axis means the slice at the counter, from the front or from the
    end.
    """

    source: CopyOperand | None
    target: CopyOperand
    source_axis: int | None = None
    target_axis: int | None = None
    backward: bool = False


def copy(
    context: GpuContext,
    pieces: Sequence[Copied],
    counter: TritonScratch | None = None,
    scalars: Callable[[KernelWriter], object] | None = None,
) -> tuple[Launch, ...]:
    """Return one kernel for some copies, and a few lines that only its last program runs.

    These lines may not change what the copies read.
    """
    pieces = [p for p in pieces if 0 not in _type(p).static]
    if not pieces and scalars is None:
        return ()
    k = context.kernel()
    w = k.w
    pid = k.program_id()
    k.wait()
    first = 0
    for piece in pieces:
        blocks = -(-math.prod(_type(piece).static) // BLOCK)
        with w.block(f"if ({pid} >= {first}) & ({pid} < {first + blocks})"):
            _copy(k, piece, f"({pid} - {first})", counter)
        first += blocks
    if scalars is not None:
        with w.block(f"if {pid} == {first}"):
            scalars(k)
        first += 1
    k.trigger()
    return (k.launch((first,)),)


def _type(piece: Copied) -> TensorType:
    """Return the type of what is copied at once."""
    target = piece.target
    return target.type if piece.target_axis is None else target.without(piece.target_axis).type


def _copy(k: KernelWriter, piece: Copied, block: str, counter: TritonScratch | None) -> None:
    w, type_ = k.w, _type(piece)
    size = math.prod(type_.static)
    flat = w.let(f"{block} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
    mask = w.let(f"{flat} < {size}", "m")
    target = _position(k, piece.target, piece.target_axis, piece.backward, flat, counter)
    if piece.source is None:
        w.line(f"tl.store({target}, 0, mask={mask})")
        return
    source = _position(k, piece.source, piece.source_axis, piece.backward, flat, counter)
    w.line(f"tl.store({target}, tl.load({source}, mask={mask}, other=0), mask={mask})")


def _position(
    k: KernelWriter,
    place: CopyOperand,
    axis: int | None,
    backward: bool,
    flat: str,
    counter: TritonScratch | None,
) -> str:
    """Return the pointers to a block of the elements of an operand, or of a slice of it."""
    pointer = k.pointer(place.part())
    reach = sum((d - 1) * s for d, s in zip(place.type.static, place.strides, strict=True))
    wide = ".to(tl.int64)" if reach > INT32_MOST else ""
    if axis is not None:
        assert counter is not None
        number = k.w.let(f"tl.load({k.pointer(counter)})", "t")
        if backward:
            number = k.w.let(f"{place.type.static[axis] - 1} - {number}", "t")
        pointer = k.w.let(f"{pointer} + {number} * {place.strides[axis]}", "pp")
        place = place.without(axis)
    if place.dense:
        return f"{pointer} + {flat}{wide}"
    terms, step = [], math.prod(place.type.static)
    for size, stride in zip(place.type.static, place.strides, strict=True):
        step //= size
        terms.append(f"({flat}{wide} // {step} % {size}) * {stride}")
    return f"{pointer} + {' + '.join(terms) or '0'}"
