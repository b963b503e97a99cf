"""Rows of few elements, such as the channels of an image: many rows at once, in vectors.

A row is too short for a vector. Where operands are contiguous along the rows' counter, a vector
holds one element of many rows; the vectors are interleaved and stored as these rows. Operands that
are contiguous along an outer counter are read in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.ir import Value
from monograph.ir.sizes import hint_of, is_one, is_open, proven
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Element, Indices, Resolved
from monograph.program.index import Counter, flatten

SHORTEST, MOST_COLUMNS = 2, 4
"""The fewest and the most elements of a row."""
Loads: TypeAlias = Mapping[Element, Scalar]
STORED_BITS = (32, 64)
"""The sizes of elements that lie in memory as in registers."""


@dataclass(frozen=True)
class FewColumns:
    """The loop over rows, and the loop over their few elements."""

    rows: Counter
    columns: Counter

    def points(self, point: Point) -> list[Point]:
        """Return the points of the columns at a point of the rows."""
        return [
            Point({**point.values, self.columns: k}, point.lane, point.lanes)
            for k in range(self.columns.extent)
        ]


def few_columns(
    elements: LlvmElements,
    order: Sequence[Resolved],
    outputs: Sequence[Value],
    at: Indices,
    loops: Sequence[Counter],
    lanes: int,
) -> FewColumns | None:
    """Return the loops of short rows that are stored one after the other; None for others."""
    if len(loops) < 2 or len(outputs) != 1 or lanes < 2:
        return None
    rows, columns = loops[-2:]
    size, value = columns.extent, outputs[0]
    short = (
        not is_open(size) and SHORTEST <= size <= MOST_COLUMNS and hint_of(rows.extent) >= 2 * lanes
    )
    if not short or value.dtype.bits not in STORED_BITS:
        return None
    place = elements.storage[value]
    written = flatten(at, place.strides, place.offset)
    adjacent = (
        written.is_linear
        and is_one(written.factor(columns))
        and proven(written.factor(rows), "==", size)
    )
    if not adjacent or elements.unproven(value, written):
        return None
    for item in order:
        source = item.element.value
        if item.operands or source not in elements.storage:
            continue
        read = flatten(item.element.at, elements.storage[source].strides)
        outer = (c for c in loops[:-2] if hint_of(c.extent) >= lanes)
        step = read.factor(rows)
        direct = step == 0 or is_one(step) or any(is_one(read.factor(c)) for c in outer)
        if not read.is_linear or not direct:
            return None
    return FewColumns(rows, columns)


def store_rows(
    elements: LlvmElements,
    value: Value,
    at: Indices,
    found: FewColumns,
    element: Callable[[Point, Loads | None], Scalar],
    point: Point,
    loaded: Sequence[Loads] | None = None,
) -> None:
    """Compute and store the rows at a point: one, or as many as the point has lanes.

    `loaded` holds what tiles have loaded for each column.
    """
    every = found.points(point)
    given: Sequence[Loads | None] = loaded or [None] * len(every)
    made = [element(p, x) for p, x in zip(every, given, strict=True)]
    if point.lane is None:
        for p, x in zip(every, made, strict=True):
            elements.store(value, at, x, p)
        return
    wide = interleaved(elements.b, [elements.scalars.splat(x, point.lanes).reg for x in made])
    elements.store(value, at, Scalar(wide, value.dtype), Point(every[0].values))


def interleaved(b: Builder, columns: Sequence[Reg]) -> Reg:
    """Return the rows of two to four columns one after the other."""
    lanes, count = columns[0].lanes, len(columns)
    first = b.shuffle(columns[0], columns[1], range(2 * lanes))
    if count == 2:
        return b.shuffle(first, first, [k * lanes + i for i in range(lanes) for k in range(2)])
    last = b.shuffle(columns[2], columns[-1], range(2 * lanes))
    return b.shuffle(first, last, [k * lanes + i for i in range(lanes) for k in range(count)])


def element_of(
    elements: LlvmElements, order: Sequence[Resolved], value: Value, at: Indices
) -> Callable[[Point, Loads | None], Scalar]:
    """Return the computation of an element of a value at a point, from what is loaded already."""
    return lambda point, loaded: elements.emit(order, point, loaded)[Element(value, at)]
