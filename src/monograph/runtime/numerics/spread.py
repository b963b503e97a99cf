"""Measures how far roundings move each element of a result.

The reference runs again with every value disturbed by what a correct implementation may round:

- a result moves by eps of its own dtype, relative to the element itself;
- the operands of a sum of K terms move by sqrt(K - 1) * acc, each element relative to itself. A
  computed sum is the exact sum of terms that are off by so much (backward error), so an element
  moves at the scale of the terms that were summed into it: of nothing else in the tensor;
- an integer of at most 8 bits that is rounded from a float moves by a step where `MARGIN` times the
  movement of its operands crosses an edge between two steps;
- a denormal may become 0;
- an element may become 0 where a norm sums its power, and that is a denormal of the accumulator;
- a 0 that is an underflow in f16 or bf16 may become a denormal, and an infinity that is an overflow
  the largest number, except in an output: kernels keep f32 between two ops.

Elements that are whole numbers keep their value unless they are sums or limits of a function: sizes
and positions are exact. Where the result of a function, or of any op in a narrow type, is whole by
rounding alone, ops that make steps of it read it disturbed. The root mean square of the movement
over a few runs is the *spread* of an element
([ADR 16](docs/adr/0016-tolerances-are-per-element.md)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from monograph.errors import MonographError
from monograph.ir import (
    Array,
    Constant,
    DType,
    Graph,
    Narrowing,
    Op,
    TensorType,
    Value,
    from_numpy,
    subgraphs,
)
from monograph.ir.dtype import bf16, f16, f64
from monograph.ir.evaluate import apply
from monograph.ir.op import STRUCTURE
from monograph.ops.base import Comparison, Elementwise, ViewOp
from monograph.ops.cast import Cast
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Mod
from monograph.ops.functions import Rounding
from monograph.ops.linear import Dot
from monograph.program.fusion.op_classes import coded
from monograph.program.legalise.lower_random import draws
from monograph.runtime.numerics.compare import OutputPath, distance, flatten, has_nan, wide
from monograph.runtime.numerics.tolerance import (
    F32_EPSILON,
    MARGIN,
    RUNS,
    TF32_EPSILON,
    Tolerance,
    contraction,
    derive,
    epsilon,
    gain,
    own_variance,
    variances,
)

SEEDS = ((0, 1), (1, 1), (0, -1), (1, -1), *((seed, 1) for seed in range(2, 70)))
"""The seed and the sign of each run. Two runs have opposite twins, because a function such as Silu
may show movements of one sign alone. Others stand in for runs that decide another shape."""
SPARE = 8
"""The most runs that others may stand in for."""
CHANCE = 8.0
"""The factor by which two runs may move an element too little by chance."""
RARE = 16
"""Steps are rare where so many times the movement of an element is at most a step."""
_FAILURES = (MonographError, ValueError, LookupError, ArithmeticError)


def tolerances(
    graph: Graph,
    feeds: Mapping[str, Any],
    allowed: float = 0.0,
    *,
    tf32: bool = False,
    narrowed: bool = False,
    ties: bool = False,
) -> dict[str, Tolerance]:
    """Return the tolerance of each output of a run on these feeds, element by element.

    `allowed` is the variance that the file grants others. With `tf32` the operands of an f32
    product may be rounded to 10 bits of mantissa. A graph is `narrowed` where a pass has lowered
    its precision, constants included. With `ties` integers and strings that roundings can change
    may be anything; else they must be equal. Constants that the import has computed are rounded.
    """
    graph = graph.unfolded
    known = {v: feeds[name] for v, name in zip(graph.inputs, graph.input_names, strict=True)}
    spread = Spread(
        graph.values, known, graph.outputs, tf32=tf32, narrowed=narrowed, coded_variance=allowed
    )
    return {
        name: replace(t, spread=spread) if ties or t.rtol else t
        for name, t in derive(graph, allowed, tf32=tf32).items()
    }


class Spread:
    """The movement of the outputs of some values, measured when it is first asked for."""

    def __init__(
        self,
        values: Sequence[Value],
        known: Mapping[Value, Any],
        outputs: Sequence[tuple[str, Value]],
        *,
        given: Mapping[Value, float] | None = None,
        tf32: bool = False,
        narrowed: bool = False,
        coded_variance: float = 0.0,
    ) -> None:
        """`known` values are data; `given` is by how much they are off, relative to themselves.

        In a `narrowed` graph the constants below f32 are rounded too. `coded_variance` is what the
        left operands of products with packed weights may be off by, squared.
        """
        self._values = values
        self._known = dict(known)
        self._outputs = outputs
        self._given = dict(given or {})
        self._tf32, self._narrowed = tf32, narrowed
        self._coded = math.sqrt(coded_variance)
        self._runs: list[dict[OutputPath, Any]] = []
        self._tried = self._failed = 0

    def reach(
        self, place: OutputPath, any_row: bool = False, runs: Sequence[int] = RUNS
    ) -> Iterator[Array]:
        """Yield how far roundings may move each element: from few runs first, then from more.

        Yield nothing if that is unknown: no disturbed run gives the same shape, or all fail. With
        `any_row` rows have no order, so all get the reach of the farthest.
        """
        if draws(self._values):
            return
        for count in runs:
            self._run(count)
            moved = self._moved(place)
            if moved is None:
                continue
            if any_row and moved.ndim > 1:
                moved = np.broadcast_to(moved.max(axis=-2, keepdims=True), moved.shape)
            yield MARGIN * moved

    def _moved(self, place: OutputPath) -> Array | None:
        base = np.asarray(self._base.outputs.get(place))
        # A rounding may decide a size. A run that decides otherwise tells nothing of this result.
        others = [np.asarray(r[place]) for r in self._runs if place in r]
        others = [o for o in others if o.shape == base.shape]
        if not others:
            return None
        if base.dtype.kind in "OUSTiub":
            # These do not round: what rounding can change at all may become anything.
            changed = np.any([o != base for o in others], axis=0)
            return np.asarray(np.where(changed, np.inf, 0.0))
        moved: Array = np.sqrt(np.mean([distance(o, base) ** 2 for o in others], axis=0))
        if moved.ndim == 0 or moved.size == 0:
            return moved
        # Few runs may leave an element nearly still by chance, where its row moves.
        usual = np.median(moved, axis=-1, keepdims=True) / 2
        return np.maximum(moved, np.minimum(usual, CHANCE * moved))

    @cached_property
    def _base(self) -> _Base:
        found = _Base()
        found.outputs = flatten(self._evaluate(found, None))
        return found

    def _run(self, runs: int) -> None:
        shapes = _shapes(self._base.outputs)
        while sum(_shapes(r) == shapes for r in self._runs) + self._failed < runs:
            if self._tried == min(len(SEEDS), max(runs, RUNS[-1]) + SPARE):
                return
            seed, sign = SEEDS[self._tried]
            noise = _Noise(seed, sign, self._base, self._tf32, self._narrowed, self._coded)
            self._tried += 1
            try:
                made = self._evaluate(self._base, noise)
            except _FAILURES:
                # A disturbed size or index is out of range, or a disturbed number is outside the
                # domain of a function. That run tells nothing, and excuses nothing.
                self._failed += 1
                continue
            self._runs.append(flatten(made))

    def _evaluate(self, base: _Base, noise: _Noise | None) -> dict[str, Any]:
        """Return the outputs of a disturbed run; without noise, fill the base."""
        results: dict[Value, Any] = {}
        uses: dict[Value, int] = {}
        for value in self._values:
            for v in value.inputs:
                uses[v] = uses.get(v, 0) + 1
        kept = {v for _, v in self._outputs}
        for value, x in self._known.items():
            results[value] = x if noise is None else noise.known(value, x, self._given)
        for value in self._values:
            if value not in results:
                taken = [results[v] for v in value.inputs]
                if noise is None:
                    results[value] = apply(value, taken)
                    base.note(value, results[value], taken)
                else:
                    made = apply(value, noise.operands(value, taken))
                    moved = noise.result(value, made, taken)
                    results[value] = moved if value in kept else noise.kept(value, moved, taken)
                    if has_nan(results[value]) and value not in base.with_nan:
                        raise ArithmeticError(f"{value.op.name} of disturbed operands is NaN")
            for v in value.inputs:
                uses[v] -= 1
                if uses[v] == 0 and v not in kept:
                    del results[v]
        return {name: results[v] for name, v in self._outputs}


@dataclass
class _Base:
    """The undisturbed run: its outputs, values that have a NaN, and the operands of quantisers."""

    outputs: dict[OutputPath, Any] = field(default_factory=dict)
    with_nan: set[Value] = field(default_factory=set)
    quantised: dict[Value, list[Any]] = field(default_factory=dict)

    def note(self, value: Value, result: Any, operands: list[Any]) -> None:
        if has_nan(result):
            self.with_nan.add(value)
        if not _is_float(result) and own_variance(value) > 0:
            self.quantised[value] = operands


class _Noise:
    """The disturbance of one run."""

    def __init__(
        self, seed: int, sign: int, base: _Base, tf32: bool, narrowed: bool, coded_error: float
    ) -> None:
        self._generator = np.random.default_rng(seed)
        self._sign, self._base = sign, base
        self._tf32, self._narrowed, self._coded = tf32, narrowed, coded_error
        self._landed: dict[Value, Array] = {}
        """True where an element is whole only because it was rounded."""

    def _draw(self, shape: tuple[int, ...]) -> Array:
        """Independent numbers of mean 0 and variance 1; uniform ones, which are quick to draw."""
        drawn = self._generator.random(shape, np.float32)
        return np.asarray((drawn - np.float32(0.5)) * np.float32(self._sign * math.sqrt(12)))

    def known(self, value: Value, x: Any, given: Mapping[Value, float]) -> Any:
        """A value that is data: off by what it was given with."""
        size = given.get(value, 0.0)
        return self._scaled(x, size) if size and _is_float(x) else x

    def operands(self, value: Value, arguments: list[Any]) -> list[Any]:
        """The operands of a sum, moved as its roundings move it; of a step, by their own."""
        if _steps(value.op):
            arguments = [self._doubted(v, x) for v, x in zip(value.inputs, arguments, strict=True)]
        if self._sign < 0 and value.op.summed_power() > 1:
            arguments = [_without_lost(x, value.op.summed_power()) for x in arguments]
        size = self._backward(value, _terms(value, arguments))
        if not any(size):
            return arguments
        floats = [i for i, x in enumerate(arguments) if _is_float(x) and np.ndim(x) > 0]
        if isinstance(value.op, Dot):
            # Errors of either operand have the same scale in the result: the smaller will do.
            floats = sorted(floats, key=lambda i: arguments[i].size)[:1]
        result = list(arguments)
        relative, to_row = size
        for i in floats if relative else ():
            scales = value.op.operand_error_scale(i, *arguments)
            result[i] = self._scaled(arguments[i], relative, scales=scales)
        if to_row and _is_float(arguments[0]):
            x = wide(result[0])
            rows = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
            result[0] = _cast(x + to_row * rows * self._draw(x.shape), result[0].dtype)
        if gain(value, 1) != 1.0:
            x = wide(arguments[1])
            result[1] = _cast(x + F32_EPSILON * self._draw(x.shape), arguments[1].dtype)
        return result

    def _doubted(self, value: Value, x: Any) -> Any:
        """An operand of a step, moved where it is whole by rounding alone."""
        landed = self._landed.get(value)
        if landed is None or landed.shape != np.shape(x):
            return x
        moved = self._scaled(x, epsilon(value.tensor.dtype))
        return np.where(landed, moved, x.astype(moved.dtype))

    def _backward(self, value: Value, terms: int) -> tuple[float, float]:
        """Return the errors of operands: relative to each element, and to rows of the left one."""
        if bodies := subgraphs(value.op):
            found = (variances(b.values, dict.fromkeys(b.inputs, 0.0)) for b in bodies)
            inner = (v[o] for b, v in zip(bodies, found, strict=True) for _, o in b.outputs)
            return math.sqrt(max(inner, default=0.0)), 0.0
        if terms <= 1:
            return 0.0, 0.0
        if not isinstance(value.type, TensorType) or value.op.rounds_between:
            return math.sqrt(own_variance(value)), 0.0
        if not value.type.dtype.is_float:
            return 0.0, 0.0
        eps = min(epsilon(value.type.dtype), F32_EPSILON)
        relative = eps if value.op.same_signs else math.sqrt(terms - 1) * eps
        if value.op.sums_constants:
            relative = 0.0
        if self._tf32 and len(value.inputs) > 1 and eps == F32_EPSILON:
            relative = math.hypot(relative, TF32_EPSILON)
        to_row = 0.0
        if isinstance(value.op, Dot):
            to_row = value.op.permitted_rounding()
            if self._coded and coded(value.inputs[1]) is not None:
                to_row = math.hypot(to_row, self._coded)
        return relative, to_row

    def result(self, value: Value, result: Any, operands: list[Any]) -> Any:
        """A result, moved by its own rounding."""
        if not isinstance(result, np.ndarray) or not isinstance(value.type, TensorType):
            return result
        dtype = value.type.dtype
        narrow = isinstance(value.op, Constant) and self._narrowed and dtype.bits < 32
        if isinstance(value.op, STRUCTURE) and not narrow:
            return result
        if not _is_float(result):
            return self._step(value, result, operands) if value in self._base.quantised else result
        if not value.op.rounds:
            if isinstance(value.op, ViewOp) and value.inputs[0] in self._landed:
                self._landed[value] = value.op.reference(self._landed[value.inputs[0]])
            return _cast(result, dtype.numpy)
        size = epsilon(dtype)
        if value.op.same_signs or value.op.sums_constants:
            size = math.sqrt(own_variance(value))  # such sums are off by a factor
        scales = value.op.error_scale(result, *operands)
        moved = self._scaled(result, size, dtype.numpy, scales)
        rounds = contraction(value) > 1 or value.op.saturates
        if rounds or result.dtype.kind == "c":
            return moved
        y = wide(result)
        whole = (np.rint(y) == y) & (np.abs(y) < 1 / (16 * size))
        if _may_become_whole(value.op, dtype) and (whole & (y != 0)).any():
            self._landed[value] = whole & (y != 0) & (y != _unrounded(value, operands))
        return np.where(whole, _cast(result, dtype.numpy), moved)

    def kept(self, value: Value, moved: Any, operands: list[Any]) -> Any:
        """A moved result in f16 or bf16 with some of the numbers that the type loses.

        An underflow becomes a denormal, and an overflow the largest number.
        """
        if not isinstance(value.type, TensorType) or value.type.dtype not in (f16, bf16):
            return moved
        if isinstance(value.op, STRUCTURE) or not value.op.rounds or subgraphs(value.op):
            return moved
        y = wide(moved)
        lost, over = y == 0, np.isinf(y)
        if not (lost | over).any():
            return moved
        limits = ml_dtypes.finfo(value.type.dtype.numpy)  # type: ignore[no-untyped-call]
        exact = _unrounded(value, operands)
        drawn = self._draw(y.shape)
        least = np.copysign(float(limits.smallest_subnormal), drawn)
        y = np.where(lost & (exact != 0), least, y)
        over &= np.isfinite(exact) & (drawn > 0)
        return _cast(np.where(over, np.copysign(float(limits.max), y), y), moved.dtype)

    def _step(self, value: Value, result: Array, operands: list[Any]) -> Array:
        """A quantised result, moved by a step where `MARGIN` times its movement crosses an edge.

        Elements that move by a good part of a step cross edges often enough by themselves. The
        quotient of a quantiser is rounded before it becomes an integer.
        """
        before = self._base.quantised[value]
        if any(np.shape(a) != np.shape(b) for a, b in zip(before, operands, strict=True)):
            return result
        floats = [i for i, x in enumerate(before) if _is_float(x)]
        moved = list(operands)
        moved[floats[0]] = self._scaled(operands[floats[0]], F32_EPSILON)
        by = {i: wide(moved[i]) - wide(before[i]) for i in floats}

        def at(times: float) -> Array:
            given = list(operands)
            for i in floats:
                off = np.where(np.isfinite(by[i]), times * by[i], 0.0)
                given[i] = _cast(wide(before[i]) + off, before[i].dtype)
            return wide(apply(value, given))

        y, still = wide(result), at(0)
        rare = (y == still) & (np.abs(at(RARE) - still) <= 1)
        return np.where(rare, at(MARGIN), y).astype(result.dtype)

    def _scaled(self, x: Array, size: float, to: Any = None, scales: Array | None = None) -> Array:
        """An array whose elements are off by `size` of themselves; 0 and infinities stay.

        With `scales`, elements are off by so much of those.
        """
        to = x.dtype if to is None else to
        y = wide(x)
        limits = ml_dtypes.finfo(to)  # type: ignore[no-untyped-call]
        with np.errstate(all="ignore"):
            magnitude = np.abs(y)
            drawn = self._draw(y.shape)
            scales = magnitude if scales is None else scales
            least = np.copysign(float(limits.smallest_subnormal), drawn)
            off = np.where(size * scales < np.abs(least), least, size * scales * drawn)
            moved = y + off if y.dtype.kind != "c" else y * (1 + size * drawn)
            flushed = (magnitude < float(limits.tiny)) & (drawn < 0) & (limits.tiny < 1e-30)
            moved = np.where(flushed, 0.0, moved)
        kept = (scales == 0) | ~np.isfinite(y) | ~np.isfinite(scales)
        # Operands below f32 are widened, or the error of an f32 sum would be rounded away.
        wider = np.float32 if to is x.dtype and x.dtype.itemsize < 4 else to
        return _cast(np.where(kept, y, moved), wider)


def _shapes(outputs: Mapping[OutputPath, Any]) -> dict[OutputPath, tuple[int, ...]]:
    return {place: np.shape(x) for place, x in outputs.items()}


def _terms(value: Value, arguments: Sequence[Any]) -> int:
    """Return how many terms are summed into one element, by what this run decides."""
    if not isinstance(value.op, Deferred):
        return max(contraction(value), value.op.summed_terms(*arguments))
    count = len(arguments) - len(value.op.late)
    data = [np.asarray(x) for x in arguments[:count]]
    op = value.op.settled(tuple(arguments[count:]))
    return max(1, op.accumulation_length(*(TensorType(from_numpy(x.dtype), x.shape) for x in data)))


def _without_lost(x: Any, power: int) -> Any:
    """Return an operand with 0 for elements whose power is a denormal of the accumulator."""
    if not _is_float(x):
        return x
    limits = np.finfo(np.float64 if x.dtype == np.float64 else np.float32)
    return np.where(np.abs(wide(x)) < float(limits.tiny) ** (1 / power), x.dtype.type(0), x)


def _steps(op: Op) -> bool:
    """Return True for ops that make a whole step of the smallest difference."""
    integers = isinstance(op, Cast) and not op.to.is_float
    return integers or isinstance(op, (Rounding, Mod, Comparison))


def _may_become_whole(op: Op, to: DType) -> bool:
    """Return True if rounding may make whole numbers of others that kernels have.

    Kernels keep f32 between two ops, and a function is not rounded to the nearest number.
    """
    return isinstance(op, Elementwise) and (to.bits < 32 or op.narrowing is Narrowing.KEPT)


def _unrounded(value: Value, operands: Sequence[Any]) -> Array:
    """Return a result in f64, before it is rounded to its element type."""
    types = {n: f64 for n, a in value.op.attributes.items() if isinstance(a, DType) and a.is_float}
    op: Op = replace(value.op, **types)  # type: ignore[type-var]
    with np.errstate(all="ignore"):
        return np.asarray(op.reference(*(wide(x) if _is_float(x) else x for x in operands)))


def _is_float(x: Any) -> bool:
    """Return True if the data are numbers that round."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fcV":
        return False
    return x.dtype.kind == "c" or from_numpy(x.dtype).is_float


def _cast(x: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(dtype, copy=False)
