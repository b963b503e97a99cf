"""The tensors that a side has in memory between its steps, under the names of the ONNX file.

A fused step computes several nodes, and keeps only its results. A result is one of the tensors of
those nodes, maybe in another layout: `match` finds it by its numbers, which the reference gives for
both graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.ir import Array, Value, evaluate
from monograph.program.program import Program, Step
from monograph.report.diff.tensors import OnnxTensors
from monograph.runtime.cpu.instrumented import SteppedRun, compile_stepped
from monograph.runtime.numerics.stepwise import StepCheck, StepChecker
from monograph.session import Session

SAME = {"float16": 2e-2, "bfloat16": 1e-1}
"""Numbers are the same tensor's where they differ by less than this share of their root mean
square, by element type."""
SAME_OTHERS = 1e-3
ALIKE = 0.5
"""The largest such share at which a result may be a tensor that a lossy rewrite has changed."""
MAX_RANK = 5
"""The largest rank of which all layouts are tried."""


@dataclass(frozen=True)
class TensorPoint:
    """One tensor on one side."""

    tensor: str
    data: Array
    check: StepCheck | None = None
    """The step that made it, held to the reference; None where no step is known."""
    exact: bool = True
    """False if the reference has other numbers for the step's result than for the tensor."""


@dataclass(frozen=True)
class Match:
    """The tensor that a result of a step is."""

    tensor: str
    arrangement: TensorLayout
    exact: bool


@dataclass(frozen=True)
class TensorLayout:
    """The way an array becomes a tensor of the file: axes in another order, then a shape."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def apply(self, array: Array) -> Array:
        return array.transpose(self.axes).reshape(self.shape)


def arrangements(given: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[TensorLayout]:
    """Yield the ways in which an array of one shape can be a tensor of another shape."""
    rank = len(given)
    straight = tuple(range(rank))
    if np.prod(given, dtype=np.int64) != np.prod(wanted, dtype=np.int64):
        return
    yield TensorLayout(straight, wanted)
    if rank == len(wanted) and 2 <= rank <= MAX_RANK:
        for axes in itertools.permutations(straight):
            if axes != straight and tuple(given[a] for a in axes) == wanted:
                yield TensorLayout(axes, wanted)
    elif 2 < rank <= MAX_RANK:
        last_first = (0, rank - 1, *range(1, rank - 1))
        yield TensorLayout(last_first, wanted)


def distance(given: Array, expected: Array) -> float:
    """Return the root mean square of the difference, relative to that of the expected numbers."""
    a, b = (np.asarray(x, np.float64) for x in (given, expected))
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        a, b = a[finite], b[finite]
    if b.size == 0:
        return 0.0
    scale = float(np.sqrt(np.mean(b * b)))
    off = float(np.sqrt(np.mean((a - b) ** 2)))
    return off / scale if scale else (0.0 if off == 0 else float("inf"))


def match(
    right: Array, step: Step, tensors: OnnxTensors, *, integers: bool = False
) -> Match | None:
    """Return the tensor that a result of a step is; None if it is none."""
    same = SAME.get(right.dtype.name, SAME_OTHERS)
    best: tuple[float, str, TensorLayout] | None = None
    known = tensors.codes if integers else tensors.values
    names = [n for node in tensors.nodes_of(step.nodes) for n in node.outputs if n in known]
    for name in reversed(names):
        expected = tensors.reference[known[name]]
        if not isinstance(expected, np.ndarray):
            continue
        for way in arrangements(right.shape, expected.shape):
            found = distance(way.apply(right), expected)
            if best is None or found < best[0]:
                best = found, name, way
        if best is not None and best[0] < same:
            break
    if best is None or best[0] >= ALIKE:
        return None
    return Match(best[1], best[2], best[0] < same)


class PointRecorder:
    """Collects the tensors of a stepped run, and holds every step to the reference."""

    def __init__(self, tensors: OnnxTensors) -> None:
        self.points: dict[str, TensorPoint] = {}
        """The tensors of which the numbers are known to be the steps' results."""
        self.alike: dict[str, TensorPoint] = {}
        """Results that are like a tensor: a lossy rewrite may have changed them."""
        self.checker = StepChecker()
        self._tensors = tensors
        self._program: Program | None = None
        self._right: dict[Value, Any] = {}

    def observe(self, seen: SteppedRun) -> None:
        """Record the results of a step that has just run."""
        self.checker.observe(seen)
        if self._program is not seen.program:
            self._program = seen.program
            self._right = reference_of(seen.program, seen.feeds)
        check = self.checker.checks[-1]
        for value in seen.step.region.outputs:
            self._add(seen.step, check, self._right.get(value), seen.outputs[value])

    def _add(self, step: Step, check: StepCheck, right: Any, data: Any) -> None:
        if not isinstance(right, np.ndarray) or not isinstance(data, np.ndarray):
            return
        integers = right.dtype.kind in "iu"
        found = match(right, step, self._tensors, integers=integers)
        if found is not None:
            array = found.arrangement.apply(data)
            if integers:
                array = self._tensors.decoded(found.tensor, array)
            kept = self.points if found.exact else self.alike
            kept[found.tensor] = TensorPoint(found.tensor, np.array(array), check, found.exact)


def reference_of(program: Program, feeds: Mapping[str, Any]) -> dict[Value, Any]:
    """Return what the reference computes for the results of a program's steps."""
    wanted = {v for step in program.steps for v in step.region.outputs}
    found: dict[Value, Any] = {}

    def observe(value: Value, data: Any) -> None:
        if value in wanted:
            found[value] = data

    evaluate(program.graph, feeds, observe)
    return found


def record_points(session: Session, tensors: OnnxTensors) -> tuple[PointRecorder, list[Any]]:
    """Run a session's code step by step; return what was recorded, and the outputs."""
    recorder = PointRecorder(tensors)
    graph = session.optimised_graph(tensors.feeds)
    run = compile_stepped(graph, session.compiler(), recorder.observe)
    return recorder, run(tensors.feeds)
