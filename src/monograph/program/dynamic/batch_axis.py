"""The batch axis of a model, followed from its inputs through every op to its outputs.

A graph with a batch axis computes each row of its outputs from the same row of its inputs alone, so
rows of different requests may share a run. The proof looks at the graph bound to two batch sizes,
both primes that no other dimension has: every op must keep rows to themselves (`Op.batch_axis`),
and the two graphs must differ in sizes that are multiples of the batch only. What cannot be proven
counts as mixing rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Array, Constant, Graph, Input, Item, TensorType, Value
from monograph.ops.base import Elementwise
from monograph.ops.reduce import Reduction
from monograph.ops.shape import Broadcast, Reshape
from monograph.program.dynamic.batch_proof import BatchProof

BATCHES = (61, 67)
"""The batch sizes of the proof."""
SIZES = (64, 32, 16, 8, 1, 128, 224, 512)
"""Sizes of other open dimensions, which are tried one after the other."""
Bind = Callable[[Mapping[str, tuple[int, ...]]], Graph]
"""Returns the graph bound to these shapes of inputs."""


@dataclass(frozen=True)
class RowAxis:
    """The axis of a value along which rows lie; each row of the batch has `width` of them."""

    axis: int
    width: int = 1


class _MixedRowsError(Exception):
    """A node that is not known to keep rows to themselves."""

    def __init__(self, value: Value | None, reason: str) -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason


def find_batch_axis(types: Mapping[str, TensorType], bind: Bind) -> BatchProof:
    """Return the proof for a model whose inputs have these types."""
    axes = _axes_of(types)
    if not axes:
        return _refused("no input has an open first dimension")
    reason = ""
    for size in SIZES:
        try:
            graphs = [bind(_shapes(types, axes, batch, size)) for batch in BATCHES]
        except MonographError as e:
            reason = reason or f"it cannot be bound to {BATCHES[0]} rows: {e.message}"
            continue
        return _proof(graphs, axes)
    return _refused(reason)


def _refused(reason: str, node: str = "") -> BatchProof:
    return BatchProof({}, {}, reason, node)


def _axes_of(types: Mapping[str, TensorType]) -> dict[str, int]:
    """Return the axis of each input that may be the batch: open first, or of the same symbol."""
    leading = [t.shape[0] for t in types.values() if t.shape and isinstance(t.shape[0], str)]
    found: dict[str, int] = {}
    for name, type_ in types.items():
        shape = type_.shape or ()
        places = [i for i, d in enumerate(shape) if leading and d == leading[0]]
        if len(places) == 1:
            found[name] = places[0]
        elif shape and isinstance(shape[0], str):
            found[name] = 0
    return found


def _shapes(
    types: Mapping[str, TensorType], axes: Mapping[str, int], batch: int, size: int
) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(
            batch if axes.get(name) == i else d if isinstance(d, int) else size
            for i, d in enumerate(type_.shape or ())
        )
        for name, type_ in types.items()
    }


def _proof(graphs: list[Graph], axes: Mapping[str, int]) -> BatchProof:
    first, second = graphs
    try:
        found = _follow(first, axes, BATCHES[0])
        _check_alike(first, second)
        outputs = {}
        for name, value in first.outputs:
            rows = found.get(value)
            if rows is None:
                raise _MixedRowsError(value, f"output {name!r} does not depend on the rows")
            if rows.width != 1:
                raise _MixedRowsError(value, f"output {name!r} has {rows.width} rows for each row")
            outputs[name] = rows.axis
    except _MixedRowsError as e:
        node = "" if e.value is None else first.place(e.value) or e.value.op.name
        return _refused(e.reason, node)
    return BatchProof(dict(axes), outputs)


def _follow(graph: Graph, axes: Mapping[str, int], batch: int) -> dict[Value, RowAxis]:
    """Return the rows of each value that depends on the batch."""
    found: dict[Value, RowAxis] = {}
    for value in graph.values:
        if isinstance(value.op, Input):
            if value.op.label in axes:
                found[value] = RowAxis(axes[value.op.label])
            continue
        operands = [(i, found[v]) for i, v in enumerate(value.inputs) if v in found]
        if not operands:
            if not value.op.pure:
                raise _MixedRowsError(value, f"{value.op.name} gives other numbers in each run")
            continue
        found[value] = _rows_of(value, operands, batch)
        _check_free(value, found, batch)
    return found


def _rows_of(value: Value, operands: list[tuple[int, RowAxis]], batch: int) -> RowAxis:
    """Return the rows of a result, which must be the same by each operand."""
    if not value.op.pure:
        raise _MixedRowsError(value, f"{value.op.name} gives other numbers in each run")
    made = {_moved(value, i, rows, batch) for i, rows in operands}
    if len(made) != 1:
        raise _MixedRowsError(value, f"{value.op.name} combines rows along different axes")
    (rows,) = made
    if isinstance(value.type, TensorType) and value.tensor.static[rows.axis] != batch * rows.width:
        raise _MixedRowsError(value, f"{value.op.name} changes the number of rows")
    return rows


def _moved(value: Value, index: int, rows: RowAxis, batch: int) -> RowAxis:
    """Return where the rows of an operand lie in the result."""
    op = value.op
    if isinstance(op, Item):
        return rows
    if isinstance(op, Reshape):
        return _reshaped(value, rows, batch)
    types = [v.tensor for v in value.inputs if isinstance(v.type, TensorType)]
    if len(types) != len(value.inputs):
        raise _MixedRowsError(value, f"{op.name} works on sequences")
    if isinstance(op, (Elementwise, Broadcast)):
        return RowAxis(value.tensor.rank - types[index].rank + rows.axis, rows.width)
    moved = op.batch_axis(index, rows.axis, *types)
    if moved is None:
        reduces = isinstance(op, Reduction) and rows.axis in op.axes
        reason = "reduces over the batch" if reduces else "is not known to keep rows apart"
        raise _MixedRowsError(value, f"{op.name} {reason}")
    return RowAxis(moved, rows.width)


def _reshaped(value: Value, rows: RowAxis, batch: int) -> RowAxis:
    """Return the axis of a reshape whose slices hold the same elements as the rows."""
    given, made = value.inputs[0].tensor.static, value.tensor.static
    outer = math.prod(given[: rows.axis])
    row = rows.width * math.prod(given[rows.axis + 1 :])
    for axis, size in enumerate(made):
        inner = math.prod(made[axis + 1 :])
        whole = math.prod(made[:axis]) == outer and size > 0 and size % batch == 0
        if whole and size // batch * inner == row:
            return RowAxis(axis, size // batch)
    raise _MixedRowsError(value, "reshape joins rows with other elements")


def _check_free(value: Value, found: Mapping[Value, RowAxis], batch: int) -> None:
    """Refuse operands that have a row for each row of the batch, and do not come from it."""
    for operand in value.inputs:
        if operand in found or not isinstance(operand.type, TensorType):
            continue
        for axis, size in enumerate(operand.tensor.static):
            if size and size % batch == 0 and not _is_uniform(operand, axis, batch):
                raise _MixedRowsError(value, f"{value.op.name} reads the position in the batch")


def _is_uniform(value: Value, axis: int, batch: int) -> bool:
    """Return True if all elements along an axis are equal."""
    if isinstance(value.op, Constant):
        data = value.op.value.array
        return bool((data == data.take([0], axis)).all())
    if isinstance(value.op, (Elementwise, Broadcast)):
        for operand in value.inputs:
            own = axis - (value.tensor.rank - operand.tensor.rank)
            wide = own >= 0 and operand.tensor.static[own] != 1
            if wide and not _is_uniform(operand, own, batch):
                return False
        return True
    types = [v.tensor for v in value.inputs if isinstance(v.type, TensorType)]
    if len(types) != len(value.inputs) or not types or not value.op.pure:
        return False
    # Equal rows give equal rows.
    sizes = [(i, b, d) for i, t in enumerate(types) for b, d in enumerate(t.static)]
    wide_axes = [(i, b) for i, b, d in sizes if d and d % batch == 0]
    return bool(wide_axes) and all(
        value.op.batch_axis(i, b, *types) == axis and _is_uniform(value.inputs[i], b, batch)
        for i, b in wide_axes
    )


def _check_alike(first: Graph, second: Graph) -> None:
    """Refuse graphs that differ in more than sizes that are multiples of the batch."""
    if len(first.values) != len(second.values):
        raise _MixedRowsError(None, "the graph depends on the number of rows")
    places = {v: i for i, v in enumerate(first.values)}, {v: i for i, v in enumerate(second.values)}
    for a, b in zip(first.values, second.values, strict=True):
        same = type(a.op) is type(b.op)
        same = same and [places[0][v] for v in a.inputs] == [places[1][v] for v in b.inputs]
        if isinstance(a.op, Constant) and isinstance(b.op, Constant):
            same = same and _alike_data(a.op.value.array, b.op.value.array)
        elif not isinstance(a.op, Input):
            same = same and _alike(a.op.attributes, b.op.attributes)
        if not same:
            raise _MixedRowsError(a, f"{a.op.name} depends on the number of rows")


def _alike(a: object, b: object) -> bool:
    """Return True if attributes are equal, or integers the same multiple of the batch."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if type(a) is int and type(b) is int and a != b:
        return a % BATCHES[0] == 0 and b * BATCHES[0] == a * BATCHES[1]
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _alike_data(a: Array, b: Array) -> bool:
    """Return True if constants are equal, or one row repeated for each row of the batch."""
    if a.dtype != b.dtype or a.ndim != b.ndim:
        return False
    if a.shape == b.shape:
        return (a.dtype.kind == "O" and list(a.flat) == list(b.flat)) or a.tobytes() == b.tobytes()
    for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
        if m == n:
            continue
        if not _alike(m, n) or a.dtype.kind == "O":
            return False
        rows = [x.take([0], axis) for x in (a, b)]
        if any((x != row).any() for x, row in zip((a, b), rows, strict=True)):
            return False
        a, b = rows
    return np.array_equal(a, b)
