"""The arithmetic of recurrent cells: from the products of a time step to its new state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monograph.codegen.common.scalar_functions import activate
from monograph.codegen.triton.emit.scalar import TritonScalars
from monograph.ir import Item, Value, known
from monograph.ir.dtype import f32, f64
from monograph.ops.recurrent import Gru, Lstm
from monograph.ops.scalar import Scalar
from monograph.program.legalise.recurrence import Recurrence
from monograph.program.program import Step

Vector = Callable[[int], Scalar]
"""The part of a vector or a row that belongs to gate i."""


class Cell:
    """A recurrence: its operands, and its arithmetic."""

    def __init__(self, step: Step) -> None:
        anchor = step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Recurrence)
        self.op = anchor.op
        self.cell = anchor.op.cell
        self.given, self.r, *rest = anchor.inputs
        self.vector = None if self.op.gates == 1 else rest.pop(0)
        self.states = [rest.pop(0) for _ in range(2 if isinstance(self.cell, Lstm) else 1)]
        self.lengths: Value | None = rest.pop(0) if rest else None
        self.dtype = f64 if self.given.dtype == f64 else f32
        self.hidden = self.r.tensor.static[1]
        self.gates = self.op.gates
        self.outputs = {v.op.index: v for v in step.region.outputs if isinstance(v.op, Item)}
        self.backward = self.cell.backward
        self.early = isinstance(self.cell, Gru) and not self.cell.late_reset
        """True if a gate decides what the last product reads of the state: a step in halves."""

    @property
    def uses_vector(self) -> bool:
        """True if the vector exists and is not all zeros."""
        data = None if self.vector is None else known(self.vector)
        return self.vector is not None and (data is None or bool(data.any()))

    def time(self, step: int) -> int:
        """Return the time of step number `step`."""
        return self.op.time - 1 - step if self.backward else step

    @property
    def first_gates(self) -> tuple[int, ...]:
        """Return the gates whose products read the unchanged state."""
        return (0, 1) if self.early else tuple(range(self.gates))


@dataclass
class Arithmetic:
    """The steps of a cell on blocks of hidden units."""

    cell: Cell
    s: TritonScalars

    def gate(self, index: int, x: Scalar) -> Scalar:
        """Apply activation number `index`, after clipping."""
        s, dtype = self.s, self.cell.dtype
        clip = self.cell.cell.clip
        if clip is not None:
            x = s.min(s.max(x, s.constant(-clip, dtype)), s.constant(clip, dtype))
        return self.apply(index, x)

    def apply(self, index: int, x: Scalar) -> Scalar:
        name, alpha, beta = self.cell.cell.activations[index]
        return activate(self.s, name, x, alpha, beta)

    def new(
        self, sums: list[Scalar], given: Vector, vector: Vector, h: Scalar, c: Scalar | None
    ) -> tuple[Scalar, Scalar | None]:
        """Return the new state, from the products of all gates with the old one."""
        if isinstance(self.cell.cell, Lstm):
            assert c is not None
            return self._lstm(sums, given, vector, c)
        if isinstance(self.cell.cell, Gru):
            return self._late_gru(sums, given, vector, h), None
        return self.gate(0, self.s.add(sums[0], given(0))), None

    def _lstm(
        self, sums: list[Scalar], given: Vector, vector: Vector, c: Scalar
    ) -> tuple[Scalar, Scalar]:
        s, op = self.s, self.cell.cell
        assert isinstance(op, Lstm)
        i, o, f, n = (s.add(x, given(g)) for g, x in enumerate(sums))
        gate = self.gate(0, self._peep(i, vector, 0, c))
        if op.coupled:
            forget = s.sub(s.constant(1, self.cell.dtype), gate)
        else:
            forget = self.gate(0, self._peep(f, vector, 2, c))
        fresh = s.fma(gate, self.gate(1, n), s.mul(forget, c))
        out = self.gate(0, self._peep(o, vector, 1, fresh))
        return s.mul(out, self.apply(2, fresh)), fresh

    def _peep(self, x: Scalar, vector: Vector, index: int, c: Scalar) -> Scalar:
        return self.s.fma(vector(index), c, x) if self.cell.uses_vector else x

    def _biased(self, x: Scalar, vector: Vector, index: int) -> Scalar:
        return self.s.add(x, vector(index)) if self.cell.uses_vector else x

    def _late_gru(self, sums: list[Scalar], given: Vector, vector: Vector, h: Scalar) -> Scalar:
        s = self.s
        z, reset = self.resets(sums, given, vector)
        fresh = s.fma(reset, self._biased(sums[2], vector, 2), given(2))
        return self.mixed(z, self.gate(1, fresh), h)

    def resets(self, sums: list[Scalar], given: Vector, vector: Vector) -> tuple[Scalar, Scalar]:
        """Return the gates: how much of a state stays, and how much of it a candidate reads."""
        biased = [self._biased(sums[g], vector, g) for g in (0, 1)]
        z, reset = (self.gate(0, self.s.add(x, given(g))) for g, x in enumerate(biased))
        return z, reset

    def candidate(
        self, total: Scalar, given: Vector, vector: Vector, z: Scalar, h: Scalar
    ) -> Scalar:
        """Return the new state, from the product with the reset state."""
        x = self.s.add(self._biased(total, vector, 2), given(2))
        return self.mixed(z, self.gate(1, x), h)

    def mixed(self, z: Scalar, fresh: Scalar, h: Scalar) -> Scalar:
        """(1 - z) fresh + z h."""
        s = self.s
        share = s.mul(s.sub(s.constant(1, self.cell.dtype), z), fresh)
        return s.fma(z, h, share)
