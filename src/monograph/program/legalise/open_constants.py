"""Constants of open sizes. One of several sizes becomes a join of single ones.

The table of sizes is the memory of a single open size; a vector of them needs memory of its own.
"""

from __future__ import annotations

from monograph.ir import Graph, Value, constant, known
from monograph.ir.dtype import i64
from monograph.ir.sizes import Size, is_open
from monograph.ir.types import holds_open
from monograph.ops.shape import Concat, Reshape


def split_open_constants(graph: Graph) -> Graph:
    """Replace each constant of several open sizes by a join of single ones."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        data = known(old)
        if data is None or data.size < 2 or not holds_open(data):
            return old if inputs == old.inputs else old.op(*inputs)
        parts = [Reshape((1,))(constant(d, i64)) for d in data.reshape(-1).tolist()]
        joined = Concat(0)(*parts)
        return joined if data.ndim == 1 else Reshape(data.shape)(joined)

    return graph.rebuild(rebuilt)


def open_number(value: Value) -> Size | None:
    """Return the open size that a constant of one element is; None for any other value."""
    data = known(value)
    number = data.reshape(-1)[0] if data is not None and data.size == 1 else None
    return number if is_open(number) else None
