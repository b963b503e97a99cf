"""Square tiles of operands that are contiguous along another counter than the result.

Rows of a tile are loaded along that counter and transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monograph.codegen.llvm.emit.builder import Builder, transposed
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.few_columns import Loads
from monograph.ir.sizes import hint_of, is_one
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Element, Resolved
from monograph.program.index import Counter, flatten

LEAST_TILE = 4
"""The least size of a tile that is transposed in registers."""


def turned_loads(
    elements: LlvmElements, order: Sequence[Resolved], loops: Sequence[Counter], lanes: int
) -> dict[Counter, list[Element]]:
    """Return the loads that are contiguous along another counter than the last, by that counter."""
    found: dict[Counter, list[Element]] = {}
    if len(loops) < 2 or lanes < LEAST_TILE or hint_of(loops[-1].extent) < lanes:
        return found
    for item in order:
        value = item.element.value
        if item.operands or value not in elements.storage:
            continue
        position = flatten(item.element.at, elements.storage[value].strides)
        step = position.factor(loops[-1])
        if not position.is_linear or step == 0 or is_one(step):
            continue
        for c in loops[:-1]:
            if is_one(position.factor(c)) and hint_of(c.extent) >= lanes:
                found.setdefault(c, []).append(item.element)
    return found


def moved(b: Builder, point: Point, counter: Counter, k: int, lane: Counter | None) -> Point:
    """Return the point `k` further along a counter, with the lanes along `lane`."""
    values = {**point.values, counter: b.add(point.values[counter], k)}
    return Point(values, lane, point.lanes)


def turned_tile(
    elements: LlvmElements, across: Counter, loads: Sequence[Element], point: Point
) -> list[dict[Element, Scalar]]:
    """Load a square tile along another counter than the lanes', and return its rows transposed."""
    assert point.lane is not None
    b, size = elements.b, range(point.lanes)
    rows: list[dict[Element, Scalar]] = [{} for _ in size]
    for e in loads:
        along = [
            elements.load(e.value, e.at, moved(b, point, point.lane, k, across)).reg for k in size
        ]
        for row, made in zip(rows, transposed(b, along), strict=True):
            row[e] = Scalar(made, e.value.dtype)
    return rows


def run_tile(
    elements: LlvmElements,
    across: Counter,
    loads: Sequence[Element],
    body: Callable[[Point, Loads], None],
    point: Point,
) -> None:
    """Run a body on the rows of a square tile."""
    for k, loaded in enumerate(turned_tile(elements, across, loads, point)):
        body(moved(elements.b, point, across, k, point.lane), loaded)
