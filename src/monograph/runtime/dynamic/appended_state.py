"""State of a loop to whose end each turn appends: a turn computes only what it appends.

The state lies in memory that doubles when it is full, so that no turn copies all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from monograph.errors import ExecutionError
from monograph.ir import Array, Graph, TensorType, Value
from monograph.ir.dtype import STRING
from monograph.ops.base import check_allocation
from monograph.ops.control import Loop
from monograph.ops.shape import Concat


def split_appended(op: Loop) -> tuple[Graph, Mapping[int, int]]:
    """Return the body that gives what is appended, and the appended states by their outputs."""
    outputs, found = list(op.body.outputs), {}
    for i, state in enumerate(op.body.inputs[2 : 2 + op.carried]):
        name, new = outputs[1 + i]
        if _appends(op.body, new, state):
            rest = new.inputs[1:]
            outputs[1 + i] = (name, rest[0] if len(rest) == 1 else new.op(*rest))
            found[1 + i] = i
    return (replace(op.body, outputs=tuple(outputs)), found) if found else (op.body, {})


def _appends(body: Graph, new: Value, state: Value) -> bool:
    """Return True if a new state is the old one with rows behind it, and nothing else reads it."""
    if not isinstance(new.op, Concat) or new.op.axis != 0 or new.inputs[0] is not state:
        return False
    plain = isinstance(new.type, TensorType) and new.dtype.kind != STRING
    return plain and len(new.inputs) > 1 and body.uses[new] == 1


class AppendedState:
    """The rows of one state, in memory with room for more."""

    def __init__(self, first: Array) -> None:
        self._count = len(first)
        self._rows = np.empty((max(2 * self._count, 16), *first.shape[1:]), first.dtype)
        self._rows[: self._count] = first

    def append(self, rows: Array) -> Array:
        """Return the state with rows behind it."""
        if rows.shape[1:] != self._rows.shape[1:]:
            raise ExecutionError(
                "rows that a loop appends to its state must have the size of those before",
                expected=[*self._rows.shape[1:]],
                given=[*rows.shape[1:]],
            )
        count = self._count + len(rows)
        if count > len(self._rows):
            check_allocation((2 * count, *rows.shape[1:]), rows.dtype)
            grown = np.empty((2 * count, *rows.shape[1:]), rows.dtype)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count : count] = rows
        self._count = count
        return self._rows[:count]
