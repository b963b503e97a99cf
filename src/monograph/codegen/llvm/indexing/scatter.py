"""Scatters: a copy of x, with updates written or combined at positions that are data.

If the result is in place over x, nothing is copied.

Threads divide what never overlaps: lines along the axis, or parts of the slices. Each processes its
updates in order, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import is_narrow
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Point, elements_of
from monograph.codegen.llvm.emit.map_kernel import Loaded, LoopNest, emit_each
from monograph.codegen.llvm.indexing.gather import checked_index, load_index, out_of_range
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    kernel_for,
    share,
    synchronise,
)
from monograph.ir import Input, TensorType, Value
from monograph.ir.dtype import boolean, f32
from monograph.ops.scalar import Scalar
from monograph.ops.scatter import ScatterElements, ScatterNd
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
