"""Scatters: a copy of x, with updates written or combined at positions that are data.

If the result is in place over x, nothing is copied.

Threads divide what never overlaps: lines along the axis, or parts of the slices. Each processes its
updates in order, so that the result does not depend on the number of threads.

Col2Im adds blocks to a padded image in scratch memory, one channel at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import is_narrow
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue, Point, elements_of, pieces
from monograph.codegen.llvm.emit.map_kernel import Loaded, LoopNest, emit_each
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.indexing.gather import checked_index, load_index, out_of_range
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    kernel_for,
    pointers,
    share,
    synchronise,
)
from monograph.ir import Input, TensorType, Value
from monograph.ir.dtype import BOOL, boolean, f32, i32
from monograph.ir.sizes import is_open
from monograph.ops.scalar import Scalar
from monograph.ops.scatter import Col2Im, ScatterElements, ScatterNd
from monograph.program.fusion.region import counters, merge
from monograph.program.index import flatten, strides_of
from monograph.program.memory.buffer_assignment import TEMPORARY, Buffer, Storage


def serves(value: Value) -> bool:
    """Return True if the scatter's shapes are valid; otherwise the reference raises the error."""
    if not isinstance(value.op, (ScatterElements, ScatterNd)):
        return False
    x, indices, updates = (v.tensor.static for v in value.inputs)
    if isinstance(value.op, ScatterNd):
        return updates == (*indices[:-1], *x[indices[-1] :])
    axis = value.op.axis
    fits = (b <= a for k, (a, b) in enumerate(zip(x, indices, strict=True)) if k != axis)
    return indices == updates and all(fits)


@kernel_for(ScatterElements, ScatterNd, when=serves)
def scatter(context: KernelContext) -> Kernel:
    """Generate a kernel for a scatter and its epilogue."""
    return _Scatter(context).emit()


class _Scatter:
    def __init__(self, context: KernelContext) -> None:
        region = context.step.region
        assert isinstance(context.anchor.op, (ScatterElements, ScatterNd))
        self.context = context
        self.anchor = context.anchor
        self.op = context.anchor.op
        self.x, self.indices, self.updates = context.anchor.inputs
        self.shape = self.x.tensor.static
        # Sums of narrow floats are rounded once, at the end, so they are computed in scratch
        # memory.
        wide = is_narrow(self.x.dtype) and self.op.reduction in ("add", "mul")
        self.aside = wide or bool(region.epilogue)
        self.work = self.anchor
        if self.aside:
            dtype = f32 if wide else self.x.dtype
            self.work = Input("work", TensorType(dtype, self.shape))()

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        self.sync = context.argument(Sync())
        self.faults = {s: context.argument(out_of_range(s)) for s in dict.fromkeys(self._sizes())}
        nbytes = self.x.tensor.size * self.work.dtype.itemsize
        scratch = context.argument(LlvmScratch(nbytes)) if self.aside else -1
        b = self.b = context.builder()
        if 0 in self.shape:
            return context.finish(b)
        self.e = elements_of(context, b)
        if self.aside:
            self._place_work(b.arguments[f"p{scratch}"])
        if self.aside or not context.program.in_place(context.step):
            self._copy()
            synchronise(b, self.sync, context.threads)
        if self.updates.tensor.size:
            self._lines() if isinstance(self.op, ScatterElements) else self._slices()
        if self.aside:
            synchronise(b, self.sync, context.threads)
            emit_each(context, self.e, partial(Loaded, self.work, self.x.dtype), True)
        return context.finish(b)

    def _sizes(self) -> tuple[int, ...]:
        """Return the dimensions of x that are indexed."""
        if isinstance(self.op, ScatterElements):
            return (self.shape[self.op.axis],)
        return self.shape[: self.indices.tensor.static[-1]]

    def _place_work(self, pointer: Reg) -> None:
        dtype, shape = self.work.dtype, self.shape
        buffer = Buffer(-1, TEMPORARY, dtype, shape, ((0, 0),) * len(shape))
        storage, known = dict(self.e.storage), dict(self.e.pointers)
        storage[self.work] = Storage(buffer, 0, strides_of(shape))
        known[self.work] = pointer
        self.e.storage, self.e.pointers = storage, known

    def _copy(self) -> None:
        """Copy x into the memory of the result."""
        plain = counters(self.shape)
        places = (self.e.storage[v] for v in (self.x, self.work))
        at = merge(self.shape, plain, [flatten(plain, p.strides) for p in places])

        def body(point: Point) -> None:
            loaded = self.e.load(self.x, at, point)
            self.e.store(self.work, at, Scalar(loaded.reg, self.work.dtype), point)

        lanes = self.context.features.lanes(max(self.x.dtype.bits, 32))
        LoopNest(self.b, at, self.context.threads).run(body, lanes)

    def _lines(self) -> None:
        """Apply updates along the axis: lines never overlap, so threads divide them."""
        assert isinstance(self.op, ScatterElements)
        b, axis = self.b, self.op.axis
        shape = self.indices.tensor.static
        rest = [i for i in range(len(shape)) if i != axis]
        lines = math.prod(shape[i] for i in rest)
        moved = (self.indices, self.updates, self.work)
        steps = [self.e.storage[v].strides[axis] for v in moved]

        def line(n: Int, _: list[Reg]) -> None:
            numbers = self._coordinates(n, [shape[i] for i in rest])
            index, new, old = (
                self._start(v, [self.e.storage[v].strides[i] for i in rest], numbers) for v in moved
            )

            def update(k: Int, _: list[Reg]) -> None:
                place = self._checked(b.add(index, b.mul(k, steps[0])), self.shape[axis])
                source = b.add(new, b.mul(k, steps[1]))
                self._update(b.add(old, b.mul(place, steps[2])), source, 0)

            b.loop(0, shape[axis], 1, update)

        b.loop(*share(b, lines, self.context.threads), 1, line)

    def _slices(self) -> None:
        """Apply updates of whole slices: threads divide the elements within them."""
        b = self.b
        *count, depth = self.indices.tensor.static
        rest = self.shape[depth:]
        inner = math.prod(rest)
        index, new, old = (self.e.storage[v] for v in (self.indices, self.updates, self.work))
        dense = old.strides[depth:] == new.strides[len(count) :] == strides_of(rest)
        low, high = share(b, inner, self.context.threads)

        def slice_(n: Int, _: list[Reg]) -> None:
            numbers = self._coordinates(n, count)
            at = self._start(self.indices, index.strides[:-1], numbers)
            source = self._start(self.updates, new.strides[: len(count)], numbers)
            target: Int = old.offset
            for i in range(depth):
                place = self._checked(b.add(at, i * index.strides[-1]), self.shape[i])
                target = b.add(target, b.mul(place, old.strides[i]))

            def update(j: Int, lanes: int) -> None:
                if dense:
                    self._update(b.add(target, j), b.add(source, j), lanes)
                    return
                within = self._coordinates(j, rest)
                a, c = target, source
                for k, s, t in zip(
                    within, old.strides[depth:], new.strides[len(count) :], strict=True
                ):
                    a, c = b.add(a, b.mul(k, s)), b.add(c, b.mul(k, t))
                self._update(a, c, 0)

            self._columns(low, high, update, dense)

        b.loop(0, math.prod(count), 1, slice_)

    def _columns(
        self, low: Int, high: Int, update: Callable[[Int, int], None], dense: bool
    ) -> None:
        """Update elements of a slice, in vectors if they are contiguous."""
        b = self.b
        lanes = self.context.features.lanes(max(self.x.dtype.bits, 32))
        if dense:
            whole = b.sub(high, lanes - 1)
            b.loop(low, whole, lanes, lambda j, _: update(j, lanes))
            room = b.maximum(b.sub(high, low), 0)
            low = b.add(low, b.mul(b.div(room, lanes), lanes))
        b.loop(low, high, 1, lambda j, _: update(j, 0))

    def _coordinates(self, n: Int, shape: Sequence[int]) -> list[Int]:
        b = self.b
        steps = zip(shape, strides_of(shape), strict=True)
        return [b.mod(b.div(n, s), d) if i else b.div(n, s) for i, (d, s) in enumerate(steps)]

    def _start(self, value: Value, strides: Sequence[int], numbers: Sequence[Int]) -> Int:
        return self.b.position(numbers, strides, self.e.storage[value].offset)

    def _checked(self, where: Int, size: int) -> Reg:
        index = load_index(self.e, self.indices, where)
        return checked_index(self.b, index, size, self.faults[size])

    def _update(self, target: Int, source: Int, lanes: int) -> None:
        """Write an update (or one per lane), or combine it with the current element."""
        b, scalars = self.b, self.e.scalars
        at = b.mul(source, self.updates.dtype.itemsize)
        new = scalars.load(self.updates.dtype, b.offset(self.e.pointers[self.updates], at), lanes)
        new = Scalar(new.reg, self.work.dtype)
        place = b.offset(self.e.pointers[self.work], b.mul(target, self.work.dtype.itemsize))
        if self.op.reduction != "none":
            new = self._joined(scalars.load(self.work.dtype, place, lanes), new)
        scalars.store(new, place)

    def _joined(self, old: Scalar, new: Scalar) -> Scalar:
        scalars, how = self.e.scalars, self.op.reduction
        if old.dtype == boolean:
            return scalars.or_(old, new) if how in ("add", "max") else scalars.and_(old, new)
        joins = {"add": scalars.add, "mul": scalars.mul, "min": scalars.min, "max": scalars.max}
        return joins[how](old, new)


MOST_ROOM = 1 << 20
"""The most elements of a padded image beyond four times the image itself."""


def serves_blocks(value: Value) -> bool:
    """Return True if the kernel below computes a Col2Im; a padded image must fit in scratch."""
    op = value.op
    if not isinstance(op, Col2Im) or value.dtype.kind == BOOL or not op.image:
        return False
    if min((*op.pads_begin, *op.pads_end)) < 0:
        return False
    return math.prod(op.padded()) <= max(4 * math.prod(op.image), MOST_ROOM)


@kernel_for(Col2Im, when=serves_blocks)
def overlay(context: KernelContext) -> Kernel:
    """Generate a kernel for the sum of blocks over an image, and its epilogue."""
    return _Overlay(context).emit()


class _Overlay:
    """Adds the rows of all blocks of a channel to a padded image, then stores its inner part."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Col2Im)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.x = anchor.inputs[0]
        self.place = context.program.places.storage[self.x]
        dtype = anchor.dtype
        self.wide = dtype if dtype.bits >= 32 else f32 if dtype.is_float else i32
        self.lanes = context.features.lanes(self.wide.bits)
        self.room, self.counts = self.op.padded(), self.op.block_counts()

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs, *region.outputs)
        self.nbytes = math.prod(self.room) * self.wide.itemsize
        scratch = context.argument(LlvmScratch(max(self.nbytes, 64) * context.threads))
        b = self.b = context.builder()
        self.s = LlvmScalars(b, context.features)
        self.epilogue = Epilogue(context, b)
        self.pointer = pointers(b, context.arguments)[self.x]
        own = b.mul(b.arguments["tid"], max(self.nbytes, 64))
        self.scratch = b.offset(b.arguments[f"p{scratch}"], own)
        batch, self.channels = self.anchor.tensor.static[:2]
        if 0 not in self.anchor.tensor.static:
            b.loop(*share(b, batch * self.channels, context.threads), 1, self._channel)
        return context.finish(b)

    def _channel(self, i: Int, _: list[Reg]) -> None:
        b, each = self.b, math.prod(self.op.block)
        n, c = b.div(i, self.channels), b.mod(i, self.channels)
        zeros = (self.scratch, Reg("0", "i8"), b.i64(self.nbytes), Reg("false", "i1"))
        b.call("llvm.memset.p0.i64", "void", *zeros)
        if 0 not in self.counts:
            b.loop(0, each, 1, lambda p, _: self._tap(n, b.add(b.mul(c, each), p), p))
        *outer, width = self.op.image

        def row(k: Int, _: list[Reg]) -> None:
            where = b.coordinates(k, outer)
            padded = zip((*where, 0), self.op.pads_begin, strict=True)
            at = b.position([b.add(w, pad) for w, pad in padded], strides_of(self.room))

            def some(j: Int, lanes: int) -> None:
                found = self._sums(b.add(at, j), lanes)
                result = self.s.cast(found, self.anchor.dtype)
                self.epilogue.store([n, c, *where, j], result.reg, max(lanes, 1))

            self._run(width, some)

        b.loop(0, math.prod(outer), 1, row)

    def _tap(self, n: Int, channel: Int, p: Int) -> None:
        """Add one element of all blocks."""
        b, op = self.b, self.op
        *outer, width = self.counts
        tap = b.coordinates(p, op.block)
        steps = strides_of(self.room)
        start = b.position([b.mul(t, d) for t, d in zip(tap, op.dilations, strict=True)], steps)
        *own, step = self.place.strides
        base = b.position([n, channel], own, self.place.offset)
        apart = op.strides[-1]

        def row(k: Int, _: list[Reg]) -> None:
            where = b.coordinates(k, outer)
            moved = (b.mul(w, s) for w, s in zip(where, op.strides, strict=False))
            to = b.position([*moved, 0], steps, start)
            given = b.add(base, b.mul(b.mul(k, width), step))

            def some(j: Int, lanes: int) -> None:
                at = b.mul(b.add(given, b.mul(j, step)), self.x.dtype.itemsize)
                x = self.s.load(self.x.dtype, b.offset(self.pointer, at), lanes)
                self._add(b.add(to, b.mul(j, apart)), self.s.cast(x, self.wide), lanes)

            self._run(width, some, step == 1 and apart == 1)

        b.loop(0, math.prod(outer), 1, row)

    def _sums(self, at: Int, lanes: int) -> Scalar:
        pointer = self.b.offset(self.scratch, self.b.mul(at, self.wide.itemsize))
        return self.s.load(self.wide, pointer, lanes)

    def _add(self, at: Int, x: Scalar, lanes: int) -> None:
        pointer = self.b.offset(self.scratch, self.b.mul(at, self.wide.itemsize))
        self.s.store(self.s.add(self._sums(at, lanes), x), pointer)

    def _run(self, count: int, some: Callable[[Int, int], None], vectors: bool = True) -> None:
        """Run a body for all elements of a row, in vectors as long as they fit."""
        b, lanes = self.b, self.lanes
        whole = count // lanes * lanes if vectors else 0
        b.loop(0, whole, lanes, lambda j, _: some(j, lanes))
        if not vectors or is_open(count):
            b.loop(whole, count, 1, lambda j, _: some(j, 0))
            return
        for start, width in pieces(count - whole):
            some(whole + start, width if width > 1 else 0)
