"""Sensible ranges of integer inputs, derived from their use in a graph.

An index into n rows lies in 0..n-1, the length of an axis in 1..size, a mask is 0 or 1. Values that
are an input times a factor plus an offset are followed through ops (`Op.affine`) and sub-graphs, up
to the ops that demand a range (`Op.demands`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from monograph.ir import Constant, Graph, Input, TensorType, Value, subgraphs
from monograph.ir import known as known_data
from monograph.ir.dtype import BOOL
from monograph.ir.traits import (
    INDEX,
    LENGTH,
    MASK,
    NOTHING,
    NUMBER,
    SIZE,
    Affine,
    Demand,
    Known,
)
from monograph.ops.control import If, Loop, Scan

__all__ = ["INDEX", "LENGTH", "MASK", "NUMBER", "SIZE", "Range", "input_ranges"]

MOST_ALTERNATIVES = 8
"""The largest number of alternatives that are followed for one value."""
MOST_ELEMENTS = 1 << 16
"""The size up to which the data of a constant are read."""


@dataclass(frozen=True)
class Range:
    """Integers from `low` to `high`, and their purpose."""

    low: int
    high: int
    kind: str
    why: str = ""

    def __str__(self) -> str:
        if self.kind == MASK:
            return "mostly 1, as a mask"
        return f"{self.low}..{self.high}" + (f", {self.why}" if self.why else "")


@dataclass
class _Asked:
    """The demands of ops on an input."""

    must: list[Range] = field(default_factory=list)
    """Ranges outside of which a run fails."""
    should: list[Range] = field(default_factory=list)
    """Ranges outside of which an op does nothing of interest."""
    mask: bool = False
    number: bool = False


def input_ranges(graph: Graph) -> dict[str, Range]:
    """Return the range of every integer input of a graph whose use decides one."""
    walk = _Walk()
    known: dict[Value, Known] = {}
    for value in graph.inputs:
        if isinstance(value.op, Input) and _is_whole(value):
            walk.asked[value.op.label] = _Asked()
            known[value] = (Affine(value.op.label, 1.0, 0.0, 0.0),)
    if known:
        walk.go(graph, known)
    types = dict(zip(graph.input_names, graph.input_types, strict=True))
    found = {name: _chosen(asked, types[name]) for name, asked in walk.asked.items()}
    return {name: r for name, r in found.items() if r is not None}


def _is_whole(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and (type_.dtype.is_integer or type_.dtype.kind == BOOL)


def _chosen(asked: _Asked, type_: object) -> Range | None:
    """Return the range that serves the demands, as far as one does."""
    assert isinstance(type_, TensorType)
    if type_.dtype.kind == BOOL:
        return Range(0, 1, MASK)
    bits, signed = type_.dtype.bits, type_.dtype.is_signed
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    found: Range | None = None
    for one in (*asked.must, *asked.should):
        a, b = max(one.low, low), min(one.high, high)
        if a <= b:
            low, high = a, b
            found = Range(low, high, one.kind if found is None else found.kind, one.why)
        elif found is None:
            return None  # nothing that could be drawn serves it
    if found is not None:
        return replace(found, low=low, high=high)
    if asked.mask:
        return Range(0, 1, MASK)
    if asked.number:
        return Range(low, high, NUMBER) if bits <= 8 else Range(0, 9, NUMBER)
    return None


class _Walk:
    """Follows inputs through a graph."""

    def __init__(self) -> None:
        self.asked: dict[str, _Asked] = {}

    def go(self, graph: Graph, known: dict[Value, Known]) -> None:
        for value in graph.values:
            if value not in known:
                self._ask(value, known)
                made = _made(value, [known.get(v, NOTHING) for v in value.inputs])
                known[value] = made[:MOST_ALTERNATIVES]

    def _ask(self, value: Value, known: dict[Value, Known]) -> None:
        """Note what an op demands of its operands, and follow them into sub-graphs."""
        given = [known.get(v, NOTHING) for v in value.inputs]
        if not any(a.source for k in given for a in k):
            return
        for demand in value.op.demands(value, given):
            self._note(given[demand.operand], demand)
        if isinstance(value.op, (If, Loop, Scan)):
            self._enter(value.op, given)

    def _note(self, known: Known, demand: Demand) -> None:
        for a in known:
            if a.source is None or (demand.negated_only and a.factor >= 0):
                continue
            asked = self.asked[a.source]
            if demand.kind == MASK:
                asked.mask = True
            elif demand.kind == NUMBER:
                asked.number = True
            elif a.factor and (found := _solved(a, demand)) is not None:
                (asked.must if demand.must else asked.should).append(found)

    def _enter(self, op: If | Loop | Scan, operands: list[Known]) -> None:
        """Follow operands as inputs of sub-graphs."""
        if isinstance(op, If):
            count = 1 + len(op.then.inputs)
            passed = [operands[1:count], operands[count:]]
        else:
            # State is another number in every iteration.
            state = 2 + op.carried if isinstance(op, Loop) else _states(op)
            passed = [[*[NOTHING] * state, *operands[state:]]]
        for body, given in zip(subgraphs(op), passed, strict=True):
            self.go(body, dict(zip(body.inputs, given, strict=True)))


def _solved(a: Affine, demand: Demand) -> Range | None:
    """Return the range of an input that keeps a demand; None where no integer does."""
    first, last = a.solved(demand.low, demand.high)
    if not math.isfinite(first) or not math.isfinite(last) or math.ceil(first) > last:
        return None
    return Range(math.ceil(first), math.floor(last), demand.kind, demand.why)


def _made(value: Value, given: list[Known]) -> Known:
    if isinstance(value.op, Constant):
        return _of_constant(value)
    return value.op.affine(value, given) or NOTHING


def _of_constant(value: Value) -> Known:
    """Return the range of a constant; nothing of a large one, or where one is not finite."""
    if not isinstance(value.type, TensorType) or value.tensor.size > MOST_ELEMENTS:
        return NOTHING  # weights
    data = known_data(value)
    if data is None or data.size == 0 or data.dtype.kind not in "fiub":
        return NOTHING
    low, high = float(data.min()), float(data.max())
    return (Affine(None, 0.0, low, high),) if math.isfinite(low + high) else NOTHING


def _states(op: Scan) -> int:
    """Return how many values of state a scan carries."""
    return len(op.body.outputs) - len(op.result_axes)
