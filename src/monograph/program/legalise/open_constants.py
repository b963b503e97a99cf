"""Replaces constants of several open sizes by a join of single sizes, which a kernel writes.

A kernel reads a single open size from the table of sizes; a vector of them needs memory.
"""

from __future__ import annotations

from monograph.ir import Graph, Value, constant, known
from monograph.ir.dtype import i64
from monograph.ir.sizes import any_open
from monograph.ops.shape import Concat, Reshape


def split_open_constants(graph: Graph) -> Graph:
    """Replace each constant of several open sizes by a join of single ones."""

    def rebuilt(old: Value, inputs: tuple[Value, ...]) -> Value:
        data = known(old)
        if data is None or data.size < 2 or not any_open(data.flat):
            return old if inputs == old.inputs else old.op(*inputs)
        parts = [Reshape((1,))(constant(d, i64)) for d in data.reshape(-1).tolist()]
        joined = Concat(0)(*parts)
        return joined if data.ndim == 1 else Reshape(data.shape)(joined)

    return graph.rebuild(rebuilt)
