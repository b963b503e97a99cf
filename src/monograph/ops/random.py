"""Random numbers: Philox4x32-10, a generator without a state (Salmon et al., SC 2011).

A number is a function of the op's key, the turn (how often the op has drawn before) and the
element's index in the result, so elements are made in any order and fuse with what follows. The
arithmetic is stated once, for a `ScalarBuilder`: the reference and the kernels give the same bits.

A random op has an identity (`uid`) and is never merged with another, folded or moved out of a loop:
each evaluation takes a turn. With a `seed`, turns begin at 0: the n-th evaluation of an op gives
the same numbers on every machine and in every session. Two ops with one seed draw the same numbers,
as ONNX describes. Without a seed, turns begin at a random number.

The turn belongs to the identity. All graphs that a session imports from a file share their
identities. The turn is freed with the last op, graph, program or session that holds it.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from monograph.errors import InferError
from monograph.ir import Array, DType, Op, TensorType, Type, sample
from monograph.ir.dtype import f16, f32, f64, i64, u64
from monograph.ops.base import check_allocation, narrow
from monograph.ops.scalar import Scalar, ScalarBuilder
from monograph.ops.shape import unknown_shape

_UNSEEDED = 0x9E3779B97F4A7C15
"""The key of all ops without a seed, whose turns tell them apart. No seed has it."""
_uids = itertools.count(1)
_turns: WeakValueDictionary[tuple[int, float | None], Turns] = WeakValueDictionary()
_lock = threading.Lock()
_starts: random.Random = random.SystemRandom()


class Turns:
    """The count of an op's evaluations in this process, in memory that kernels count up.

    A copy of it, as of an op that holds it, is the count itself; another process has its own.
    """

    __slots__ = ("__weakref__", "count", "seed", "uid")

    def __init__(self, uid: int, seed: float | None) -> None:
        self.uid, self.seed = uid, seed
        self.count = np.zeros(1, np.int64)
        self.begin()

    def __reduce__(self) -> Any:
        return turns_of, (self.uid, self.seed)

    def begin(self) -> None:
        """Set the first turn. Two of 2^62 starts are far apart."""
        self.count[0] = _starts.getrandbits(62) if self.seed is None else 0

    def take(self) -> Array:
        """Count an evaluation and return the turn that it has."""
        with _lock:
            self.count += 1
            return self.count[0] - 1  # type: ignore[no-any-return]


def turns_of(uid: int, seed: float | None) -> Turns:
    """Return the turns of the ops with an identity, which live as long as somebody holds them."""
    with _lock:
        return _turns.get((uid, seed)) or _turns.setdefault((uid, seed), Turns(uid, seed))


def fresh_turns(seed: float | None) -> Turns:
    """Return turns under an identity that no other op of this process has."""
    return turns_of(fresh_uid(), seed)


def seed_starts(seed: int) -> None:
    """Let ops without a seed that are made from now on begin at turns that follow from a seed."""
    global _starts
    with _lock:
        _starts = random.Random(seed)


def fresh_uid() -> int:
    """Return an identity for a random op that no other op of this process has."""
    return next(_uids)


def _in_child() -> None:
    """Let the ops without a seed draw other numbers in a forked process than in its parent."""
    for turns in list(_turns.values()):
        if turns.seed is None:
            turns.begin()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # A child must not find it locked by a thread that it does not have.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child
    )


# Arithmetic of one element

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW = (1 << 32) - 1
_BLOCK = 1 << 13
"""Elements that the reference makes at a time: what a processor's cache holds."""


def philox(b: ScalarBuilder, counter: Sequence[Scalar], key: int) -> list[Scalar]:
    """Return the four words of a counter of four words; words have 32 bits, in u64."""
    mask, half = b.constant(_LOW, u64), b.constant(32, u64)
    c0, c1, c2, c3 = counter
    for turn in range(_ROUNDS):
        k0, k1 = (
            b.constant((word + turn * step) & _LOW, u64)
            for word, step in zip((key & _LOW, key >> 32), _KEY_STEPS, strict=True)
        )
        p, q = (b.mul(c, b.constant(m, u64)) for c, m in zip((c0, c2), _MULTIPLIERS, strict=True))
        c0, c2 = (
            b.xor(b.xor(b.shift_right(q, half), c1), k0),
            b.xor(b.xor(b.shift_right(p, half), c3), k1),
        )
        c1, c3 = b.and_(q, mask), b.and_(p, mask)
    return [c0, c1, c2, c3]


def _bits(b: ScalarBuilder, index: Scalar, turn: Scalar, key: int) -> tuple[Scalar, Scalar]:
    """Return two times 64 random bits for an element of a turn."""
    half, words = b.constant(32, u64), []
    for part in (b.bitcast(index, u64), b.bitcast(turn, u64)):
        words += [b.and_(part, b.constant(_LOW, u64)), b.shift_right(part, half)]
    w0, w1, w2, w3 = philox(b, words, key)
    return b.or_(b.shift_left(w1, half), w0), b.or_(b.shift_left(w3, half), w2)


def _unit(b: ScalarBuilder, bits: Scalar, kept: int, half_open: int = 0) -> Scalar:
    """Return the first bits as a number in [0, 1), or with `half_open` 1 in (0, 1]."""
    whole = b.bitcast(b.shift_right(bits, b.constant(64 - kept, u64)), i64)
    whole = b.add(whole, b.constant(half_open, i64))
    return b.mul(b.cast(whole, f64), b.constant(2.0**-kept, f64))


def _polynomial(b: ScalarBuilder, x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Return c[0] + c[1] x + ..., each step rounded: where sums fuse, bits differ."""
    *rest, last = (b.constant(c, f64) for c in coefficients)
    total = last
    for c in reversed(rest):
        total = b.add(b.mul(total, x), c)
    return total


_MANTISSA = (1 << 52) - 1
_SQRT_HALF = 0x3FE6A09E << 32
"""The bits of a number just below sqrt(1/2)."""
_ATANH = [2 / (2 * k + 1) for k in range(11)]
"""log m = f S(f^2) for f = (m - 1) / (m + 1); f^2 < 0.03 for sqrt(1/2) <= m < sqrt(2)."""
_SINE = [(-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(13)]
"""sin(2 pi v) = v S(v^2) for |v| <= 1/4."""


def _log(b: ScalarBuilder, x: Scalar) -> Scalar:
    """Return log x of a normal number: x = 2^e m."""
    bits = b.bitcast(x, i64)
    above = b.sub(bits, b.constant(_SQRT_HALF, i64))
    e = b.shift_right(above, b.constant(52, i64))
    rest = b.add(b.and_(above, b.constant(_MANTISSA, i64)), b.constant(_SQRT_HALF, i64))
    m, one = b.bitcast(rest, f64), b.constant(1.0, f64)
    f = b.div(b.sub(m, one), b.add(m, one))
    log_m = b.mul(f, _polynomial(b, b.mul(f, f), _ATANH))
    return b.add(b.mul(b.cast(e, f64), b.constant(math.log(2), f64)), log_m)


def _standard_normal(b: ScalarBuilder, first: Scalar, second: Scalar) -> Scalar:
    """Return a number of the standard normal distribution, by Box and Muller.

    The sine of a uniform angle is distributed alike on a full turn and from -pi/2 to pi/2.
    """
    squared = b.mul(b.constant(-2.0, f64), _log(b, _unit(b, first, 53, half_open=1)))
    v = b.sub(b.mul(_unit(b, second, 53), b.constant(0.5, f64)), b.constant(0.25, f64))
    return b.mul(b.sqrt(squared), b.mul(v, _polynomial(b, b.mul(v, v), _SINE)))


def _by(function: Callable[..., Any]) -> Callable[..., Scalar]:
    def apply(self: NumpyScalars, x: Scalar, *others: Scalar) -> Scalar:
        return Scalar(function(x.reg, *(y.reg for y in others)), x.dtype)

    return apply


class NumpyScalars:
    """The part of a `ScalarBuilder` that random numbers take, on arrays."""

    add, sub, mul, div = map(_by, (np.add, np.subtract, np.multiply, np.divide))
    and_, or_, xor = map(_by, (np.bitwise_and, np.bitwise_or, np.bitwise_xor))
    shift_left, shift_right = map(_by, (np.left_shift, np.right_shift))
    min, max, sqrt = map(_by, (np.minimum, np.maximum, np.sqrt))

    def constant(self, number: float | int, dtype: DType) -> Scalar:
        return Scalar(np.asarray(number, dtype.numpy), dtype)

    def cast(self, x: Scalar, to: DType) -> Scalar:
        return Scalar(narrow(x.reg, to), to)

    def bitcast(self, x: Scalar, to: DType) -> Scalar:
        return Scalar(x.reg.view(to.numpy), to)


# Ops


class Random(Op, abstract=True):
    """A draw of numbers: an evaluation takes a turn, and makes each element from it."""

    shape: tuple[int, ...]
    dtype: DType
    seed: float | None
    uid: int

    turns: Turns

    pure = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", turns_of(self.uid, self.seed))

    @classmethod
    def holds(cls, static: dict[str, Any]) -> Turns:
        return turns_of(static.get("uid", 0), static.get("seed"))

    def infer(self) -> TensorType:
        if not self.dtype.is_float:
            raise InferError("element type not accepted", expected="float", given=self.dtype)
        self.check()
        return TensorType(self.dtype, self.shape)

    def check(self) -> None:
        """Refuse parameters that describe no distribution."""
        raise NotImplementedError

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return TensorType(static["dtype"], unknown_shape(late["shape"]))

    def reference(self) -> Array:
        return self.numbers(self.turns.take())

    def numbers(self, turn: Array) -> Array:
        """Return all numbers of a turn."""
        check_allocation(self.shape, self.dtype.numpy)
        b = cast(ScalarBuilder, NumpyScalars())
        made = np.empty(math.prod(self.shape), self.dtype.numpy)
        for start in range(0, made.size, _BLOCK):
            index = np.arange(start, min(start + _BLOCK, made.size), dtype=np.int64)
            made[index] = self.number(b, Scalar(turn, i64), Scalar(index, i64)).reg
        return made.reshape(self.shape)

    def number(self, b: ScalarBuilder, turn: Scalar, index: Scalar) -> Scalar:
        """Return the number with an index in a turn."""
        return b.cast(self.spread(b, *_bits(b, index, turn, self.key)), self.dtype)

    def spread(self, b: ScalarBuilder, first: Scalar, second: Scalar) -> Scalar:
        """Return a number of the distribution, in f64, from 128 random bits."""
        raise NotImplementedError

    @property
    def key(self) -> int:
        """The 64 bits of the seed: its integer if 32 bits hold that, else those of the float."""
        if self.seed is None:
            return _UNSEEDED
        if self.seed.is_integer() and 0 <= self.seed < 2**32:
            return int(self.seed)
        (bits,) = struct.unpack("<Q", struct.pack("<d", self.seed))
        return int(bits)


@dataclass(frozen=True)
class RandomUniform(Random):
    """Numbers spread evenly between `low` (included) and `high` (not included)."""

    shape: tuple[int, ...]
    dtype: DType
    low: float = 0.0
    high: float = 1.0
    seed: float | None = None
    uid: int = 0

    samples = (
        sample(shape=(3, 4), dtype=f32, seed=1.0, uid=-1),
        sample(shape=(), dtype=f16, low=-2.0, high=2.0, uid=-2),
    )

    def check(self) -> None:
        if not math.isfinite(self.high - self.low):
            raise InferError("bounds are not finite", given=f"{self.low}..{self.high}")

    def spread(self, b: ScalarBuilder, first: Scalar, second: Scalar) -> Scalar:
        unit = _unit(b, first, 53 if self.dtype == f64 else 24)
        low, width = (b.constant(x, f64) for x in (self.low, self.high - self.low))
        # A number just below `high` may be rounded to it.
        limit = b.min if self.low <= self.high else b.max
        return limit(b.add(low, b.mul(unit, width)), b.constant(self._last(), f64))

    def _last(self) -> float:
        """Return the number of the element type next to `high`, towards `low`."""
        with np.errstate(over="ignore"):
            low, high = (narrow(np.float64(x), self.dtype) for x in (self.low, self.high))
        within = float(high) < self.high if self.low <= self.high else float(high) > self.high
        return float(high if within else np.nextafter(high, low))


@dataclass(frozen=True)
class RandomNormal(Random):
    """Numbers of a normal distribution."""

    shape: tuple[int, ...]
    dtype: DType
    mean: float = 0.0
    scale: float = 1.0
    seed: float | None = None
    uid: int = 0

    samples = (
        sample(shape=(3, 4), dtype=f32, seed=2.5, uid=-3),
        sample(shape=(0, 2), dtype=f32, mean=4.0, scale=0.5, uid=-4),
    )

    def check(self) -> None:
        if self.scale < 0 or not math.isfinite(self.scale):
            raise InferError("a deviation is finite", expected=">= 0", given=self.scale)

    def spread(self, b: ScalarBuilder, first: Scalar, second: Scalar) -> Scalar:
        scaled = b.mul(b.constant(self.scale, f64), _standard_normal(b, first, second))
        return b.add(b.constant(self.mean, f64), scaled)
