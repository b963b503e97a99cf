"""The state of loops, which may be updated where it is: a cache is not copied every turn."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from monograph.ir import Graph
from monograph.ir.verify import same_memory

_BODIES: WeakKeyDictionary[Graph, dict[int, Graph]] = WeakKeyDictionary()
"""By the body of a loop, and how many states it has: the same with them donated, kept as long."""


def state_donated(body: Graph, carried: int) -> Graph:
    """Return a loop's body that may write new state over the old."""
    bodies = _BODIES.setdefault(body, {})
    known = bodies.get(carried)
    if known is None:
        names = zip(body.output_names[1:], body.input_names[2 : 2 + carried], strict=False)
        types = zip(body.output_types[1:], body.input_types[2 : 2 + carried], strict=False)
        alike = [p for p, (a, b) in zip(names, types, strict=True) if same_memory(a, b)]
        known = bodies[carried] = replace(body, donations=tuple(alike))
    return known
