"""Recurrent cells step by step: a kernel for each step, or for each half of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.emit.scalar import TritonScalars, register_type
from monograph.codegen.triton.emit.tile import register
from monograph.codegen.triton.matmul.product import dot_precision, rounded
from monograph.codegen.triton.module.kernel import (
    Argument,
    BufferView,
    GpuContext,
    KernelWriter,
    TritonFault,
    TritonPacked,
    TritonScratch,
    Work,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.recurrent.cells import Arithmetic, Cell
from monograph.ir import DType, Value, known
from monograph.ir.dtype import i64
from monograph.ops.scalar import Scalar


@dataclass(frozen=True)
class RecurrentTiling:
    """A program's batch rows and hidden units, the pieces of its sums, its warps."""

    m: int
    n: int
    k: int
    warps: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} w{self.warps}"


def lengths_fault(cell: Cell) -> TritonFault:
    return TritonFault("a length is not within the sequence", f"0..{cell.op.time}")


@dataclass(frozen=True)
class UnitRows:
    """Rows of hidden units in memory: an argument, and strides of rows and units."""

    of: Argument
    dtype: DType
    row: int
    unit: int


class CellWriter:
    """A kernel of a cell: blocks of rows and units, loaded and stored in the wide type."""

    def __init__(self, context: GpuContext) -> None:
        self.context = context
        self.cell = Cell(context.step)
        self.k: KernelWriter = context.kernel()
        self.w = self.k.w
        self.s = TritonScalars(self.w)
        self.arithmetic = Arithmetic(self.cell, self.s)
        self.wide = register_type(self.cell.dtype)
        self.row = self.unit = ""
        self.row_mask: str | None = None
        self.unit_mask: str | None = None

    def strides(self, value: Value) -> tuple[int, ...]:
        return self.context.program.places.storage[value].strides

    def rows_of(self, value: Value) -> UnitRows:
        """Return an initial or last state in memory; one row may serve the whole batch."""
        row, unit = self.strides(value)
        return UnitRows(value, value.dtype, 0 if value.tensor.static[0] == 1 else row, unit)

    @property
    def mask(self) -> str | None:
        masks = [m for m in (self.row_mask, self.unit_mask) if m]
        return self.w.let(" & ".join(masks), "m") if masks else None

    def read(self, pointer: str, at: str, dtype: DType, mask: str | None) -> Scalar:
        masked = f", mask={mask}, other=0" if mask else ""
        found = self.s.decoded(self.w.let(f"tl.load({pointer} + {at}{masked})", "x"), dtype)
        return self.s.cast(found, self.cell.dtype)

    def read_rows(self, rows: UnitRows) -> Scalar:
        """A block of rows and units."""
        return self.read(self.k.pointer(rows.of), self._at(rows), rows.dtype, self.mask)

    def write_rows(self, rows: UnitRows, x: Scalar) -> None:
        made = self.s.encoded(self.s.cast(x, rows.dtype))
        masked = f", mask={self.mask}" if self.mask else ""
        self.w.line(f"tl.store({self.k.pointer(rows.of)} + {self._at(rows)}, {made}{masked})")

    def _at(self, rows: UnitRows) -> str:
        return self.w.let(f"({self.row}) * {rows.row} + ({self.unit}) * {rows.unit}", "i")

    def vector(self, gate: int) -> Scalar:
        """Load the part of the cell's vector that belongs to a gate."""
        value = self.cell.vector
        assert value is not None
        (step,) = self.strides(value)
        at = self.w.let(f"({gate * self.cell.hidden} + {self.unit}) * {step}", "i")
        return self.read(self.k.pointer(value), at, value.dtype, self.unit_mask)

    def given(self, of: Argument, first: str = "0") -> Callable[[int], Scalar]:
        """Return the part of the inputs' products that belongs to a gate, from some row on."""
        row, unit = self.strides(self.cell.given)

        def part(gate: int) -> Scalar:
            number = f"({first} + {self.row}) * {row}"
            at = self.w.let(f"{number} + ({gate * self.cell.hidden} + {self.unit}) * {unit}", "i")
            return self.read(self.k.pointer(of), at, self.cell.given.dtype, self.mask)

        return part

    def weights(self, gate: int, unit: str, along: str, mask: str | None) -> str:
        """Load weights of a gate, wide, by units and units of the old state."""
        row, column = self.strides(self.cell.r)
        at = f"({gate * self.cell.hidden} + {unit}) * {row} + ({along}) * {column}"
        pointer = self.k.pointer(self.cell.r)
        return str(self.read(pointer, self.w.let(at, "i"), self.cell.r.dtype, mask).reg)

    def scalar(self, text: str) -> Scalar:
        return register(self.w, text, self.cell.dtype)

    def alive(self, time: str, check: bool) -> str | None:
        """Return whether rows have not ended yet; None if none ever ends."""
        lengths = self.cell.lengths
        if lengths is None:
            return None
        (step,) = self.strides(lengths)
        masked = f", mask={self.row_mask}, other=0" if self.row_mask else ""
        where = self.w.let(f"{self.k.pointer(lengths)} + ({self.row}) * {step}", "pp")
        found = self.w.let(f"tl.load({where}{masked})", "n")
        if check:
            wrong = self.w.let(f"({found} < 0) | ({found} > {self.cell.op.time})", "m")
            self.k.report(lengths_fault(self.cell), wrong, found)
        return self.w.let(f"{time} < {found}", "m")

    def kept(self, alive: str | None, new: Scalar, old: Scalar | None) -> Scalar:
        """Return the new state of rows that have not ended, else the old one, or zeros."""
        if alive is None:
            return new
        other = f"tl.zeros_like({new.reg})" if old is None else str(old.reg)
        return self.scalar(f"tl.where({alive}, {new.reg}, {other})")


@dataclass(frozen=True)
class _Memory:
    """The memory between kernels, in the wide type."""

    h: TritonScratch
    c: TritonScratch
    z: TritonScratch
    seen: TritonScratch


class Steps:
    """A cell's kernels in order."""

    def __init__(self, context: GpuContext, config: RecurrentTiling) -> None:
        self.context = context
        self.config = config
        self.cell = Cell(context.step)
        cell = self.cell
        self.rows = cell.op.batch * cell.hidden
        size = self.rows * cell.dtype.itemsize
        rooms = (TritonScratch(n * size, cell.dtype) for n in (2, 1, 1, 1))
        self.memory = _Memory(*rooms)
        self.times = TritonPacked(np.arange(cell.op.time, dtype=np.int64), i64)

    def works(self) -> tuple[Work, ...]:
        found: list[Work] = []
        for number in range(self.cell.op.time):
            if self.cell.early:
                found.append(_Step(self, number).gates())
                found.append(_Step(self, number).candidate())
            else:
                found.append(_Step(self, number).whole())
        return tuple(found)


class _Step(CellWriter):
    """The kernel of one step: steps differ only in their pointers."""

    def __init__(self, steps: Steps, number: int) -> None:
        super().__init__(steps.context)
        self.steps, self.number, self.config = steps, number, steps.config
        cell, c, w = self.cell, steps.config, self.w
        self.first, self.last = number == 0, number == cell.op.time - 1
        self.time = cell.time(number)
        self.k.trigger()
        units = w.let(f"{self.k.program_id()} * {c.n} + tl.arange(0, {c.n})", "n")
        inside = w.let(f"{units} < {cell.hidden}", "m") if cell.hidden % c.n else None
        self.units, self.units_mask = units, inside
        if c.m == 1:
            self.row, self.unit, self.unit_mask = self.k.program_id(1), units, inside
            return
        rows = w.let(f"{self.k.program_id(1)} * {c.m} + tl.arange(0, {c.m})", "b")
        self.row = w.let(f"{rows}[:, None]")
        if cell.op.batch % c.m:
            self.row_mask = w.let(f"{self.row} < {cell.op.batch}", "m")
        self.unit = w.let(f"{units}[None, :]")
        self.unit_mask = w.let(f"{inside}[None, :]") if inside else None

    # Memory

    def _state(self, index: int) -> UnitRows:
        """Return the old state: an operand at first, then the result of the step before."""
        if self.first:
            return self.rows_of(self.cell.states[index])
        return self._kept_rows(index, self.number)

    def _kept_rows(self, index: int, number: int) -> UnitRows:
        if index == 1:
            return self._scratch(self.steps.memory.c)
        # Two alternating buffers, because other programs still read the old one.
        return self._scratch(self.steps.memory.h, number % 2 * self.steps.rows)

    def _scratch(self, memory: TritonScratch, skipped: int = 0) -> UnitRows:
        cell = self.cell
        of = BufferView(memory, skipped * cell.dtype.itemsize, cell.dtype)
        return UnitRows(of, cell.dtype, cell.hidden, 1)

    def _at_time(self, value: Value, rows: int) -> BufferView:
        """Return an operand or result from this step's first row on."""
        skipped = self.time * rows * self.strides(value)[0]
        return BufferView(value, skipped * value.dtype.itemsize, value.dtype)

    def _given(self) -> Callable[[int], Scalar]:
        return self.given(self._at_time(self.cell.given, self.cell.op.batch))

    def _alive(self) -> str | None:
        if self.cell.lengths is None:
            return None
        now = BufferView(self.steps.times, self.time * i64.itemsize, i64)
        return self.alive(self.w.let(f"tl.load({self.k.pointer(now)})", "t"), self.first)

    # Kernels

    def whole(self) -> Launch:
        """Generate a step of a cell whose products all read the old state."""
        old = self._state(0)
        sums = self._products(self.cell.first_gates, old)
        h = self.read_rows(old)
        c = self.read_rows(self._state(1)) if len(self.cell.states) > 1 else None
        new_h, new_c = self.arithmetic.new(sums, self._given(), self.vector, h, c)
        self._store_state(new_h, h, new_c, c)
        return self._launch()

    def gates(self) -> Launch:
        """Generate the first half of a step: the gates, and the state that the candidate reads."""
        old, memory = self._state(0), self.steps.memory
        sums = self._products(self.cell.first_gates, old)
        h = self.read_rows(old)
        z, reset = self.arithmetic.resets(sums, self._given(), self.vector)
        self.write_rows(self._scratch(memory.z), z)
        self.write_rows(self._scratch(memory.seen), self.s.mul(reset, h))
        return self._launch()

    def candidate(self) -> Launch:
        """Generate the second half of a step."""
        memory = self.steps.memory
        (total,) = self._products((2,), self._scratch(memory.seen))
        h, z = self.read_rows(self._state(0)), self.read_rows(self._scratch(memory.z))
        new = self.arithmetic.candidate(total, self._given(), self.vector, z, h)
        self._store_state(new, h, None, None)
        return self._launch()

    def _store_state(
        self, h: Scalar, old_h: Scalar, c: Scalar | None, old_c: Scalar | None
    ) -> None:
        """Store the new state, and the result of the step."""
        alive, outputs = self._alive(), self.cell.outputs
        kept = self.kept(alive, h, old_h)
        if not self.last:
            self.write_rows(self._kept_rows(0, self.number + 1), kept)
        elif 1 in outputs:
            self.write_rows(self.rows_of(outputs[1]), kept)
        if c is not None:
            state = self.kept(alive, c, old_c)
            if not self.last:
                self.write_rows(self._kept_rows(1, self.number + 1), state)
            elif 2 in outputs:
                self.write_rows(self.rows_of(outputs[2]), state)
        if 0 in outputs:
            _, row, unit = self.strides(outputs[0])
            rows = UnitRows(self._at_time(outputs[0], 1), outputs[0].dtype, row, unit)
            self.write_rows(rows, self.kept(alive, h, None))

    def _launch(self) -> Launch:
        cell, c = self.cell, self.config
        grid = (-(-cell.hidden // c.n), -(-cell.op.batch // c.m))
        return self.k.launch(grid, c.warps, 1 if c.m == 1 else 2)

    # Products

    def _products(self, gates: Sequence[int], state: UnitRows) -> list[Scalar]:
        """The products of some gates' weights with a state."""
        return self._row_products(gates, state) if self.config.m == 1 else self._dots(gates, state)

    def _along(self, start: str) -> tuple[str, str | None]:
        """Return the units of the old state of a piece of a sum."""
        c, hidden = self.config, self.cell.hidden
        along = self.w.let(f"{start} + tl.arange(0, {c.k})", "k")
        return along, self.w.let(f"{along} < {hidden}", "m") if hidden % c.k else None

    def _row_products(self, gates: Sequence[int], state: UnitRows) -> list[Scalar]:
        w, c, pointer = self.w, self.config, self.k.pointer(state.of)
        sums = [w.name("acc") for _ in gates]
        alone = self.cell.hidden <= c.k
        if not alone:
            self.k.wait()
            for name in sums:
                w.line(f"{name} = tl.zeros(({c.n}, {c.k}), {self.wide})")

        def piece(start: str) -> list[str]:
            along, mask = self._along(start)
            masks = [f"{self.units_mask}[:, None]"] if self.units_mask else []
            masks += [f"{mask}[None, :]"] if mask else []
            both = w.let(" & ".join(masks), "m") if masks else None
            if known(self.cell.r) is None:
                self.k.wait()
            tiles = [
                self.weights(g, f"{self.units}[:, None]", f"{along}[None, :]", both) for g in gates
            ]
            self.k.wait()
            at = w.let(f"({self.row}) * {state.row} + {along} * {state.unit}", "i")
            h = self.read(pointer, at, state.dtype, mask).reg
            return [f"{tile} * {h}[None, :]" for tile in tiles]

        if alone:
            return [self.scalar(f"tl.sum({text}, 1)") for text in piece("0")]
        with w.block(f"for k0 in range(0, {self.cell.hidden}, {c.k})"):
            for name, text in zip(sums, piece("k0"), strict=True):
                w.line(f"{name} += {text}")
        return [self.scalar(f"tl.sum({name}, 1)") for name in sums]

    def _dots(self, gates: Sequence[int], state: UnitRows) -> list[Scalar]:
        w, c, pointer = self.w, self.config, self.k.pointer(state.of)
        self.k.wait()
        sums = [w.name("acc") for _ in gates]
        for name in sums:
            w.line(f"{name} = tl.zeros(({c.m}, {c.n}), {self.wide})")
        precision = dot_precision(self.context)
        with w.block(f"for k0 in range(0, {self.cell.hidden}, {c.k})"):
            along, mask = self._along("k0")
            across = f"{mask}[None, :]" if mask else None
            masks = [m for m in (self.row_mask, across) if m]
            at = w.let(f"({self.row}) * {state.row} + {along}[None, :] * {state.unit}", "i")
            h = self.read(pointer, at, state.dtype, " & ".join(masks) or None).reg
            down = [f"{mask}[:, None]"] if mask else []
            down += [self.unit_mask] if self.unit_mask else []
            h = rounded(self.context, w, str(h), self.cell.dtype)
            for gate, name in zip(gates, sums, strict=True):
                tile = self.weights(gate, self.unit, f"{along}[:, None]", " & ".join(down) or None)
                tile = rounded(self.context, w, tile, self.cell.dtype)
                w.line(f"{name} = tl.dot({h}, {tile}, {name}, input_precision={precision})")
        return [self.scalar(name) for name in sums]
