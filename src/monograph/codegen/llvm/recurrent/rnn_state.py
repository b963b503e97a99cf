"""The memory of a recurrent cell's kernel: operands, packed weights, states.

Rows of states and gate vectors are padded to whole vectors of hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.scalar_functions import activate
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import part, pieces
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.matmul.dot import masked_load
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    LlvmPacked,
    LlvmScratch,
    Sync,
    pointers,
    report,
    share,
    synchronise,
)
from monograph.ir import Array, Item, Value, known
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import hint_of, is_one
from monograph.ops.recurrent import Gru, Lstm
from monograph.ops.scalar import Scalar
from monograph.program.legalise.recurrence import Recurrence
from monograph.program.memory.buffer_assignment import OWN

ALONE_BELOW = 100_000
"""Below this many multiply-adds per step, one thread is faster than several with barriers."""


@dataclass(frozen=True)
class UnitVector:
    """A vector of hidden units: its number, and its number of used lanes."""

    number: Int
    lanes: int


class CellKernel:
    """The kernel of a cell; a subclass defines each time step."""

    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Recurrence)
        self.context = context
        self.op = anchor.op
        self.cell = anchor.op.cell
        self.given, self.r, *rest = anchor.inputs
        self.vectors, self.states, self.lengths = self._operands(rest)
        self.dtype = f64 if self.given.dtype == f64 else f32
        self.element = "double" if self.dtype == f64 else "float"
        self.size = self.dtype.itemsize
        self.lanes = context.features.lanes(8 * self.size)
        self.hidden = self.r.tensor.static[1]
        self.blocks = -(-self.hidden // self.lanes)
        self.padded = self.blocks * self.lanes
        self.gates = self.op.gates
        self.outputs = {self._index(v): v for v in context.step.region.outputs}
        work = self.op.flops(self.hidden) / 2 / max(hint_of(self.op.time), 1)
        self.threads = 1 if work < ALONE_BELOW or self.blocks == 1 else context.threads
        self.late = isinstance(self.cell, Gru) and self.cell.late_reset

    def _operands(self, rest: list[Value]) -> tuple[list[Value], list[Value], Value | None]:
        """Return the vectors for each gate, the initial states, and the lengths."""
        vectors = [] if self.op.gates == 1 else [rest.pop(0)]
        states = [rest.pop(0) for _ in range(2 if isinstance(self.cell, Lstm) else 1)]
        return vectors, states, rest.pop(0) if rest else None

    def _index(self, output: Value) -> int:
        assert isinstance(output.op, Item)
        return output.op.index

    # Arguments and memory

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        weights = known(self.r)
        read = region.inputs if weights is None else region.inputs_besides(1)
        context.add(*read, *region.outputs)
        count = self.blocks * self.hidden * self.gates * self.lanes
        packed = context.argument(
            LlvmScratch(count * self.size) if weights is None else LlvmPacked(self._pack(weights))
        )
        parts = {"bias": self.gates, "h": 2 * self.op.batch, "c": self.op.batch}
        parts |= {"z": self.op.batch, "sh": self.op.batch}
        scratch = context.argument(LlvmScratch(sum(parts.values()) * self.padded * self.size))
        self.sync = context.argument(Sync())
        self.fault = -1
        if self.lengths is not None:
            limits = f"0..{self.op.time}"
            self.fault = context.argument(LlvmFault("a length is not within the sequence", limits))
        b = self.b = context.builder()
        self.scalars = LlvmScalars(b, context.features)
        self.pointers = pointers(b, context.arguments)
        self.weights = b.arguments[f"p{packed}"]
        self.memory: dict[str, Reg] = {}
        at = 0
        for name, rows in parts.items():
            self.memory[name] = b.offset(b.arguments[f"p{scratch}"], at * self.size)
            at += rows * self.padded
        if self.threads == 1 and context.threads > 1:
            b.on_thread(0, self._run)
        else:
            self._run()
        return context.finish(b)

    def _pack(self, r: Array) -> Array:
        """Pack as [block][unit of the old state][gate][lane], zeros in lanes without a unit."""
        wide = np.zeros((self.gates, self.padded, self.hidden), self.dtype.numpy)
        wide[:, : self.hidden] = r.reshape(self.gates, self.hidden, self.hidden)
        blocks = wide.reshape(self.gates, self.blocks, self.lanes, self.hidden)
        return np.ascontiguousarray(blocks.transpose(1, 3, 0, 2))

    def _run(self) -> None:
        """Emit the work of the kernel, after its memory is laid out."""
        raise NotImplementedError

    def _wait(self) -> None:
        synchronise(self.b, self.sync, self.threads)

    def _pack_weights(self) -> None:
        """Pack weights that are not constant."""
        b, place = self.b, self.context.program.places.storage[self.r]
        size = self.r.dtype.itemsize

        def block(n: Int, _: list[Reg]) -> None:
            for g in range(self.gates):
                b.loop(0, self.hidden, 1, partial(column, n, g))

        def column(n: Int, g: int, k: Int, _: list[Reg]) -> None:
            def lane(i: Int, _: list[Reg]) -> None:
                unit = b.minimum(b.add(b.mul(n, self.lanes), i), self.hidden - 1)
                row = b.add(unit, g * self.hidden)
                at = b.add(place.offset, b.mul(row, place.strides[0]))
                at = b.add(at, b.mul(k, place.strides[1]))
                source = b.offset(self.pointers[self.r], b.mul(at, size))
                to = b.add(b.mul(self._weight_row(n, k, g), self.lanes), i)
                found = self.scalars.load(self.r.dtype, source)
                b.store(found.reg, b.offset(self.weights, b.mul(to, self.size)), self.size)

            b.loop(0, self.lanes, 1, lane)

        b.loop(*share(b, self.blocks, self.threads), 1, block)

    def _weight_row(self, n: Int, k: Int, g: int) -> Int:
        b = self.b
        return b.add(b.mul(b.add(b.mul(n, self.hidden), k), self.gates), g)

    def _fill(self) -> None:
        """Fill the initial state and the gate vectors, padded to whole vectors of units."""
        b = self.b
        states = zip(("h", "c"), self.states, strict=False)
        for name, value in states:
            shared = is_one(value.tensor.static[0])
            self._copy_rows(name, value, self.op.batch, self.hidden, 0 if shared else None)
        for value in self.vectors:
            count = value.tensor.static[0] // self.hidden
            self._copy_rows("bias", value, count, self.hidden, None)
        if self.lengths is not None:
            lengths = self.lengths

            def check(i: Int, _: list[Reg]) -> None:
                given = self._length(lengths, i)
                wrong = b.compare("ugt", given, Reg(str(self.op.time), "i64"))
                report(b, self.fault, wrong, given)

            b.loop(*share(b, self.op.batch, self.threads), 1, check)

    def _copy_rows(self, name: str, value: Value, rows: int, width: int, only: int | None) -> None:
        """Copy rows of an operand into padded rows; all from one row if `only` is given."""
        b, place = self.b, self.context.program.places.storage[value]
        step = place.strides[0] * width if len(place.strides) == 1 else place.strides[0]

        def row(i: Int, _: list[Reg]) -> None:
            start = place.offset if only is not None else b.add(place.offset, b.mul(i, step))

            def one(j: Int, _: list[Reg]) -> None:
                at = b.mul(b.add(start, b.mul(j, place.strides[-1])), value.dtype.itemsize)
                found = self.scalars.load(value.dtype, b.offset(self.pointers[value], at))
                to = b.mul(b.add(b.mul(i, self.padded), j), self.size)
                b.store(found.reg, b.offset(self.memory[name], to), self.size)

            b.loop(0, width, 1, one)
            rest = self.padded - width
            if rest:
                zero = b.number(0, self.element)
                end = b.add(b.mul(i, self.padded), width)
                for j in range(rest):
                    to = b.mul(b.add(end, j), self.size)
                    b.store(zero, b.offset(self.memory[name], to), self.size)

        b.loop(*share(b, rows, self.threads), 1, row)

    def _finish(self, last: Reg) -> None:
        """Store the last states as results."""
        b = self.b
        for index, memory in ((1, last), (2, self.memory["c"])):
            if index not in self.outputs:
                continue
            output = self.outputs[index]

            def row(i: Int, _: list[Reg], output: Value = output, memory: Reg = memory) -> None:
                self._each_block(0, self.blocks, partial(store, output, memory, i))

            def store(output: Value, memory: Reg, i: Int, block: UnitVector) -> None:
                self._store_result(output, [i], block, self._row(memory, i, block))

            b.loop(*share(b, self.op.batch, self.threads), 1, row)

    def _each_block(
        self, low: Int, high: Int, body: Callable[[UnitVector], None], back: Int = 0
    ) -> None:
        """Run a body for each vector of units; one that is not full comes last and alone.

        back: 1 to begin with the last full vector, 0 to begin with the first.
        """
        b = self.b
        over = self.hidden % self.lanes
        full = self.blocks - 1 if over else self.blocks
        end = b.minimum(high, full)
        turn = b.mul(back, b.sub(b.add(low, end), 1))
        sign = b.sub(1, b.mul(back, 2))
        b.loop(low, end, 1, lambda n, _: body(UnitVector(b.add(turn, b.mul(sign, n)), self.lanes)))
        if not over:
            return
        if isinstance(high, int):
            body(UnitVector(full, over))
            return
        mine = b.compare("sgt", high, Reg(str(full), "i64"))
        b.when(mine, lambda: body(UnitVector(full, over)))

    # Elements

    def _sum(self, reg: Reg) -> Scalar:
        return Scalar(reg, self.dtype)

    _scalar = _sum

    def _gate(self, index: int, x: Scalar) -> Scalar:
        """Apply activation number `index`, after clipping."""
        s, cell = self.scalars, self.cell
        if cell.clip is not None:
            bounded = s.max(x, s.constant(-cell.clip, self.dtype))
            x = s.min(bounded, s.constant(cell.clip, self.dtype))
        name, alpha, beta = cell.activations[index]
        return activate(s, name, x, alpha, beta)

    def _given(self, t: Int, row: Int, gate: int, block: UnitVector) -> Scalar:
        b, place = self.b, self.context.program.places.storage[self.given]
        line = b.add(b.mul(t, self.op.batch), row)
        at = b.add(place.offset, b.mul(line, place.strides[0]))
        at = b.add(b.add(at, gate * self.hidden), b.mul(block.number, self.lanes))
        pointer = b.offset(self.pointers[self.given], b.mul(at, self.size))
        beyond = block.lanes < self.lanes
        if beyond and place.buffer.kind not in OWN:
            return self._scalar(masked_load(b, self.element, pointer, self.lanes, block.lanes))
        return self._scalar(
            b.load(vector(self.lanes, self.element), pointer, self.size, slack=beyond)
        )

    def _bias(self, index: int, block: UnitVector) -> Scalar:
        return self._scalar(self._row(self.memory["bias"], index, block))

    def _at(self, memory: Reg, row: Int, block: UnitVector) -> Reg:
        b = self.b
        at = b.add(b.mul(row, self.padded), b.mul(block.number, self.lanes))
        return b.offset(memory, b.mul(at, self.size))

    def _row(self, memory: Reg, row: Int, block: UnitVector) -> Reg:
        kind = vector(self.lanes, self.element)
        return self.b.load(kind, self._at(memory, row, block), self.size)

    def _put(self, memory: Reg, row: Int, block: UnitVector, x: Scalar) -> None:
        self.b.store(x.reg, self._at(memory, row, block), self.size)

    def _length(self, lengths: Value, row: Int) -> Reg:
        b, place = self.b, self.context.program.places.storage[lengths]
        at = b.add(place.offset, b.mul(row, place.strides[0]))
        pointer = b.offset(self.pointers[lengths], b.mul(at, lengths.dtype.itemsize))
        found = self.scalars.load(lengths.dtype, pointer).reg
        widened: Reg = self.scalars.a.convert("sext", found, "i64")
        return widened

    def _alive(self, t: Int, row: Int) -> Reg | None:
        """Return whether a batch element has not ended yet; None if none ever ends."""
        if self.lengths is None:
            return None
        return self.b.compare("slt", self.b.i64(t), self._length(self.lengths, row))

    def _kept(self, alive: Reg | None, new: Scalar, old: Scalar) -> Scalar:
        if alive is None:
            return new
        return Scalar(self.scalars.a.select(alive, new.reg, old.reg), self.dtype)

    def _give(
        self,
        t: Int,
        row: Int,
        block: UnitVector,
        alive: Reg | None,
        h: Scalar,
        old: Reg,
        new: Reg,
    ) -> None:
        """Store the new state of some units, and the result of this step."""
        before = self._scalar(self._row(old, row, block)) if alive is not None else h
        self._put(new, row, block, self._kept(alive, h, before))
        if 0 in self.outputs:
            zero = Scalar(self.b.number(0, self.element, self.lanes), self.dtype)
            result = self._kept(alive, h, zero).reg
            self._store_result(self.outputs[0], [t, row], block, result)

    def _store_result(
        self, output: Value, at: Sequence[Int], block: UnitVector, whole: Reg
    ) -> None:
        b, place = self.b, self.context.program.places.storage[output]
        start: Int = place.offset
        for number, stride in zip(at, place.strides, strict=False):
            start = b.add(start, b.mul(number, stride))
        start = b.add(start, b.mul(block.number, self.lanes))
        for first, width in pieces(block.lanes):
            to = b.mul(b.add(start, first), output.dtype.itemsize)
            some = Scalar(part(b, whole, first, width), output.dtype)
            self.scalars.store(some, b.offset(self.pointers[output], to))
