"""Resizing: elements gathered along each resized axis by tables computed at compile time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, each_pixel, strided_view
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    kernel_for,
    pointers,
    share,
)
from monograph.ir import Array, DType, Value
from monograph.ir.dtype import f32, f64
from monograph.ops.image import CROP, nearest_places, taps, used_taps
from monograph.ops.resize import LINEAR, NEAREST, Resize, whole_number
from monograph.ops.scalar import Scalar
from monograph.program.memory.strided import strided

VECTORS = 4


@dataclass(frozen=True)
class _Axis:
    """A resized axis: [output, tap] positions (as offsets in elements) and weights."""

    axis: int
    places: Array
    weights: Array | None
    outside: Array
    """Outputs outside of the image, which get the extrapolation value."""


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    op = value.op
    if not isinstance(op, Resize) or op.sizes is None or op.policy != "stretch":
        return False
    return 0 not in value.inputs[0].tensor.static and not value.dtype.is_string


@kernel_for(Resize, when=serves, readable=strided_view)
def resize(context: KernelContext) -> Kernel:
    """Generate a kernel for resizing and its epilogue."""
    return _Resize(context).emit()


class _Resize:
    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Resize)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.given = anchor.inputs[0]
        found = strided(self.given, context.program.places.storage)
        assert found is not None
        self.x = found
        self.shape = anchor.tensor.static
        self.axes = [self._axis(i) for i in range(len(self.op.axes))]
        self.dtype: DType = self.given.dtype
        if self.op.mode != NEAREST:
            self.dtype = f32 if self.given.dtype.is_float and self.given.dtype != f64 else f64

    def _axis(self, i: int) -> _Axis:
        axis = self.op.axes[i]
        where = self.op.axis_of(i, self.given.tensor.static[axis])
        outside = where.outside() if self.op.coordinates == CROP else np.zeros(0, bool)
        weights = None
        if self.op.mode == NEAREST:
            places = nearest_places(where, self.op.rounding)[None]
        else:
            a = None if self.op.mode == LINEAR else self.op.cubic_a
            places, weights = taps(where, a, self.op.antialias, self.op.exclude_outside)
            places, weights = used_taps(places, weights)
            weights = weights.T
        return _Axis(axis, places.T * self.x.strides[axis], weights, outside)

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        tables = [np.ascontiguousarray(a.places, np.int64) for a in self.axes]
        self.places = [context.argument(LlvmPacked(t)) for t in tables]
        self.weights = [
            context.argument(LlvmPacked(np.ascontiguousarray(a.weights, self.dtype.numpy)))
            for a in self.axes
            if a.weights is not None
        ]
        self.by_rows = self._reads_rows()
        self.turned = -1
        if self.by_rows and self.weights:
            turned = np.asarray(self.axes[-1].weights, self.dtype.numpy).T
            self.turned = context.argument(LlvmPacked(np.ascontiguousarray(turned)))
        self.outside = {
            i: context.argument(LlvmPacked(a.outside.astype(np.uint8)))
            for i, a in enumerate(self.axes)
            if a.outside.any()
        }
        b = self.b = context.builder()
        self.pointer = pointers(b, context.arguments)[self.x.source]
        self.scalars = LlvmScalars(b, context.features)
        self.epilogue = Epilogue(context, b)
        if 0 not in self.shape:
            self._rows() if self.by_rows else self._loops()
        return context.finish(b)

    def _reads_rows(self) -> bool:
        """Return True if the last axis is resized, and no output is outside of the image."""
        last = self.op.axes[-1:] == (len(self.shape) - 1,)
        return last and not any(a.outside.any() for a in self.axes)

    def _rows(self) -> None:
        """Loop over rows; the taps of the other axes are the same for all of a row."""
        b, (*outer, width) = self.b, self.shape
        lanes = self.context.features.lanes(max(32, self.dtype.bits))

        def row(i: Int, _: list[Reg]) -> None:
            index = b.coordinates(i, outer)
            at: Int = self.x.offset
            for axis, (number, stride) in enumerate(zip(index, self.x.strides, strict=False)):
                at = at if axis in self.op.axes else b.add(at, b.mul(number, stride))
            lines = self._lines(index, at, None, 0)
            whole = width // lanes * lanes
            b.loop(0, whole, lanes, lambda c, _: self._across(index, c, lines, lanes))
            b.loop(whole, width, 1, lambda c, _: self._across(index, c, lines, 1))

        b.loop(*share(b, math.prod(outer), self.context.threads), 1, row)

    def _lines(
        self, index: Sequence[Int], at: Int, weight: Scalar | None, depth: int
    ) -> list[tuple[Int, Scalar | None]]:
        """Return the offsets and weights of the lines that a row reads."""
        if depth == len(self.axes) - 1:
            return [(at, weight)]
        found = []
        for place, factor in self._taps(index[self.axes[depth].axis], weight, depth):
            found += self._lines(index, self.b.add(at, place), factor, depth + 1)
        return found

    def _across(
        self,
        index: Sequence[Int],
        c: Int,
        lines: Sequence[tuple[Int, Scalar | None]],
        lanes: int,
    ) -> None:
        """Compute contiguous elements of a row."""
        b, s, given = self.b, self.scalars, self.given.dtype
        axis, width = self.axes[-1], self.shape[-1]
        count = axis.places.shape[1]
        table = b.arguments[f"p{self.places[-1]}"]
        columns = []
        for t in range(count):
            entries = [b.add(b.mul(b.add(c, k), count), t) for k in range(lanes)]
            places = [b.load("i64", b.offset(table, b.mul(e, 8)), 8) for e in entries]
            own = None
            if axis.weights is not None:
                where = b.mul(b.add(c, t * width), self.dtype.itemsize)
                pointer = b.offset(b.arguments[f"p{self.turned}"], where)
                own = s.load(self.dtype, pointer, lanes if lanes > 1 else 0)
            columns.append((places, own))
        total: Scalar | None = None
        for at, outer in lines:
            for places, own in columns:
                starts = [b.mul(b.add(at, p), given.itemsize) for p in places]
                loads = [s.load(given, b.offset(self.pointer, start)) for start in starts]
                x = s.gathered(loads) if lanes > 1 else loads[0]
                x = x if given == self.dtype else s.cast(x, self.dtype)
                if own is not None:
                    x = s.mul(x, own if outer is None else s.mul(outer, own))
                total = x if total is None else s.add(total, x)
        assert total is not None
        self.epilogue.store([*index, c], self._finish(total, index).reg, lanes)

    def _loops(self) -> None:
        shape = self.shape or (1,)
        last = len(self.shape) - 1
        vectors = self.x.strides[-1:] == (1,) and last not in self.op.axes
        lanes = self.context.features.lanes(max(32, self.dtype.bits)) if vectors else 1
        runs = blocks(shape[-1], lanes, VECTORS)
        each_pixel(self.b, self.context.threads, 1, shape[:-1], runs, self._unit)

    def _unit(self, _: Int, c: Int, place: list[Int], run: ChannelBlocks) -> None:
        """Compute some elements along the last axis."""
        b = self.b
        lanes = run.lanes if run.lanes > 1 else 0
        index = [*place, c][: len(self.shape)]
        at: Int = self.x.offset
        for axis, (i, stride) in enumerate(zip(index, self.x.strides, strict=True)):
            if axis not in self.op.axes:
                at = b.add(at, b.mul(i, stride))
        made = self._gather(index, at, None, [], run, lanes, 0)
        for v, reg in enumerate(made):
            result = self._finish(Scalar(reg, self.dtype), index)
            where = [*index[:-1], b.add(c, v * run.lanes)] if index else []
            self.epilogue.store(where, result.reg, run.lanes)

    def _gather(
        self,
        index: Sequence[Int],
        at: Int,
        weight: Scalar | None,
        sums: list[Reg],
        run: ChannelBlocks,
        lanes: int,
        depth: int,
    ) -> list[Reg]:
        """Return the weighted sum over the taps of all resized axes, from one of them inwards."""
        if depth == len(self.axes):
            return self._add(at, weight, sums, run, lanes)
        for place, factor in self._taps(index[self.axes[depth].axis], weight, depth):
            sums = self._gather(index, self.b.add(at, place), factor, sums, run, lanes, depth + 1)
        return sums

    def _taps(self, output: Int, weight: Scalar | None, depth: int) -> list[tuple[Reg, Any]]:
        """Return the offsets of the taps of an output along an axis, and their weights."""
        b, axis = self.b, self.axes[depth]
        count = axis.places.shape[1]
        found = []
        for t in range(count):
            entry = b.add(b.mul(output, count), t)
            table = b.arguments[f"p{self.places[depth]}"]
            place = b.load("i64", b.offset(table, b.mul(entry, 8)), 8)
            own = weight if axis.weights is None else self._weight(depth, entry, weight)
            found.append((place, own))
        return found

    def _weight(self, depth: int, entry: Int, outer: Scalar | None) -> Scalar:
        b, size = self.b, self.dtype.itemsize
        table = b.arguments[f"p{self.weights[depth]}"]
        own = self.scalars.load(self.dtype, b.offset(table, b.mul(entry, size)))
        return own if outer is None else self.scalars.mul(outer, own)

    def _add(
        self, at: Int, weight: Scalar | None, sums: list[Reg], run: ChannelBlocks, lanes: int
    ) -> list[Reg]:
        b, given = self.b, self.given.dtype
        start = b.offset(self.pointer, b.mul(at, given.itemsize))
        made = []
        for v in range(run.vectors):
            x = self.scalars.load(given, b.offset(start, v * lanes * given.itemsize), lanes)
            if given != self.dtype:
                x = self.scalars.cast(x, self.dtype)
            if weight is not None:
                x = self.scalars.mul(x, weight)
            if sums:
                x = self.scalars.add(Scalar(sums[v], self.dtype), x)
            made.append(x.reg)
        return made

    def _finish(self, total: Scalar, index: Sequence[Int]) -> Scalar:
        """Return the result in its element type; outputs outside of the image are replaced."""
        s, to = self.scalars, self.anchor.dtype
        if not to.is_float and self.op.mode != NEAREST:
            total = whole_number(s, total, to, self.op.antialias)
        made = total if self.dtype == to else s.cast(total, to)
        for depth, argument in self.outside.items():
            b = self.b
            where = b.offset(b.arguments[f"p{argument}"], index[self.axes[depth].axis])
            beyond = b.compare("ne", b.load("i8", where, 1), Reg("0", "i8"))
            other = s.splat(s.constant(self.op.beyond(to), to), made.reg.lanes)
            text = f"select i1 {beyond}, {made.reg.type} {other.reg}, {made.reg.type} {made.reg}"
            made = Scalar(b.set(made.reg.type, text), to)
        return made
