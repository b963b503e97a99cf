"""The ranges of numbers that integer inputs may sensibly have, derived from their use in a graph.

An index into n rows lies in 0..n-1, the length of an axis in 1..size, a mask is 0 or 1. Values that
are an input times a factor plus an offset are followed through casts, views, arithmetic with
constants, selections and sub-graphs, up to the ops that ask something of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from monograph.ir import Constant, Graph, Input, Op, TensorType, Value, subgraphs
from monograph.ir.dtype import BOOL
from monograph.ops import elementwise as ew
from monograph.ops.attention import LENGTHS, Attention, CacheUpdate
from monograph.ops.base import normalise_axis
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop, Scan
from monograph.ops.deferred import Deferred
from monograph.ops.index import Gather, GatherElements, GatherNd, ScatterElements, ScatterNd
from monograph.ops.pad_tile import Iota, Pad, Tile
from monograph.ops.reduce import CumSum, ReduceMax, ReduceMin, ReduceSum
from monograph.ops.shape import (
    Broadcast,
    Concat,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from monograph.runtime.inputs.affine import (
    BINARY,
    NOTHING,
    Affine,
    Known,
    binary,
    constant_of,
    sign_of,
    summed,
)

INDEX, LENGTH, MASK, NUMBER, SIZE = "index", "length", "mask", "number", "size"
HIDING = 1e3
"""A number from which on what it is multiplied by is a mask: scores are moved out of sight."""
MOST_ALTERNATIVES = 8
"""Of one value, by what it may be made of; more are not followed."""
FEW = 4
"""The largest size or count of turns that is drawn where nothing bounds it."""
_PASSED = (Broadcast, Reshape, Slice, Squeeze, Tile, Transpose, Unsqueeze)
_PASSED_NAMES = frozenset(op.name for op in (*_PASSED, Pad))


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` to `high`, and what they are for."""

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
    """What ops ask of an input."""

    must: list[Range] = field(default_factory=list)
    """Ranges outside of which a run fails."""
    should: list[Range] = field(default_factory=list)
    """Ranges outside of which an op does nothing of interest."""
    mask: bool = False
    number: bool = False


def input_ranges(graph: Graph) -> dict[str, Range]:
    """The range of every integer input of a graph that its use says something of."""
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
    """The range that serves all that is asked, as far as that can be."""
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
                made = self._made(value, [known.get(v, NOTHING) for v in value.inputs])
                known[value] = made[:MOST_ALTERNATIVES]

    # What is asked of operands

    def _ask(self, value: Value, known: dict[Value, Known]) -> None:
        """Notes what an op asks of its operands."""
        op = value.op
        given = [known.get(v, NOTHING) for v in value.inputs]
        if not any(a.source for k in given for a in k):
            return
        if isinstance(op, (Gather, GatherElements, ScatterElements)):
            self._index(given[1], value.inputs[0], op.axis)
        elif isinstance(op, (GatherNd, ScatterNd)):
            self._point(given[1], value.inputs[0], getattr(op, "batch_dims", 0))
        elif isinstance(op, (ew.Less, ew.LessEqual, ew.Equal)):
            self._compare(op, given[0], given[1])
        elif isinstance(op, (ew.Not, ew.And, ew.Or, ew.Xor)) or _to_bool(value):
            self._mark_masks(given)
        elif isinstance(op, ew.Where):
            self._mark_masks(given[:1])
        elif isinstance(op, Attention) and LENGTHS in op.extra:
            size = value.inputs[1].tensor.dims[2]
            self._within(given[3 + op.extra.index(LENGTHS)], 1, size, "the length of {} keys")
        elif isinstance(op, CacheUpdate):
            size, rows = (v.tensor.dims[op.axis] for v in value.inputs[:2])
            if isinstance(size, int) and isinstance(rows, int):
                self._note(given[2], 0, size - rows, INDEX, f"the first of {rows} rows of {size}")
        elif isinstance(op, Deferred):
            self._late(op, value, given)
        elif isinstance(op, (If, Loop, Scan)):
            self._control(value, known)
        elif isinstance(op, ew.Mul):
            self._hide(given)
        elif not _follows(op):
            self._mark_numbers(given)

    def _note(
        self, known: Known, low: float, high: float, kind: str, why: str, must: bool = True
    ) -> None:
        for a in known:
            if a.source is None or not a.factor:
                continue
            first, last = a.solved(low, high)
            if math.isfinite(first) and math.isfinite(last) and math.ceil(first) <= last:
                found = Range(math.ceil(first), math.floor(last), kind, why)
                asked = self.asked[a.source]
                (asked.must if must else asked.should).append(found)

    def _within(self, known: Known, low: int, size: object, why: str) -> None:
        if isinstance(size, int) and size >= low:
            self._note(known, low, size, LENGTH, why.format(size))

    def _index(self, known: Known, data: Value, axis: int) -> None:
        if not isinstance(data.type, TensorType) or data.type.shape is None:
            return
        size = data.tensor.dims[normalise_axis(axis, data.tensor.rank)]
        if isinstance(size, int) and size > 0:
            self._note(known, 0, size - 1, INDEX, f"an index of {size} rows")

    def _point(self, known: Known, data: Value, batch: int) -> None:
        """Indices into several axes: the smallest bounds them all."""
        if not isinstance(data.type, TensorType) or data.type.shape is None:
            return
        sizes = [d for d in data.type.shape[batch:] if isinstance(d, int) and d > 0]
        if sizes:
            self._note(known, 0, min(sizes) - 1, INDEX, f"an index of {min(sizes)} rows")

    def _compare(self, op: Op, left: Known, right: Known) -> None:
        """A number that is compared with all places of an axis is a length, or a place."""
        for mine, others, on_right in ((left, right, False), (right, left, True)):
            plain = [a for a in others if a.source is None]
            if not plain or len(plain) < len(others):
                continue
            low, high = min(a.low for a in plain), max(a.high for a in plain)
            if low == high:
                if isinstance(op, ew.Equal) and low in (0, 1):
                    self._mark_masks([mine])
                continue
            more = 1 if on_right and isinstance(op, ew.Less) else 0
            why = f"compared with {low:g}..{high:g}"
            self._note(mine, low + more, high + more, LENGTH, why, must=False)

    def _late(self, op: Deferred, value: Value, given: Sequence[Known]) -> None:
        """Attributes that are data: bounds of slices, sizes, counts."""
        late = dict(zip(op.late, given[len(given) - len(op.late) :], strict=True))
        first = value.inputs[0].type
        shape = first.shape if isinstance(first, TensorType) else None
        sizes = [d for d in shape or () if isinstance(d, int)]
        for name, known in late.items():
            if op.target == Slice.name and sizes:
                low, high = (0, max(sizes) - 1) if name == "starts" else (1, max(sizes))
                self._note(known, low, high, LENGTH, f"a bound within {max(sizes)}", must=False)
            elif op.target == "top_k" and sizes:
                self._note(known, 1, min(sizes), LENGTH, f"how many of {min(sizes)}")
            elif op.target == Reshape.name or (op.target == Broadcast.name and shape):
                self._note(known, 1, 1, SIZE, "a size")
            else:
                self._note(known, 1, FEW, SIZE, "a size or a count")
        self._mark_numbers(given[: len(given) - len(op.late)])

    def _control(self, value: Value, known: dict[Value, Known]) -> None:
        """Operands go on as formals of bodies."""
        op = value.op
        assert isinstance(op, (If, Loop, Scan))
        operands = [known.get(v, NOTHING) for v in value.inputs]
        if isinstance(op, If):
            count = 1 + len(op.then.inputs)
            passed = [operands[1:count], operands[count:]]
            self._mark_masks(operands[:1])
        else:
            # State is another number in every turn.
            state = 2 + op.carried if isinstance(op, Loop) else _states(op)
            passed = [[*[NOTHING] * state, *operands[state:]]]
            if isinstance(op, Loop):
                self._note(operands[0], 1, FEW, SIZE, "a count of turns")
        for body, given in zip(subgraphs(op), passed, strict=True):
            self.go(body, dict(zip(body.inputs, given, strict=True)))

    def _hide(self, given: Sequence[Known]) -> None:
        for mine, others in ((given[0], given[1]), (given[1], given[0])):
            if any(a.source is None and max(abs(a.low), abs(a.high)) >= HIDING for a in others):
                for a in mine:
                    # Whole numbers are as well multiplied to become addresses.
                    if a.source is not None and a.factor < 0:
                        self.asked[a.source].mask = True

    def _mark_masks(self, given: Iterable[Known]) -> None:
        for source in _sources(given):
            self.asked[source].mask = True

    def _mark_numbers(self, given: Iterable[Known]) -> None:
        for source in _sources(given):
            self.asked[source].number = True

    # What becomes of operands

    def _made(self, value: Value, given: list[Known]) -> Known:
        """What an op makes of what is known of its operands."""
        op = value.op
        if isinstance(op, Constant):
            return constant_of(value)
        if isinstance(op, Iota):
            return (Affine(None, 0.0, 0.0, float(max(op.size - 1, 0))),)
        if isinstance(op, (Cast, *_PASSED, ReduceMax, ReduceMin)):
            return NOTHING if _to_bool(value) else given[0]
        if isinstance(op, Deferred):
            return given[0] if op.target in _PASSED_NAMES else NOTHING
        if isinstance(op, (Pad, Gather, GatherElements)):
            return given[0]
        if isinstance(op, (ReduceSum, CumSum)):
            return summed(value, given[0])
        if isinstance(op, Concat):
            return tuple(dict.fromkeys(a for k in given for a in k))
        if isinstance(op, (ScatterElements, ScatterNd)):
            return tuple(dict.fromkeys((*given[0], *given[2])))
        if isinstance(op, ew.Sign):
            return tuple(sign_of(a) for a in given[0] if a.source is None)
        if isinstance(op, (ew.Where, ew.Max, ew.Min)):
            return tuple(dict.fromkeys((*given[-2], *given[-1])))
        if isinstance(op, (ew.Clip, ew.Abs)):
            return given[0]
        if type(op) in BINARY:
            return binary(BINARY[type(op)], value, given[0], given[1])
        if isinstance(op, ew.Neg):
            return tuple(a.times(-1) for a in given[0])
        if op.name in ("floor", "ceil", "round"):
            return tuple(a.moved(-1, 1) for a in given[0])
        return NOTHING


def _sources(given: Iterable[Known]) -> set[str]:
    """The inputs that some values depend on."""
    return {a.source for known in given for a in known if a.source is not None}


def _states(op: Scan) -> int:
    """How many values of state a scan carries along."""
    return len(op.body.outputs) - len(op.result_axes)


def _to_bool(value: Value) -> bool:
    return isinstance(value.op, Cast) and value.dtype.kind == BOOL


def _follows(op: Op) -> bool:
    """Whether what an op makes is still an input times a factor plus an offset."""
    kinds = (Cast, *_PASSED, ReduceMax, ReduceMin, ReduceSum, CumSum, Concat, Pad, Gather)
    more = (
        GatherElements,
        ScatterElements,
        ScatterNd,
        ew.Where,
        ew.Max,
        ew.Min,
        ew.Clip,
        ew.Abs,
        ew.Neg,
        ew.Sign,
    )
    return isinstance(op, (*kinds, *more, *BINARY)) or op.name in ("floor", "ceil", "round")
