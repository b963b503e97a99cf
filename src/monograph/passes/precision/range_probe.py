"""Estimates of magnitudes: one run of a model on inputs drawn from a seed.

The weights decide how activations grow, so a run on any inputs of the usual size shows where
numbers grow beyond a type or fall below it. Floats are drawn normal with variance 1, bytes over
their whole range (they are pixels or codes), other integers as 0 or 1 (ids, masks, flags). The same
graph gives the same estimate in every process.

Decisions on an estimate leave room (see `precision_rules`), and a proved bound (see `bounds`) comes
first. The run is shortened where it would be long: of a large product or convolution only some rows
are computed, and stand for the others; a large attention gives its values; a loop ends after a few
iterations. Values that cannot be computed so have no estimate, nor have their readers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, MonographError
from monograph.ir import Array, Constant, DType, Graph, TensorType, Type, Value, subgraphs
from monograph.ir.dtype import BOOL, f32
from monograph.ir.evaluate import apply, check_fits
from monograph.ir.sizes import SizeScope, hint_of, is_open
from monograph.ir.types import holds_open
from monograph.ops.attention import Attention
from monograph.ops.base import Binary, Unary
from monograph.ops.control import If, Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.linear import Dot
from monograph.ops.subgraph import truth
from monograph.ops.window import CHANNELS_FIRST

SEED = 0
SIZE = 1
"""The size of a dimension that is not known yet."""
WORK = 1 << 22
"""About how many products of one layer are computed."""
ELEMENTS = 1 << 27
"""No result with more elements is computed."""
LEAST = 4
"""Of how many places along an axis a convolution computes at least: one of them is an edge."""
TURNS = 16
"""The number of iterations of a loop that are run."""
BYTE = 8


class Rehearsal:
    """One run of a graph, and of the sub-graphs that its ops carry."""

    def __init__(self, graph: Graph) -> None:
        self.largest: dict[Value, float] = {}
        """The largest finite number in each f32 value that could be computed; 0 where none is."""
        self.unknown: dict[Value, str] = {}
        """Values that could not be computed although what they read could, and why."""
        self._fed: dict[tuple[Value, ...], tuple[Any, ...]] = {}
        rng = np.random.default_rng(SEED)
        self._scope = _scope_of(graph)
        with self._estimating():
            self.drawn = tuple(_draw(rng, t) for t in graph.input_types)
            self.play(graph, self.drawn)

    def _estimating(self) -> AbstractContextManager[None]:
        """Take open sizes as their hints: an estimate holds for other sizes too."""
        return nullcontext() if self._scope is None else self._scope.estimating()

    def play(self, graph: Graph, given: Sequence[Any]) -> list[Any]:
        """Return the outputs of a graph; None stands for what is not known, here and in `given`."""
        self._fed.setdefault(graph.inputs, tuple(given))
        results: dict[Value, Any] = dict(zip(graph.inputs, given, strict=True))
        left = dict(graph.uses)
        for value in graph.values:
            if value not in results:
                results[value] = self._compute(value, [results[v] for v in value.inputs])
            self._note(value, results[value])
            for v in value.inputs:
                left[v] -= 1
                if left[v] == 0:
                    del results[v]
        return [results[v] for _, v in graph.outputs]

    def replay(self, graph: Graph) -> None:
        """Runs a sub-graph again whose ops have changed, on what it was given first."""
        given = self._fed.get(graph.inputs)
        if given is not None:
            with self._estimating():
                self.play(graph, given)

    def _note(self, value: Value, data: Any) -> None:
        type_ = value.type
        if data is None or not isinstance(type_, TensorType) or type_.dtype != f32:
            return
        if isinstance(value.op, Constant):
            return
        sizes = np.abs(data)
        largest = float(sizes.max(initial=0.0))
        if not math.isfinite(largest):
            largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
        # A body runs more than once, and branches may share the names of their inputs.
        self.largest[value] = max(largest, self.largest.get(value, 0.0))

    def _compute(self, value: Value, operands: list[Any]) -> Any:
        if any(x is None for x in operands) and not isinstance(value.op, If):
            return None
        try:
            if subgraphs(value.op):
                return self._control(value, operands)
            if not value.op.pure:
                raise ExecutionError("its results are random, or fail")
            check_fits(value.type)
            _check_size(value.type)
            with np.errstate(all="ignore"):
                return _plain(_computed(value, operands))
        except (MonographError, MemoryError, ValueError, LookupError, TypeError) as e:
            self.unknown[value] = e.message if isinstance(e, MonographError) else type(e).__name__
        except ArithmeticError as e:
            self.unknown[value] = type(e).__name__
        return None

    def _control(self, value: Value, operands: list[Any]) -> Any:
        op = value.op
        if isinstance(op, If):
            condition, *captures = operands
            count = len(op.then.inputs)
            # Both branches are converted, so both are run.
            then = self.play(op.then, captures[:count])
            orelse = self.play(op.orelse, captures[count:])
            if condition is None:
                raise ExecutionError("the branch that is taken is not known")
            return tuple(then if truth(condition) else orelse)
        if not isinstance(op, (Loop, Scan)):
            raise ExecutionError(f"nothing is known of the turns of {op.name}")
        turns = 0

        def turn(given: tuple[Any, ...]) -> Sequence[Any]:
            nonlocal turns
            turns += 1
            if turns > TURNS:
                raise ExecutionError(f"it turns more than {TURNS} times")
            results = self.play(op.body, given)
            if any(r is None for r in results):
                raise ExecutionError("a result of a turn is not known")
            return results

        return op.turned(turn, *operands)


def _scope_of(graph: Graph) -> SizeScope | None:
    """Return the open sizes of a graph; None if all sizes are known."""
    types = (t for t in graph.input_types if isinstance(t, TensorType))
    return next((d.scope for t in types for d in t.shape or () if is_open(d)), None)


def _draw(rng: np.random.Generator, type_: Type) -> Any:
    """Return an input; None for what is no tensor of numbers."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = tuple(d if isinstance(d, int) else SIZE for d in type_.shape)
    kind: DType = type_.dtype
    if math.prod(shape) > ELEMENTS:
        return None
    if kind.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(kind.numpy)
    if kind.is_integer and kind.bits == BYTE:
        low = -(1 << (BYTE - 1)) if kind.is_signed else 0
        return np.asarray(rng.integers(low, low + (1 << BYTE), shape)).astype(kind.numpy)
    if kind.is_integer or kind.kind == BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(kind.numpy)
    return None


def _check_size(type_: Type) -> None:
    if isinstance(type_, TensorType) and type_.is_static and type_.size > ELEMENTS:
        raise ExecutionError("it is too large to be computed for an estimate")


def _plain(data: Any) -> Any:
    """Return an array of open sizes as one of their hints."""
    if isinstance(data, np.ndarray) and holds_open(data):
        return np.array([hint_of(n) for n in data.flat], np.int64).reshape(data.shape)
    return data


def _computed(value: Value, operands: list[Any]) -> Any:
    op = value.op
    if isinstance(value.type, TensorType) and value.dtype == f32:
        if isinstance(op, (Unary, Binary)):
            # In the wide type of the reference it would take twice as long.
            return np.asarray(op.compute(*operands)).astype(np.float32)
        if isinstance(op, Conv):
            return _convolution(op, *operands)
    if isinstance(op, Dot) and value.dtype.is_float:
        return _product(*operands).astype(value.dtype.numpy)
    if isinstance(op, Attention):
        q, k, v = operands[:3]
        if math.prod(q.shape[:3]) * k.shape[2] * q.shape[3] > WORK and v.size:
            # Each result is a mean of rows of v.
            return np.resize(v, (*q.shape[:3], v.shape[3]))
    return apply(value, operands)


def _rows(count: int, each: int) -> int:
    """Return how many of `count` rows are computed when each takes so many products."""
    return max(1, min(count, WORK // max(each, 1)))


def _product(x: Array, y: Array) -> Array:
    count = x.shape[-2]
    batch = math.prod(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    rows = _rows(count, batch * x.shape[-1] * y.shape[-1])
    made: Array = np.matmul(x[..., :rows, :].astype(np.float32), y.astype(np.float32))
    return made if rows >= count else made[..., np.arange(count) % rows, :]


def _convolution(op: Conv, x: Array, w: Array) -> Array:
    if op.auto or op.layout != CHANNELS_FIRST:
        return op.reference(x, w)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], op.dilations, strict=True)]
    padded = (sum(t) for t in zip(x.shape[2:], op.pads_begin, op.pads_end, strict=True))
    counts = [(n - k) // s + 1 for n, k, s in zip(padded, spans, op.strides, strict=True)]
    share = WORK / max(1, x.shape[0] * w.size * math.prod(counts))
    ends = list(op.pads_end)
    for i, count in enumerate(counts):
        kept = min(count, max(LEAST, int(count * share)))
        share *= count / max(1, kept)
        if kept < count:
            taken = (kept - 1) * op.strides[i] + spans[i] - op.pads_begin[i]
            x, ends[i] = x[(slice(None),) * (2 + i) + (slice(max(1, taken)),)], 0
    made = replace(op, pads_end=tuple(ends)).reference(x, w)
    for i, count in enumerate(counts):
        if made.shape[2 + i] < count:
            made = made.take(np.arange(count) % made.shape[2 + i], axis=2 + i)
    return made
