"""Recurrent cells: the time steps after the inputs are multiplied.

Threads divide the hidden units, so that each keeps its part of the weights in its own cache and the
state of its own units to itself; only the products with the state read the results of others.
Weights are packed so that a vector of units reads them sequentially. Time steps go through the
vectors forwards and backwards in turn: what the last step read last is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.scalar_functions import activate
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.matmul.tiles import Run, split
from monograph.codegen.llvm.module.kernel import Kernel, KernelContext, kernel_for, share
from monograph.codegen.llvm.recurrent.rnn_state import CellKernel, UnitVector
from monograph.ir import known
from monograph.ops.recurrent import Gru, Lstm
from monograph.ops.scalar import Scalar
from monograph.program.legalise.recurrence import Recurrence

CHAINS = 8
"""Accumulators that hide the latency of a multiply-add."""


@kernel_for(Recurrence)
def recurrent(context: KernelContext) -> Kernel:
    """Generate a kernel for all time steps of a cell."""
    if all(0 in v.tensor.static for v in context.step.region.outputs):
        return context.finish(context.builder())
    return _Steps(context).emit()


class _Steps(CellKernel):
    """The time steps of each kind of cell."""

    def _run(self) -> None:
        if known(self.r) is None:
            self._pack_weights()
        self._fill()
        self._wait()
        every, length = self.op.batch * self.padded * self.size, self.op.time
        old = self.memory["h"]
        new = self.b.offset(old, every)

        def step(s: Int, carried: list[Reg]) -> list[Reg]:
            backward = self.cell.backward
            self._step(self.b.sub(length - 1, s) if backward else s, *carried)
            self._wait()
            return [carried[1], carried[0]]

        last = self.b.loop(0, length, 1, step, [old, new])[0]
        self._finish(last)

    def _step(self, t: Int, old: Reg, new: Reg) -> None:
        low, high = share(self.b, self.blocks, self.threads)
        back = self.b.mod(t, 2)
        if isinstance(self.cell, Gru) and not self.late:
            self._each_block(low, high, partial(self._tiles, self._reset_gates, t, old, new), back)
            self._wait()
            self._each_block(low, high, partial(self._tiles, self._candidate, t, old, new), back)
            return
        kinds = {"lstm": self._lstm, "gru": self._late_gru, "rnn": self._rnn}
        self._each_block(low, high, partial(self._tiles, kinds[self.cell.name], t, old, new), back)

    def _tiles(self, body: _Tile, t: Int, old: Reg, new: Reg, block: UnitVector) -> None:
        """Process rows of the batch, a few at a time: each load of weights serves them all."""
        most = max(1, (self.context.features.registers - 8) // self.gates)
        for run in split(self.op.batch, most):

            def tile(i: Int, _: list[Reg], run: Run = run) -> None:
                first = self.b.add(self.b.mul(i, run.size), run.start)
                rows = [self.b.add(first, k) for k in range(run.size)]
                body(t, old, new, block, rows)

            self.b.loop(0, run.count, 1, tile)

    def _products(
        self, state: Reg, block: UnitVector, rows: Sequence[Int], gates: Sequence[int]
    ) -> list[list[Reg]]:
        """Return the products of each row's state with each gate's weights, a vector of units."""
        b = self.b
        count = len(rows) * len(gates)
        unroll = min(-(-CHAINS // count), self.hidden)
        row_bytes = self.gates * self.lanes * self.size
        start = b.offset(self.weights, b.mul(block.number, self.hidden * row_bytes))
        states = [b.offset(state, b.mul(i, self.padded * self.size)) for i in rows]
        kind = vector(self.lanes, self.element)
        zero = b.number(0, self.element, self.lanes)

        def multiply(k: Int, sums: list[Reg], turns: int) -> list[Reg]:
            for u in range(turns):
                at = b.add(k, u)
                weights = b.offset(start, b.mul(at, row_bytes))
                columns = [
                    b.load(kind, b.offset(weights, g * self.lanes * self.size), self.size)
                    for g in gates
                ]
                for i, row in enumerate(states):
                    one = b.load(self.element, b.offset(row, b.mul(at, self.size)), self.size)
                    factor = b.splat(one, self.lanes)
                    for j, column in enumerate(columns):
                        s = u * count + i * len(gates) + j
                        sums[s] = self.scalars.a.fma(factor, column, sums[s])
            return sums

        whole = self.hidden - self.hidden % unroll
        sums = b.loop(
            0, whole, unroll, lambda k, c: multiply(k, c, unroll), [zero] * (count * unroll)
        )
        sums = multiply(whole, list(sums), self.hidden % unroll)
        for u in range(1, unroll):
            for s in range(count):
                sums[s] = self.scalars.a.add(sums[s], sums[u * count + s])
        return [sums[i * len(gates) : (i + 1) * len(gates)] for i in range(len(rows))]

    def _lstm(self, t: Int, old: Reg, new: Reg, block: UnitVector, rows: Sequence[Int]) -> None:
        assert isinstance(self.cell, Lstm)
        s = self.scalars
        sums = self._products(old, block, rows, range(4))
        for i, row in enumerate(rows):
            i_, o_, f_, n_ = (
                s.add(self._sum(x), self._given(t, row, g, block)) for g, x in enumerate(sums[i])
            )
            cell = self._scalar(self._row(self.memory["c"], row, block))
            gate = self._gate(0, self._peep(i_, 0, cell, block))
            if self.cell.coupled:
                forget = s.sub(s.constant(1, self.dtype), gate)
            else:
                forget = self._gate(0, self._peep(f_, 2, cell, block))
            fresh = s.fma(gate, self._gate(1, n_), s.mul(forget, cell))
            out = self._gate(0, self._peep(o_, 1, fresh, block))
            name, alpha, beta = self.cell.activations[2]
            h = s.mul(out, activate(s, name, fresh, alpha, beta))
            alive = self._alive(t, row)
            kept = self._kept(alive, fresh, cell)
            self._put(self.memory["c"], row, block, kept)
            self._give(t, row, block, alive, h, old, new)

    def _peep(self, x: Scalar, index: int, cell: Scalar, block: UnitVector) -> Scalar:
        peepholes = known(self.vectors[0])
        if peepholes is not None and not peepholes.any():
            return x
        return self.scalars.fma(self._bias(index, block), cell, x)

    def _rnn(self, t: Int, old: Reg, new: Reg, block: UnitVector, rows: Sequence[Int]) -> None:
        sums = self._products(old, block, rows, [0])
        for i, row in enumerate(rows):
            total = self.scalars.add(self._sum(sums[i][0]), self._given(t, row, 0, block))
            h = self._gate(0, total)
            self._give(t, row, block, self._alive(t, row), h, old, new)

    def _late_gru(self, t: Int, old: Reg, new: Reg, block: UnitVector, rows: Sequence[Int]) -> None:
        s = self.scalars
        sums = self._products(old, block, rows, range(3))
        for i, row in enumerate(rows):
            biased = [s.add(self._sum(x), self._bias(g, block)) for g, x in enumerate(sums[i])]
            z, reset = (
                self._gate(0, s.add(biased[g], self._given(t, row, g, block))) for g in (0, 1)
            )
            fresh = self._gate(1, s.fma(reset, biased[2], self._given(t, row, 2, block)))
            self._mix(t, row, block, z, fresh, old, new)

    def _reset_gates(
        self, t: Int, old: Reg, new: Reg, block: UnitVector, rows: Sequence[Int]
    ) -> None:
        """Compute the first half of a step: the gates, and the state that the candidate reads."""
        s = self.scalars
        sums = self._products(old, block, rows, range(2))
        for i, row in enumerate(rows):
            z, reset = (
                self._gate(
                    0,
                    s.add(s.add(self._sum(x), self._bias(g, block)), self._given(t, row, g, block)),
                )
                for g, x in enumerate(sums[i])
            )
            state = self._scalar(self._row(old, row, block))
            self._put(self.memory["z"], row, block, z)
            self._put(self.memory["sh"], row, block, s.mul(reset, state))

    def _candidate(
        self, t: Int, old: Reg, new: Reg, block: UnitVector, rows: Sequence[Int]
    ) -> None:
        s = self.scalars
        sums = self._products(self.memory["sh"], block, rows, [2])
        for i, row in enumerate(rows):
            total = s.add(self._sum(sums[i][0]), self._bias(2, block))
            fresh = self._gate(1, s.add(total, self._given(t, row, 2, block)))
            z = self._scalar(self._row(self.memory["z"], row, block))
            self._mix(t, row, block, z, fresh, old, new)

    def _mix(
        self, t: Int, row: Int, block: UnitVector, z: Scalar, fresh: Scalar, old: Reg, new: Reg
    ) -> None:
        """(1 - z) fresh + z state."""
        s = self.scalars
        state = self._scalar(self._row(old, row, block))
        share_ = s.mul(s.sub(s.constant(1, self.dtype), z), fresh)
        h = s.fma(z, state, share_)
        self._give(t, row, block, self._alive(t, row), h, old, new)


_Tile = Callable[[Int, Reg, Reg, UnitVector, Sequence[Int]], None]
