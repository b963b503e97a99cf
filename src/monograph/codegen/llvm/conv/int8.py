"""Convolutions of bytes with constant signed weights, channels last: exact, in 32 bits.

Registers hold pixels of a row by vectors of output channels; `int8_dot` multiplies bytes. Taps
whose channels are contiguous in memory are one run of bytes. Groups with too few results to fill a
vector are joined, with zeros between them. A depthwise convolution is like that of floats, but
bytes are widened as they are loaded.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.conv.depthwise import Depthwise
from monograph.codegen.llvm.conv.general import window_conv
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.image.windows import image
from monograph.codegen.llvm.matmul.int8_dot import multiplies, packed_panels, products
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, LlvmPacked, pointers, share
from monograph.ir import Array, Value, known
from monograph.ir.sizes import hint_of
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST
from monograph.program.memory.buffer_assignment import TEMPORARY


def serves(value: Value) -> bool:
    """Return True if this kernel computes a convolution."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != CHANNELS_LAST or op.auto or not multiplies(value):
        return False
    return 0 not in (*value.tensor.dims, *value.inputs[1].tensor.dims)


def conv_int(context: KernelContext) -> Kernel:
    """Generate a kernel for a convolution of bytes and its epilogue."""
    anchor = context.anchor
    x = image(context, anchor.inputs[0], CHANNELS_LAST)
    if x.channel != 1 and anchor.inputs[0].tensor.static[-1] > 1:
        # Bytes that are not contiguous cannot be loaded in groups.
        return window_conv(context)
    return _ConvInt(context).emit()


class _ConvInt:
    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Conv)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        self.x = image(context, anchor.inputs[0], CHANNELS_LAST)
        self.shape = anchor.tensor.static
        self.products = products(context.features, anchor.inputs[0].dtype)
        self.lanes = self.products.lanes
        self.weights = self._weights()
        self.groups, self.taps, self.depth, self.out = self.weights.shape
        self.vectors = -(-self.out // self.lanes)
        self.steps = self.products.steps(self.depth)
        work = self.taps * self.steps * self.products.parts
        self.tile = self.products.tile(self.shape[-2], self.vectors, work, 1)
        self.panels = split(self.vectors, self.tile.vectors)
        self.runs = split(self.shape[-2], self.tile.rows)

    def _weights(self) -> Array:
        """Return [groups, outer taps, contiguous bytes, results], and steps between outer taps."""
        found = known(self.anchor.inputs[1])
        assert found is not None
        kernel = found.shape[2:]
        grouped = self._joined(found)
        groups, out, channels = grouped.shape[:3]
        self.channels = channels
        spatial = [d * s for d, s in zip(self.op.dilations, self.x.spatial, strict=True)]
        together = groups == 1 and spatial[-1] == channels
        outer = kernel[:-1] if together else kernel
        self.outer = list(zip(outer, spatial[: len(outer)], strict=True))
        last = grouped.transpose(0, *range(3, grouped.ndim), 2, 1)
        return last.reshape(groups, math.prod(outer), -1, out)

    def _joined(self, weights: Array) -> Array:
        """Return [groups, results, channels, *kernel]; small groups are joined to fill a vector."""
        groups = self.op.groups
        results, channels = weights.shape[0] // groups, weights.shape[1]
        wanted = min(groups, -(-self.lanes // results))
        joined = next(n for n in range(wanted, 0, -1) if groups % n == 0)
        apart = weights.reshape(groups // joined, joined, results, *weights.shape[1:])
        shape = (groups // joined, joined, results, joined, *weights.shape[1:])
        whole = np.zeros(shape, weights.dtype)
        for k in range(joined):
            whole[:, k, :, k] = apart[:, k]
        kernel = weights.shape[2:]
        return whole.reshape(groups // joined, joined * results, joined * channels, *kernel)

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs_besides(1), *region.outputs)
        self.packed = context.argument(LlvmPacked(self._pack()))
        b = self.b = context.builder()
        self.products.bind(b)
        self.pointers = pointers(b, context.arguments)
        self.epilogue = Epilogue(context, b)
        self.epilogue.reserve(self.tile.rows * self.tile.vectors, self.lanes)
        self._loops()
        return context.finish(b)

    def _pack(self) -> Array:
        """Pack as [group][panel][initial accumulators; then steps, tap by tap]."""
        made = [packed_panels(self.products, w, self.panels) for w in self.weights]
        return np.concatenate([piece for pieces in made for piece in pieces])

    def _loops(self) -> None:
        """Loop over groups, panels of results and strips of pixels; threads divide one of them."""
        b, threads = self.b, self.context.threads
        strips = math.prod(self.shape[:-2]) * sum(r.count for r in self.runs)
        panels = self._panel_runs()
        over = "strips"
        if threads > 1 and hint_of(strips) < 2 * threads:
            over = "groups" if self.groups >= threads else "panels"

        def group(g: Int, _: list[Reg]) -> None:
            for number, panel in enumerate(panels):
                body = partial(self._strips, over, g, panel)
                if over == "panels" and panel.count == 1:
                    # Single panels are dealt to the threads, the last thread first.
                    b.on_thread(threads - 1 - number % threads, partial(body, 0, []))
                    continue
                span = share(b, panel.count, threads) if over == "panels" else (0, panel.count)
                b.loop(*span, 1, body)

        own = share(b, self.groups, threads) if over == "groups" else (0, self.groups)
        b.loop(own[0], own[1], 1, group)

    def _panel_runs(self) -> list[Run]:
        """Return runs of panels; one with unused lanes comes last and alone, at a literal index."""
        runs = list(self.panels)
        if self.out % self.lanes:
            whole = runs.pop()
            if whole.count > 1:
                runs.append(Run(whole.start, whole.size, whole.count - 1))
            runs.append(Run(whole.start + (whole.count - 1) * whole.size, whole.size, 1))
        return runs

    def _strips(self, over: str, g: Int, panel: Run, i: Int, _: list[Reg]) -> None:
        """Compute every pixel against one panel of results of one group."""
        b, lines = self.b, math.prod(self.shape[:-2])
        for run in self.runs:
            units = lines * run.count
            span = share(b, units, self.context.threads) if over == "strips" else (0, units)
            b.loop(*span, 1, partial(self._tile, g, panel, i, run))

    def _place(self, run: Run, u: Int) -> list[Int]:
        """Return batch and spatial indices of the first pixel of a strip."""
        b, dims = self.b, self.shape[:-2]
        line = b.div(u, run.count)
        return [*b.coordinates(line, dims), b.add(b.mul(b.mod(u, run.count), run.size), run.start)]

    def _tile(self, g: Int, panel: Run, i: Int, run: Run, u: Int, _: list[Reg]) -> None:
        b, line = self.b, self.products.line
        batch, *spatial = self._place(run, u)
        places = zip(spatial, self.op.strides, self.op.pads_begin, strict=True)
        origin = [b.add(b.mul(o, s), -p) for o, s, p in places]
        at = self.x.position(b, batch, b.mul(g, self.channels), origin)
        x = b.offset(self.pointers[self.x.source], at)
        first = b.add(b.mul(i, panel.size), panel.start)
        start_bytes = self.lanes * 4
        column_bytes = start_bytes + self.taps * self.steps * line
        before = b.mul(b.add(b.mul(g, self.vectors), first), column_bytes)
        w = b.offset(b.arguments[f"p{self.packed}"], before)
        kind = vector(self.lanes, "i32")
        start = [b.load(kind, b.offset(w, v * start_bytes), 4) for v in range(panel.size)]
        w = b.offset(w, panel.size * start_bytes)
        sums = self._taps(x, w, start * run.size, run, panel, 0)[0]
        self._finish([batch, *spatial], g, first, run, panel, sums)

    def _taps(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, panel: Run, axis: int
    ) -> tuple[list[Reg], Reg]:
        """Add the products of all taps from this axis of the kernel inwards."""
        b = self.b
        if axis == len(self.outer):
            return self._bytes(x, w, sums, run, panel)
        extent, step = self.outer[axis]

        def one(_: Int, carried: list[Reg]) -> list[Reg]:
            *inner, xk, wk = carried
            after, following = self._taps(xk, wk, inner, run, panel, axis + 1)
            return [*after, b.offset(xk, step), following]

        *result, _, last = b.loop(0, extent, 1, one, [*sums, x, w])
        return result, last

    def _bytes(
        self, x: Reg, w: Reg, sums: list[Reg], run: Run, panel: Run
    ) -> tuple[list[Reg], Reg]:
        """Add the products of contiguous bytes."""
        b, own = self.b, self.products
        apart = self.op.strides[-1] * self.x.spatial[-1]

        def multiply(there: int, valid: int, k: Int, carried: list[Reg]) -> list[Reg]:
            *acc, wk = carried
            at = b.offset(x, b.mul(k, own.step))
            rows = [b.offset(at, r * apart) for r in range(run.size)]
            acc = own.multiply(acc, rows, valid, wk, panel.size, valid > there)
            return [*acc, b.offset(wk, panel.size * own.line)]

        whole, rest = divmod(self.depth, own.step)
        carried = b.loop(0, whole, 1, partial(multiply, own.step, own.step), [*sums, w])
        if rest:
            carried = multiply(rest, self._valid(rest), whole, carried)
        return carried[:-1], carried[-1]

    def _valid(self, rest: int) -> int:
        """Return the number of bytes that the last step may read; surplus bytes have no weight."""
        buffer = self.context.program.places.storage[self.x.source].buffer
        return self.products.step if buffer.kind == TEMPORARY else rest

    def _finish(
        self, place: list[Int], g: Int, first: Int, run: Run, panel: Run, sums: list[Reg]
    ) -> None:
        b = self.b
        *outer, w0 = place

        def store(r: Int, v: int, total: Reg) -> None:
            n = b.mul(b.add(first, v), self.lanes)
            left = self.out - n if isinstance(n, int) else self.lanes
            c = b.add(b.mul(g, self.out), n)
            self.epilogue.store([*outer, b.add(w0, r), c], total, min(left, self.lanes))

        self.epilogue.store_rows(sums, run.size, store)


def serves_depthwise(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if not serves(value):
        return False
    assert isinstance(value.op, Conv)
    results, channels = value.inputs[1].tensor.dims[:2]
    return channels == 1 and results == value.op.groups and value.op.groups > 1


def conv_int_depthwise(context: KernelContext) -> Kernel:
    """Generate a kernel for a depthwise convolution of bytes and its epilogue."""
    return _OfBytes(context).emit()


class _OfBytes(Depthwise):
    most_held = 4
    sums = "i32"
    weight = np.int32

    def _loaded(self, place: Reg, lanes: int) -> Reg:
        how = "sext" if self.dtype.is_signed else "zext"
        return LlvmArith(self.b).convert(how, self.b.load(vector(lanes, "i8"), place, 1), "i32")

    def _added(self, x: Reg, w: Reg, total: Reg) -> Reg:
        a = LlvmArith(self.b)
        return a.op("add", total, a.op("mul", x, w))
