"""Recurrent cells as a whole: a program processes a batch element through all time steps."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.codegen.triton.emit.block_sizes import power
from monograph.codegen.triton.module.kernel import GpuContext, Launch, TritonScratch
from monograph.codegen.triton.recurrent.steps import CellWriter
from monograph.ir import known
from monograph.ops.scalar import Scalar


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
