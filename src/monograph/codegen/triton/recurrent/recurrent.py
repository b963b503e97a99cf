"""Candidates of recurrent cells, whose input products are computed before, and the one-kernel form.

`steps` launches a kernel for each step, which distributes the hidden units over the device. The
same kernel serves every step; only its pointers change. `Whole` is one kernel: a program processes
a batch element through all steps, and small weights stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.triton.emit.elements import INT32_MOST
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.indexing.index_kernels import Copied, CopyOperand, copy, stored
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.recurrent.cells import Cell
from monograph.codegen.triton.recurrent.steps import (
    CellWriter,
    RecurrentTiling,
    Steps,
    lengths_fault,
)
from monograph.ir import known
from monograph.ir.dtype import f64
from monograph.ops.scalar import Scalar
from monograph.program.legalise.recurrence import Recurrence


class Whole(CellWriter):
    """One kernel. Small weights stay in registers, larger ones are read in every step.

    In the latter case the state passes through memory, because all threads of a program need all of
    it, a piece at a time.
    """

    def __init__(self, context: GpuContext, piece: int, warps: int, held: int) -> None:
        super().__init__(context)
        cell = self.cell
        self.piece, self.warps = piece, warps
        self.units = power(cell.hidden)
        self.held = cell.gates * self.units * self.units <= held and piece == self.units
        self.row = self.k.program_id()
        self.unit = self.w.let(f"tl.arange(0, {self.units})", "n")
        if self.units != cell.hidden:
            self.unit_mask = self.w.let(f"{self.unit} < {cell.hidden}", "m")
        self.memory = TritonScratch(
            2 * cell.op.batch * self.units * cell.dtype.itemsize, cell.dtype
        )
        self.tiles: list[str] = []

    def kernel(self) -> Launch:
        cell, w, k = self.cell, self.w, self.k
        if self.held and known(cell.r) is not None:
            self._hold()
        k.wait()
        if self.held and not self.tiles:
            self._hold()
        names = [w.name("state") for _ in cell.states]
        for name, value in zip(names, cell.states, strict=True):
            w.line(f"{name} = {self.read_rows(self.rows_of(value)).reg}")
        self.alive("0", True)
        with w.block(f"for s in range(0, {cell.op.time})"):
            time = w.let(f"{cell.op.time - 1} - s" if cell.backward else "s + 0", "t")
            self._step(time, names)
        k.trigger()
        for index, name in enumerate(names, 1):
            if index in cell.outputs:
                self.write_rows(self.rows_of(cell.outputs[index]), self.scalar(name))
        return k.launch((cell.op.batch,), self.warps, 1)

    def _step(self, time: str, names: Sequence[str]) -> None:
        cell, w, a = self.cell, self.w, self.arithmetic
        h, *rest = (self.scalar(name) for name in names)
        c = rest[0] if rest else None
        first = w.let(f"{time} * {cell.op.batch}", "b")
        given = self.given(cell.given, first)
        sums = self._products(cell.first_gates, h, 0)
        if cell.early:
            z, reset = a.resets(sums, given, self.vector)
            (total,) = self._products((2,), self.s.mul(reset, h), 1)
            new, new_c = a.candidate(total, given, self.vector, z, h), None
        else:
            new, new_c = a.new(sums, given, self.vector, h, c)
        alive = self.alive(time, False)
        if 0 in cell.outputs:
            self._store_result(time, self.kept(alive, new, None))
        kept = [self.kept(alive, new, h)]
        if new_c is not None:
            kept.append(self.kept(alive, new_c, c))
        for name, x in zip(names, kept, strict=True):
            w.assign(name, str(x.reg))

    def _store_result(self, time: str, x: Scalar) -> None:
        every = self.cell.outputs[0]
        step, row, unit = self.strides(every)
        made = self.s.encoded(self.s.cast(x, every.dtype))
        at = f"{time} * {step} + {self.row} * {row} + {self.unit} * {unit}"
        masked = f", mask={self.mask}" if self.mask else ""
        self.w.line(f"tl.store({self.k.pointer(every)} + {at}, {made}{masked})")

    # Products

    def _tile(self, gate: int, along: str, mask: str | None) -> str:
        masks = [f"{self.unit_mask}[:, None]"] if self.unit_mask else []
        masks += [f"{mask}[None, :]"] if mask else []
        both = self.w.let(" & ".join(masks), "m") if masks else None
        return self.weights(gate, f"{self.unit}[:, None]", f"{along}[None, :]", both)

    def _hold(self) -> None:
        """Load the weights once for all steps."""
        gates = range(self.cell.gates)
        self.tiles = [self._tile(g, self.unit, self.unit_mask) for g in gates]

    def _products(self, gates: Sequence[int], state: Scalar, place: int) -> list[Scalar]:
        """The products of some gates' weights with a state in registers."""
        if self.unit_mask:  # lanes beyond the last unit may be NaN
            state = self.scalar(f"tl.where({self.unit_mask}, {state.reg}, 0.0)")
        if self.held:
            texts = (f"tl.sum({self.tiles[g]} * {state.reg}[None, :], 1)" for g in gates)
            return [self.scalar(text) for text in texts]
        w = self.w
        pointer = w.let(f"{self.k.pointer(self.memory)} + {self.row} * {2 * self.units}", "pp")
        w.line("tl.debug_barrier()")  # the others have read the old state
        w.line(f"tl.store({pointer} + {place * self.units} + {self.unit}, {state.reg})")
        w.line("tl.debug_barrier()")
        sums = [w.name("acc") for _ in gates]
        for name in sums:
            w.line(f"{name} = tl.zeros(({self.units},), {self.wide})")
        with w.block(f"for k0 in range(0, {self.units}, {self.piece})"):
            along = w.let(f"k0 + tl.arange(0, {self.piece})", "k")
            inside = self.unit_mask and w.let(f"{along} < {self.cell.hidden}", "m")
            h = w.let(f"tl.load({pointer} + {place * self.units} + {along})", "h")
            for gate, name in zip(gates, sums, strict=True):
                w.line(f"{name} += tl.sum({self._tile(gate, along, inside)} * {h}[None, :], 1)")
        return [self.scalar(name) for name in sums]


HELD = 1 << 14
"""The weights that a program can hold in registers."""
WIDEST = 1 << 12
"""The most hidden units for which one program can do a step."""
MAX_STEPS = 1 << 12
"""The most steps that are launched separately."""
ROWS = (
    *((2, 128, 2), (4, 128, 4), (8, 128, 4), (16, 128, 4), (16, 64, 4)),
    *((2, 512, 4), (4, 256, 4), (8, 256, 8)),
)
"""(units of a program, length of a piece of the sum, warps), one element of the batch each."""
TILES = ((16, 32, 4), (32, 32, 4), (16, 64, 4), (64, 32, 8))
"""The same for several batch elements."""
PROCESSORS = 132
"""Programs that run in parallel on a large device: about as many are best."""


@kernel_for(Recurrence)
def candidates(context: GpuContext) -> list[Candidate]:
    cell = Cell(context.step)
    if all(0 in v.tensor.static for v in context.step.region.outputs):
        return [Candidate("nothing", lambda: _nothing(context, cell))]
    if cell.op.time == 0:
        return [Candidate("copy", lambda: _nothing(context, cell))]
    whole, steps = _wholes(context, cell), _steps(context, cell)
    weights = cell.gates * power(cell.hidden) ** 2
    alone = weights <= HELD and cell.op.time > 1
    return _alternating(whole, steps) if alone else _alternating(steps, whole)


def _alternating(first: list[Candidate], second: list[Candidate]) -> list[Candidate]:
    """Alternate between two lists, so that a short search tries some of both."""
    pairs = [c for pair in zip(first, second, strict=False) for c in pair]
    shorter = min(len(first), len(second))
    return [*pairs, *first[shorter:], *second[shorter:]]


def _nothing(context: GpuContext, cell: Cell) -> tuple[Work, ...]:
    """Return work for no steps: the state stays."""
    pieces = []
    for index, value in enumerate(cell.states, 1):
        if index in cell.outputs:
            source, target = (stored(context.program, v) for v in (value, cell.outputs[index]))
            strides = (0 if value.tensor.static[0] == 1 else source.strides[0], source.strides[1])
            pieces.append(Copied(CopyOperand(value, 0, target.type, strides), target))
    if cell.lengths is None or cell.op.batch == 0:
        return copy(context, pieces)

    def check(k: KernelWriter) -> None:
        assert cell.lengths is not None
        every = k.w.let(f"tl.arange(0, {power(cell.op.batch)})", "b")
        (step,) = context.program.places.storage[cell.lengths].strides
        where = f"{k.pointer(cell.lengths)} + {every} * {step}"
        found = k.w.let(f"tl.load({where}, mask={every} < {cell.op.batch}, other=0)", "n")
        k.report(lengths_fault(cell), f"(({found} < 0) | ({found} > {cell.op.time}))", found)

    return copy(context, pieces, scalars=check)


def _wholes(context: GpuContext, cell: Cell) -> list[Candidate]:
    """Return candidates with one program per batch element."""
    units, rows = power(cell.hidden), math.prod(cell.given.tensor.static)
    if units > WIDEST or rows > INT32_MOST:
        return []
    pieces = [min(units, max(16, n // units)) for n in (4096, 8192, 2048)]
    if cell.gates * units * units <= HELD:
        pieces.insert(0, units)
    found = []
    for piece in dict.fromkeys(pieces):
        for warps in (4, 8):
            name = f"whole {piece} w{warps}"
            make = lambda p=piece, w=warps: (Whole(context, p, w, HELD).kernel(),)  # noqa: E731
            found.append(Candidate(name, make))
    return found


def _steps(context: GpuContext, cell: Cell) -> list[Candidate]:
    """Return candidates with a kernel for each step, or each half of one."""
    if cell.op.time * (1 + cell.early) > MAX_STEPS:
        return []
    most = max(power(cell.hidden), 16)
    rows = [RecurrentTiling(1, n, k, w) for n, k, w in ROWS if k <= most] or [
        RecurrentTiling(1, 8, most, 4)
    ]
    tiles = []
    if cell.op.batch > 4 and cell.dtype != f64:
        m = min(max(16, power(cell.op.batch)), 64)
        tiles = [RecurrentTiling(m, n, k, w) for n, k, w in TILES if k <= max(most, 16)]
    rows.sort(key=lambda c: abs(math.log2(cell.op.batch * -(-cell.hidden // c.n) / PROCESSORS)))
    ordered = [*tiles, *rows] if cell.op.batch >= 16 else [*rows, *tiles]
    return variants("steps", ordered, lambda c: Steps(context, c).works())
