"""Ops of classical models beyond arithmetic: tables, maps, probabilities. Reference only.

Scalers, linear models and kernels are arithmetic of the canonical ops; trees have a file of their
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    DType,
    Literal,
    MapType,
    Op,
    SequenceType,
    TensorType,
    Type,
    from_numpy,
    sample,
)
from monograph.ir.dtype import FLOAT, INT, STRING, f32, string
from monograph.ops.base import as_tensor, check_kinds, narrow

MAX_ITERATIONS = 100


@dataclass(frozen=True)
class Lookup(Op):
    """Each element's value in a table: `values[i]` where it equals `keys[i]`, else the default.

    A NaN is found under a NaN. Without a default an element that is no key is an error.
    """

    keys: Literal
    values: Literal
    default: Literal | None = None

    host_reason = "an op of classical models"
    fixed_text = True
    samples = (
        sample(
            "i64[2, 3] in 0..3",
            keys=Literal(np.array([2, 0])),
            values=Literal(np.array(["two", "nought"], object)),
            default=Literal(np.array("other", object)),
        ),
        sample(
            "str[5]",
            keys=Literal(np.array(["", "a", "bc", "dé"], object)),
            values=Literal(np.array([0.5, 1.5, 2.5, -0.0], np.float32)),
        ),
        sample(
            [float("nan"), 1.0, -0.0],
            keys=Literal(np.array([0.0, float("nan")], np.float32)),
            values=Literal(np.array([1, 2])),
            default=Literal(np.array(-1)),
        ),
    )

    def infer(self, x: TensorType) -> TensorType:
        keys, values = self.keys.type, self.values.type
        if keys.rank != 1 or keys.shape != values.shape:
            raise InferError(
                "keys and values are vectors of one length", expected=keys, given=values
            )
        if as_tensor(x).dtype != keys.dtype:
            raise InferError("keys of another element type", expected=keys.dtype, given=x)
        if self.default is not None and self.default.type != TensorType(values.dtype, ()):
            raise InferError("default", expected=f"{values.dtype}[]", given=self.default.type)
        return x.with_dtype(values.dtype)

    def reference(self, x: Array) -> Array:
        if x.dtype.kind == "U" and (hashed := self._of_fixed_text(x)) is not None:
            return hashed
        given = x.reshape(-1).tolist()
        keys = map(_key, given) if self._by_nan else given
        found: Iterable[Any]
        if self.default is None:
            found = map(self._table.__getitem__, keys)
        else:
            found = map(self._table.get, keys, repeat(self.default.array.item()))
        try:
            results = np.fromiter(found, self.values.array.dtype, len(given))
        except KeyError as e:
            raise ExecutionError("an element is not in the table", given=repr(e.args[0])) from None
        return results.reshape(x.shape)

    def _of_fixed_text(self, x: Array) -> Array | None:
        """Find texts of fixed width by their hashes; None if that does not work for the keys."""
        index = self._hashed(x.dtype.itemsize // 4)
        if index is None:
            return None
        flat = np.ascontiguousarray(x).reshape(-1)
        near = np.searchsorted(index.hashes, index.hashed(flat)).clip(max=len(index.hashes) - 1)
        places = np.where(index.keys[near] == flat, index.places[near], -1)
        values = self._values
        if self.default is not None:
            values = np.concatenate([values, self.default.array.reshape(1)])
        elif (unknown := flat[places < 0]).size:
            raise ExecutionError("an element is not in the table", given=repr(str(unknown[0])))
        return values[places].reshape(x.shape)

    def _hashed(self, width: int) -> _TextIndex | None:
        if width not in self._by_width:
            self._by_width[width] = _text_index(list(self._table), width)
        return self._by_width[width]

    @cached_property
    def _by_width(self) -> dict[int, _TextIndex | None]:
        return {}

    @cached_property
    def _values(self) -> Array:
        """The values of the keys in the order of the table."""
        return np.array(list(self._table.values()), self.values.array.dtype)

    @cached_property
    def _by_nan(self) -> bool:
        """True if elements may be NaN, which is not equal to itself."""
        return self.keys.type.dtype.is_float

    @cached_property
    def _table(self) -> dict[Any, Any]:
        keys, values = (literal.array.tolist() for literal in (self.keys, self.values))
        return dict(zip(map(_key, keys) if self._by_nan else keys, values, strict=True))


WIDEST_TEXT = 32
"""Texts of at most so many characters are hashed in numpy."""
MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1)


@dataclass(frozen=True)
class _TextIndex:
    """Keys of a fixed width, sorted by hashes that are all different."""

    multiplier: int
    hashes: Array
    keys: Array
    places: Array

    def hashed(self, flat: Array) -> Array:
        return _hashes(flat, self.multiplier)


def _hashes(flat: Array, multiplier: int) -> Array:
    """Return a number for each text, from its characters."""
    codes = flat.view(np.uint32).reshape(flat.size, flat.dtype.itemsize // 4)
    total = codes[:, 0].copy()
    for column in codes.T[1:]:
        total *= np.uint32(multiplier)
        total += column
    return total


def _text_index(keys: list[str], width: int) -> _TextIndex | None:
    """Return the keys that a text of some characters may be; None if their hashes collide."""
    # numpy drops zeros at the end, so no text of fixed width is such a key.
    fitting = [i for i, k in enumerate(keys) if len(k) <= width and not k.endswith("\0")]
    if not 0 < width <= WIDEST_TEXT or not fitting:
        return None
    texts = np.array([keys[i] for i in fitting], f"U{width}")
    for multiplier in MULTIPLIERS:
        hashes = _hashes(texts, multiplier)
        order = np.argsort(hashes)
        if (np.diff(hashes[order]) != 0).all():
            places = np.array(fitting)[order]
            return _TextIndex(multiplier, hashes[order], texts[order], places)
    return None


def _key(element: Any) -> Any:
    return "NaN" if element != element else element


@dataclass(frozen=True)
class CoupleProbabilities(Op):
    """Probabilities of k classes, from those of each class against each other: [N, k, k] to [N, k].

    x[n, i, j] estimates the probability of class i where it is i or j. The result minimises the
    squared disagreement with all pairs (Wu, Lin and Weng 2004, their second approach), by fixed
    point iteration from equal probabilities until a step changes less than 0.005 / k.
    """

    host_reason = "an op of classical models"
    costly = True
    samples = (
        sample([[[0.5, 0.9], [0.1, 0.5]]]),
        sample([[[0.5, 0.6, 0.8], [0.4, 0.5, 0.7], [0.2, 0.3, 0.5]]]),
        sample("f32[0, 3, 3]"),
    )

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, (FLOAT,))
        if x.rank != 3 or x.dims[1] != x.dims[2] or not isinstance(x.dims[1], int):
            raise InferError("a square for each row is needed", expected="[N, k, k]", given=x)
        return x.with_shape(x.dims[:2])

    def reference(self, x: Array) -> Array:
        r = x.astype(np.float64)
        k = r.shape[1]
        # Q[i, i] is the sum over j of r[j, i]^2, and Q[i, j] is -r[j, i] r[i, j].
        back = np.swapaxes(r, 1, 2)
        off = ~np.eye(k, dtype=bool)
        q = np.where(off, -back * r, 0.0)
        diagonal = np.where(off, back**2, 0.0).sum(2)
        q[:, np.arange(k), np.arange(k)] = diagonal
        p = np.full(r.shape[:2], 1.0 / k)
        for row in range(len(p)):
            _couple(p[row], q[row])
        return narrow(p, from_numpy(x.dtype))


def _couple(p: Array, q: Array) -> None:
    """Solves for the probabilities of one row, in place."""
    k = len(p)
    for _ in range(MAX_ITERATIONS):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / k:
            return
        for t in range(k):
            step = (pqp - qp[t]) / q[t, t]
            p[t] += step
            pqp = (pqp + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step


@dataclass(frozen=True)
class MapRows(Op):
    """A list of dicts, one for each row: the keys with the row's elements."""

    keys: Literal

    samples = (
        sample("f32[3, 2]", keys=Literal(np.array(["no", "yes"], object))),
        sample("f32[0, 2]", keys=Literal(np.array([1, 0]))),
    )

    def infer(self, x: TensorType) -> SequenceType:
        check_kinds(self.keys.dtype, (INT, STRING))
        count = self.keys.array.size
        if self.keys.type.rank != 1 or as_tensor(x).rank != 2:
            raise InferError("rows of as many elements as keys are needed", given=x)
        if isinstance(x.dims[1], int) and x.dims[1] != count:
            raise InferError("as many columns as keys", expected=count, given=x)
        return SequenceType(MapType(self.keys.dtype, x.dtype))

    def reference(self, x: Array) -> list[dict[Any, Any]]:
        keys = self.keys.array.tolist()
        if x.shape[1] != len(keys):
            raise ExecutionError("as many columns as keys", expected=len(keys), given=x.shape[1])
        return [dict(zip(keys, row, strict=True)) for row in x.tolist()]


@dataclass(frozen=True)
class MapValues(Op):
    """One row of a dict's values, [1, n], of type `out`.

    They stand at the places of their keys in `keys`, with zero or an empty text where there is
    none; without `keys`, in ascending order of their own.
    """

    out: DType
    keys: Literal | None = None

    samples = (
        sample("map<str, f32>", out=f32, keys=Literal(np.array(["bc", "z", "a"], object))),
        sample("map<i64, str>", out=string, keys=Literal(np.array([5, 1]))),
        sample("map<i64, f32>", out=f32),
    )

    def infer(self, x: Type) -> TensorType:
        if not isinstance(x, MapType) or x.value != self.out:
            raise InferError("a map to other values", expected=self.out, given=x)
        if self.keys is None:
            return TensorType(self.out, (1, UNKNOWN))
        if self.keys.dtype != x.key or self.keys.type.rank != 1:
            raise InferError("keys of another type", expected=x.key, given=self.keys.type)
        return TensorType(self.out, (1, self.keys.array.size))

    def reference(self, x: dict[Any, Any]) -> Array:
        keys = sorted(x) if self.keys is None else self.keys.array.tolist()
        zero: Any = "" if self.out.is_string else 0
        row = np.full((1, len(keys)), zero, self.out.numpy)
        row[0, :] = [x.get(k, zero) for k in keys]
        return row
