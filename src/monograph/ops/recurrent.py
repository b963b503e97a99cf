"""Recurrent cells over a whole sequence, one direction each.

x is [T, B, I] (time, batch, features) and the results are [T, B, H] for every step, and the last
state [B, H]. Initial state is [B, H], or [1, H] for one state that the whole batch shares. With
lengths, an element of the batch ends at its length: its state stays as it is from there on, and
its results are zero. Backward runs start at an element's last step. `clip` bounds the sum that goes
into the activation of a gate to [-clip, clip].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, Dim, DType, Narrowing, Op, TensorType, TupleType, from_numpy, sample
from monograph.ir.dtype import FLOAT, INT
from monograph.ir.sizes import is_one
from monograph.ir.traits import known_product
from monograph.ir.types import merge_dims
from monograph.ops.base import check_kinds, narrow, same_dtype, widen

Activation = tuple[str, float, float]
"""A function by name, and its alpha and beta, which some functions ignore."""

_FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}
DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "affine": (1.0, 0.0),
    "leaky_relu": (0.01, None),
    "thresholded_relu": (1.0, None),
    "scaled_tanh": (1.0, 1.0),
    "hard_sigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}
"""The alpha and beta of each function where a model gives none; None where it has none."""

TANH: Activation = ("tanh", 0.0, 0.0)
SIGMOID: Activation = ("sigmoid", 0.0, 0.0)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


class RecurrentCell(Op, abstract=True):
    """The base of recurrent cells: types, the walk over time, activations."""

    activations: tuple[Activation, ...]
    backward: bool
    clip: float | None

    gates: ClassVar[int]
    """The number of products with each operand that a step needs."""
    narrowing = Narrowing.KEPT
    kept_reason = "it carries state from step to step, where errors build up"
    level = True
    costly = True

    def _check(
        self, count: int, x: TensorType, w: TensorType, r: TensorType
    ) -> tuple[DType, Dim, Dim, Dim]:
        """Element type, time, batch and hidden size, once the operands are found to agree."""
        dtype = same_dtype(x, w, r)
        check_kinds(dtype, (FLOAT,))
        if len(self.activations) != count:
            raise InferError("wrong number of activations", expected=count, given=self.activations)
        for name, *_ in self.activations:
            if name not in _FUNCTIONS:
                raise InferError("no such activation", expected=[*_FUNCTIONS], given=name)
        if (x.rank, w.rank, r.rank) != (3, 2, 2):
            raise InferError("x, w and r have ranks 3, 2 and 2", given=f"{x}, {w}, {r}")
        merge_dims(x.dims[2], w.dims[1])
        rows = merge_dims(w.dims[0], r.dims[0])
        hidden = r.dims[1]
        if isinstance(hidden, int) and isinstance(rows, int) and rows != self.gates * hidden:
            rule = f"the weights have {self.gates} gates"
            raise InferError(rule, expected=self.gates * hidden, given=rows)
        return dtype, x.dims[0], x.dims[1], hidden

    def _check_vector(self, what: str, given: TensorType, dtype: DType, size: Dim) -> None:
        if given.dtype != dtype or given.rank != 1:
            raise InferError(f"{what} is a vector", expected=f"{dtype}[{size}]", given=given)
        if isinstance(size, int):
            merge_dims(size, given.dims[0])

    def _check_state(self, given: TensorType, dtype: DType, batch: Dim, hidden: Dim) -> None:
        if given.dtype != dtype or given.rank != 2:
            raise InferError("state is a matrix", expected=f"{dtype}[B, H]", given=given)
        rows = given.dims[0]
        if not is_one(rows):
            merge_dims(batch, rows)
        merge_dims(hidden, given.dims[1])

    def _results(
        self, sizes: tuple[DType, Dim, Dim, Dim], lengths: TensorType | None, *states: TensorType
    ) -> TupleType:
        """Check states and lengths; return the types of all steps and of the last states."""
        dtype, time, batch, hidden = sizes
        for state in states:
            self._check_state(state, dtype, batch, hidden)
        if lengths is not None:
            check_kinds(lengths.dtype, (INT,))
            if lengths.rank != 1:
                raise InferError("lengths are a vector", given=lengths)
            merge_dims(batch, lengths.dims[0])
        last = (TensorType(dtype, (batch, hidden)),) * len(states)
        return TupleType((TensorType(dtype, (time, batch, hidden)), *last))

    def _activate(self, index: int, x: Array) -> Array:
        """Activation number `index` of a gate, after clipping."""
        return self._apply(index, x if self.clip is None else np.clip(x, -self.clip, self.clip))

    def _apply(self, index: int, x: Array) -> Array:
        name, alpha, beta = self.activations[index]
        return _FUNCTIONS[name](x, alpha, beta)

    def _run(
        self,
        x: Array,
        state: tuple[Array, ...],
        lengths: Array | None,
        step: Callable[[Array, tuple[Array, ...]], tuple[Array, ...]],
    ) -> tuple[Array, ...]:
        """Return every step's first state, and the last state; all in the wide type."""
        time, batch = x.shape[:2]
        if lengths is not None and ((lengths < 0) | (lengths > time)).any():
            raise ExecutionError(
                "a length is not within the sequence",
                expected=f"0..{time}",
                given=lengths.tolist(),
            )
        state = tuple(np.broadcast_to(s, (batch, s.shape[1])) for s in state)
        results = np.zeros((time, *state[0].shape))
        for t in self._times(time):
            updated = step(x[t], state)
            if lengths is None:
                state, results[t] = updated, updated[0]
                continue
            lives = (t < lengths)[:, None]
            state = tuple(np.where(lives, a, b) for a, b in zip(updated, state, strict=True))
            results[t] = np.where(lives, updated[0], 0)
        return (results, *state)

    def _times(self, count: int) -> Iterator[int]:
        return iter(range(count - 1, -1, -1) if self.backward else range(count))

    def accumulation_length(self, *types: TensorType) -> int:
        """Return the terms of all steps: each sums over the input and the state."""
        x, w, r = types[:3]
        return known_product(x.dims[:1]) * (known_product(w.dims[1:]) + known_product(r.dims[1:]))


def _narrowed(results: tuple[Array, ...], like: Array) -> tuple[Array, ...]:
    dtype = from_numpy(like.dtype)
    return tuple(narrow(x, dtype) for x in results)


@dataclass(frozen=True)
class Rnn(RecurrentCell):
    """h <- f(x w' + h r' + b).

    Operands: x, w[H, I], r[H, H], b[H], initial h, lengths (optional). Results: h at every step,
    the last h.
    """

    activations: tuple[Activation, ...] = (TANH,)
    backward: bool = False
    clip: float | None = None

    gates = 1
    samples = (
        sample("f32[3, 2, 4]", "f32[5, 4]", "f32[5, 5]", "f32[5]", "f32[1, 5]"),
        sample(
            *("f64[3, 2, 4]", "f64[5, 4]", "f64[5, 5]", "f64[5]", "f64[2, 5]", [3, 1]),
            activations=(("leaky_relu", 0.1, 0.0),),
            backward=True,
            clip=2.0,
        ),
        sample("f32[0, 2, 4]", "f32[5, 4]", "f32[5, 5]", "f32[5]", "f32[2, 5]"),
    )

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        h: TensorType,
        lengths: TensorType | None = None,
    ) -> TupleType:
        sizes = dtype, _, _, hidden = self._check(1, x, w, r)
        self._check_vector("the bias", b, dtype, hidden)
        return self._results(sizes, lengths, h)

    def reference(
        self, x: Array, w: Array, r: Array, b: Array, h: Array, lengths: Array | None = None
    ) -> tuple[Array, ...]:
        given = widen(x) @ widen(w).T + widen(b)
        recurrent = widen(r).T

        def step(x_t: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (self._activate(0, x_t + state[0] @ recurrent),)

        return _narrowed(self._run(given, (widen(h),), lengths, step), x)


@dataclass(frozen=True)
class Gru(RecurrentCell):
    """z, s = f(x w' + h r' + b); n = g(...); h <- (1 - z) n + z h. Gates in the order z, s, n.

    The candidate n is g(x w' + (s h) r' + b), or with `late_reset` g(x w' + bw + s (h r' + br)),
    which is why the biases of w and r are apart. Operands: x, w[3H, I], r[3H, H], bw[3H], br[3H],
    initial h, lengths (optional). Results: h at every step, the last h.
    """

    activations: tuple[Activation, ...] = (SIGMOID, TANH)
    backward: bool = False
    clip: float | None = None
    late_reset: bool = False

    gates = 3
    samples = (
        sample("f32[3, 2, 4]", "f32[15, 4]", "f32[15, 5]", "f32[15]", "f32[15]", "f32[2, 5]"),
        sample(
            *("f32[3, 2, 4]", "f32[15, 4]", "f32[15, 5]", "f32[15]", "f32[15]"),
            *("f32[1, 5]", [0, 2]),
            activations=(("hard_sigmoid", 0.2, 0.5), ("softsign", 0.0, 0.0)),
            backward=True,
            clip=3.0,
            late_reset=True,
        ),
    )

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        bw: TensorType,
        br: TensorType,
        h: TensorType,
        lengths: TensorType | None = None,
    ) -> TupleType:
        sizes = self._check(2, x, w, r)
        self._check_vector("the bias", bw, sizes[0], w.dims[0])
        self._check_vector("the recurrent bias", br, sizes[0], w.dims[0])
        return self._results(sizes, lengths, h)

    def reference(
        self,
        x: Array,
        w: Array,
        r: Array,
        bw: Array,
        br: Array,
        h: Array,
        lengths: Array | None = None,
    ) -> tuple[Array, ...]:
        size = r.shape[1]
        given = widen(x) @ widen(w).T + widen(bw)
        r_gates, r_new = np.split(widen(r), [2 * size])
        b_gates, b_new = np.split(widen(br), [2 * size])

        def step(x_t: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (old,) = state
            x_gates, x_new = np.split(x_t, [2 * size], axis=-1)
            gates = self._activate(0, x_gates + old @ r_gates.T + b_gates)
            z, s = np.split(gates, 2, axis=-1)
            if self.late_reset:
                new = self._activate(1, x_new + s * (old @ r_new.T + b_new))
            else:
                new = self._activate(1, x_new + (s * old) @ r_new.T + b_new)
            return ((1 - z) * new + z * old,)

        return _narrowed(self._run(given, (widen(h),), lengths, step), x)


@dataclass(frozen=True)
class Lstm(RecurrentCell):
    """i, o, f = f(x w' + h r' + b + p c); n = g(...); c <- f c + i n; h <- o h(c).

    Gates in the order i, o, f, n of w and r; i, o, f of the peepholes p, where o sees the new c.
    With `coupled` f is 1 - i. `clip` bounds the gates, not the c that h sees.

    Operands: x, w[4H, I], r[4H, H], b[4H], p[3H], initial h, initial c, lengths (optional).
    Results: h at every step, the last h, the last c.
    """

    activations: tuple[Activation, ...] = (SIGMOID, TANH, TANH)
    backward: bool = False
    clip: float | None = None
    coupled: bool = False

    gates = 4
    samples = (
        sample(
            *("f32[3, 2, 4]", "f32[20, 4]", "f32[20, 5]", "f32[20]", "f32[15]"),
            *("f32[1, 5]", "f32[1, 5]"),
        ),
        sample(
            *("f16[3, 2, 4]", "f16[20, 4]", "f16[20, 5]", "f16[20]", "f16[15]"),
            *("f16[2, 5]", "f16[2, 5]", [3, 1]),
            activations=(("sigmoid", 0.0, 0.0), ("elu", 1.0, 0.0), ("scaled_tanh", 1.5, 0.5)),
            backward=True,
            clip=3.0,
            coupled=True,
        ),
    )

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        r: TensorType,
        b: TensorType,
        p: TensorType,
        h: TensorType,
        c: TensorType,
        lengths: TensorType | None = None,
    ) -> TupleType:
        sizes = dtype, _, _, hidden = self._check(3, x, w, r)
        self._check_vector("the bias", b, dtype, w.dims[0])
        peepholes = 3 * hidden if isinstance(hidden, int) else p.dims[0]
        self._check_vector("the peepholes", p, dtype, peepholes)
        return self._results(sizes, lengths, h, c)

    def reference(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array,
        p: Array,
        h: Array,
        c: Array,
        lengths: Array | None = None,
    ) -> tuple[Array, ...]:
        given = widen(x) @ widen(w).T + widen(b)
        recurrent = widen(r).T
        peep_i, peep_o, peep_f = np.split(widen(p), 3)

        def step(x_t: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            old_h, old_c = state
            x_i, x_o, x_f, x_n = np.split(x_t + old_h @ recurrent, 4, axis=-1)
            i = self._activate(0, x_i + peep_i * old_c)
            f = 1 - i if self.coupled else self._activate(0, x_f + peep_f * old_c)
            new_c = f * old_c + i * self._activate(1, x_n)
            o = self._activate(0, x_o + peep_o * new_c)
            return o * self._apply(2, new_c), new_c

        state: Any = (widen(h), widen(c))
        return _narrowed(self._run(given, state, lengths, step), x)
