"""The memory that a kernel may read before earlier kernels have ended."""

from __future__ import annotations

from collections.abc import Sequence

from monograph.ir import Constant, Input, Value
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Sub
from monograph.program.fusion.op_classes import is_view
from monograph.program.memory.buffer_assignment import CONSTANT, INPUT, Places

SIMPLE = 8
"""The most ops between an input and a value computed from it: every program repeats them."""


def is_run_invariant(cache: Value, places: Places) -> bool:
    """Return True if a cache, or the source of a view, exists before any kernel of a run."""
    while is_view(cache) and cache not in places.storage:
        cache = cache.inputs[0]
    storage = places.storage.get(cache)
    return storage is not None and storage.buffer.kind in (CONSTANT, INPUT)


def leaves(values: Sequence[Value], places: Places) -> tuple[Value, ...] | None:
    """Return the inputs and constants that values are simply computed from; None otherwise.

    A run writes nothing into such an input: kernels may read it at any time.
    """
    found: dict[Value, None] = {}
    left, seen = list(values), set[Value]()
    while left:
        value = left.pop()
        if value in seen:
            continue
        if isinstance(value.op, Input):
            storage = places.storage.get(value)
            if storage is None or storage.buffer.kind != INPUT:
                return None
            if storage.buffer.id in places.over.values():
                return None
            found[value] = None
        elif isinstance(value.op, Constant) and value.tensor.size == 1:
            found[value] = None
        elif isinstance(value.op, (Add, Sub, Cast)) and len(seen) < SIMPLE:
            seen.add(value)
            left += value.inputs
        else:
            return None
    return tuple(found)
