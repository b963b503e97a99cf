"""Recurrent cells in two steps: one large product for all time steps, then the recurrence.

The product with the inputs does not depend on the state, so it is one dot over the whole sequence.
Only the product with the state remains for each time step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.ir import Array, DType, Op, TensorType, TupleType, Value, constant, known
from monograph.ir.dtype import f32, f64
from monograph.ir.sizes import hint_of
from monograph.ir.traits import known_product
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.recurrent import Lstm, RecurrentCell
from monograph.ops.shape import Broadcast, Reshape, Transpose


@dataclass(frozen=True)
class Recurrence(Op):
    """The recurrence of a cell after its input product: given[time * batch, gates * H].

    Operands: given; those of the cell from r on, without the bias that `given` includes. Only the
    lowering makes these.
    """

    cell: RecurrentCell
    time: int
    batch: int

    @property
    def gates(self) -> int:
        return self.cell.gates

    def infer(self, given: TensorType, r: TensorType, *rest: TensorType) -> TupleType:
        hidden = r.dims[1]
        last = TensorType(r.dtype, (self.batch, hidden))
        every = TensorType(r.dtype, (self.time, self.batch, hidden))
        return TupleType((every, last, last) if isinstance(self.cell, Lstm) else (every, last))

    def reference(self, given: Array, r: Array, *rest: Array) -> tuple[Any, ...]:
        """Evaluate the cell with identity weights for its inputs."""
        x = given.reshape(self.time, self.batch, given.shape[-1])
        same = np.eye(x.shape[2], dtype=x.dtype)
        results = self.cell.reference(x, same, r, np.zeros(x.shape[2], x.dtype), *rest)
        return tuple(y.astype(r.dtype) for y in results)

    def flops(self, hidden: int) -> float:
        return 2.0 * hint_of(self.time * self.batch) * self.gates * hidden * hidden

    def accumulation_length(self, *types: TensorType) -> int:
        """Return the terms that remain when the product with the input is a dot of its own."""
        return self.time * known_product(types[1].dims[1:])

    def operations(self, value: Value) -> float:
        return self.flops(value.inputs[1].tensor.static[1])


def split_cell(cell: RecurrentCell, inputs: tuple[Value, ...]) -> Value:
    """Split a cell into a dot and its recurrence."""
    x, w, r, bias, *rest = inputs
    time, batch, features = x.tensor.static
    # Narrow floats are accumulated in f32 before the state is added.
    wide = f64 if x.dtype == f64 else f32
    rows = _as(Reshape((time * batch, features))(x), wide)
    weights = known(w)
    if weights is not None:
        columns = constant(weights.T.astype(wide.numpy))
    else:
        columns = Transpose((1, 0))(_as(w, wide))
    if 0 in rows.tensor.static:
        # No products: the bias for every row, if there are rows.
        given = Broadcast((time * batch, w.tensor.static[0]))(_as(bias, wide))
    else:
        given = Add()(Dot()(rows, columns), _as(bias, wide))
    return Recurrence(cell, time, batch)(given, r, *rest)


def _as(value: Value, dtype: DType) -> Value:
    if value.dtype == dtype:
        return value
    data = known(value)
    return Cast(dtype)(value) if data is None else constant(data.astype(dtype.numpy))
