"""Recurrent cells: the time steps after the inputs are multiplied.

Step by step: each time step is a kernel that divides the hidden units among programs; the next
kernel waits for it. The same kernel serves every step: only its pointers change. As a whole: a
program processes a batch element through all time steps; nothing is launched in between, and small
weights stay in registers.
"""

from __future__ import annotations

import math

from monograph.codegen.triton.emit.block_sizes import power
from monograph.codegen.triton.emit.elements import INT32_MOST
from monograph.codegen.triton.indexing.copies import Copied, CopyOperand, copy, stored
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Work,
    kernel_for,
)
from monograph.codegen.triton.recurrent.cells import Cell
from monograph.codegen.triton.recurrent.steps import RecurrentTiling, Steps, lengths_fault
from monograph.codegen.triton.recurrent.whole import Whole
from monograph.ir.dtype import f64
from monograph.program.legalise.recurrence import Recurrence

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
    return [
        Candidate(f"steps {c}", lambda c=c: Steps(context, c).works())  # type: ignore[misc]
        for c in ordered
    ]
