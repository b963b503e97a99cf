"""Random numbers.

What is guaranteed. A random op has an identity (`uid`) and is never merged with another, folded or
moved out of a loop: each evaluation draws anew. With a `seed`, the n-th evaluation of one op always
gives the same numbers, on every machine and in every session; the first gives those of
`numpy.random.RandomState(seed)`, whose streams numpy has frozen. Two ops with the same seed draw
the same numbers, as ONNX describes. Without a seed the numbers differ from process to process, and
between ops. Evaluations are counted since the graph was imported: where a model is compiled for the
shapes that it is fed, each set of shapes has ops of its own, which begin with the first.

The identity is what a state is found by, and every op with that identity holds the state: it goes
when the last of them goes, with the graphs, programs and sessions that they are in.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import struct
import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from monograph.errors import InferError
from monograph.ir import Array, DType, Op, TensorType, Type, sample
from monograph.ir.dtype import f16, f32
from monograph.ops.base import check_allocation, narrow
from monograph.ops.shape import unknown_shape

_ENTROPY = secrets.randbits(64)
_uids = itertools.count(1)
_states: WeakValueDictionary[int, State] = WeakValueDictionary()
_lock = threading.Lock()
STATE_WORDS = 6
"""Integers of an op's state: how often it has drawn, the length of its key, and the key."""
if hasattr(os, "register_at_fork"):
    # A child must not find it locked by a thread that it does not have.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def fresh_uid() -> int:
    """An identity for a random op that no other op of this process has."""
    return next(_uids)


class State:
    """What every evaluation of an op in this process starts from, and counts in.

    A copy of it, as of an op that holds it, is the state itself; another process has its own.
    """

    __slots__ = ("__weakref__", "_uid", "words")

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self.words = np.zeros(STATE_WORDS, np.int64)

    def __reduce__(self) -> Any:
        return state_for, (self._uid,)


def state_for(uid: int) -> State:
    """The state of the ops with an identity, as long as somebody holds it."""
    with _lock:
        found = _states.get(uid)
        if found is None:
            found = _states[uid] = State(uid)
        return found


class Random(Op, abstract=True):
    """What the random ops share: where their numbers come from."""

    shape: tuple[int, ...]
    dtype: DType
    seed: float | None
    uid: int

    _state: State

    pure = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_state", state_for(self.uid))

    @classmethod
    def holds(cls, static: dict[str, Any]) -> State:
        return state_for(static.get("uid", 0))

    def infer(self) -> TensorType:
        if not self.dtype.is_float:
            raise InferError("element type not accepted", expected="float", given=self.dtype)
        self.check()
        return TensorType(self.dtype, self.shape)

    def check(self) -> None:
        """Refuses what describes no distribution."""
        raise NotImplementedError

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return TensorType(static["dtype"], unknown_shape(late["shape"]))

    def reference(self) -> Array:
        check_allocation(self.shape, np.float64)
        words = self.state().words
        with _lock:
            turn = int(words[0])
            words[0] += 1
        return narrow(self.draw(self._generator(turn & 0xFFFFFFFF)), self.dtype)

    def state(self) -> State:
        """What this op draws from, whoever evaluates it; ready for use."""
        key, words = self.key(), self._state.words
        with _lock:
            if not words[1]:
                words[1], words[2 : 2 + len(key)] = len(key), key
        return self._state

    def key(self) -> list[int]:
        """What the numbers depend on beside the turn."""
        if self.seed is None:
            return [_ENTROPY & 0xFFFFFFFF, _ENTROPY >> 32, self.uid & 0xFFFFFFFF]
        if self.seed.is_integer() and 0 <= self.seed < 2**32:
            return [int(self.seed)]
        return [*struct.unpack("<II", struct.pack("<d", self.seed))]

    def _generator(self, turn: int) -> np.random.RandomState:
        key = self.key()
        return np.random.RandomState([*key, turn] if turn or len(key) > 1 else key[0])

    def draw(self, generator: np.random.RandomState) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomUniform(Random):
    """Numbers spread evenly between `low` (included) and `high`."""

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

    def draw(self, generator: np.random.RandomState) -> Array:
        return np.asarray(generator.uniform(self.low, self.high, self.shape))


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

    def draw(self, generator: np.random.RandomState) -> Array:
        return np.asarray(generator.normal(self.mean, self.scale, self.shape))
