"""Random choices of a campaign: sizes, shapes, element types and numbers, all from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import defs

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 13, 16, 17)
EMPTY = 0.03
"""The share of sizes that are 0."""
MOST_ELEMENTS = 4096
NEWEST_OPSET = 23
"""The newest opset that models declare, but for ops that came later."""
OPSETS = (13, 15, 17, 18, 20, 21, 22, 23)
TYPES = {
    "float": "float32", "float16": "float16", "double": "float64", "bfloat16": "bfloat16",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8",
    "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "bool",
    "string": "object",
}  # fmt: skip
"""Element types as ONNX's schemas name them, and as numpy does."""
COMMON = ("float32", "float32", "float32", "int64", "float16")
SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, -3.5, 2.0**31, 1e-30)
WORDS = ("", "a", "bc", "A", "ä", "1", "-2.5", "nan")


def numpy_type(name: str) -> np.dtype[Any]:
    """An element type by its name, ml_dtypes' included."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


@cache
def schema_types(op: str, opset: int, name: str = "") -> tuple[str, ...]:
    """The element types that an op takes for a type variable; "" for that of its first input."""
    schema = defs.get_schema(op, opset, "")
    name = name or schema.inputs[0].type_str
    listed: Sequence[str] = [name]
    for constraint in schema.type_constraints:
        if constraint.type_param_str == name:
            listed = constraint.allowed_type_strs
    plain = [t.removeprefix("tensor(").removesuffix(")") for t in listed]
    return tuple(TYPES[t] for t in plain if t in TYPES)


@cache
def since(op: str) -> int:
    """The opset that an op came with."""
    return min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == op)


@dataclass
class Draw:
    """A source of random choices."""

    generator: np.random.Generator
    special: bool = False
    """True if floats hold NaN, infinities and the like."""

    def some(self, options: Sequence[Any]) -> Any:
        return options[int(self.generator.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def number(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return int(self.generator.integers(low, high + 1))

    def size(self, empty: float = EMPTY) -> int:
        return 0 if self.chance(empty) else int(self.some(SIZES))

    def shape(self, low: int = 0, high: int = 4, empty: float = EMPTY) -> tuple[int, ...]:
        """A shape of `low` to `high` dimensions that is not too large."""
        while True:
            made = tuple(self.size(empty) for _ in range(self.number(low, high)))
            if np.prod(made, dtype=np.int64) <= MOST_ELEMENTS:
                return made

    def image(self, spatial: int, channels: int | None = None) -> tuple[int, ...]:
        """[N, C, ...] for windows; mostly small, never empty in C."""
        least, most = (1, 9) if spatial > 1 else (1, 20)
        batch = 0 if self.chance(EMPTY / 2) else self.some((1, 1, 2, 3))
        wide = tuple(self.number(least, most if spatial < 3 else 6) for _ in range(spatial))
        return (batch, channels or self.some((1, 2, 3, 4, 6, 8, 16)), *wide)

    def axis(self, rank: int) -> int:
        """An axis of a rank, counted from either end."""
        return self.number(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Some axes, each once, in any order, counted from either end."""
        chosen = self.generator.permutation(rank)[: self.number(1, max(rank, 1))]
        return [int(a) - (rank if self.chance(0.3) else 0) for a in chosen]

    def kind(self, types: Sequence[str]) -> np.dtype[Any]:
        """One of some element types; common ones more often."""
        common = [t for t in COMMON if t in types]
        return numpy_type(self.some(common if common and self.chance(0.6) else types))

    def type_of(self, op: str, opset: int, name: str = "") -> np.dtype[Any]:
        """An element type that an op takes for a type variable; "" for that of its first input."""
        return self.kind(schema_types(op, opset, name))

    def opset(self, op: str, least: int = 0) -> int:
        """An opset that has this op."""
        low = max(since(op), least)
        fits = [o for o in OPSETS if o >= low]
        return int(self.some(fits)) if fits else low

    # Data ---------------------------------------------------------------------------------------

    def array(
        self, dtype: Any, shape: Sequence[int], low: float | None = None, high: float | None = None
    ) -> np.ndarray:
        """Numbers of a type: normal floats, small integers, or from `low` up to `high`."""
        kind = np.dtype(dtype)
        if kind.kind == "O":
            return np.asarray(self.generator.choice(np.array(WORDS, object), tuple(shape)), object)
        if kind.kind == "b":
            return np.asarray(self.generator.random(tuple(shape)) < 0.5)
        if kind.kind in "iu":
            return self._integers(kind, tuple(shape), low, high)
        if low is not None and high is not None:
            return np.asarray(self.generator.uniform(low, high, tuple(shape))).astype(kind)
        return self._floats(kind, tuple(shape))

    def _integers(
        self, kind: np.dtype[Any], shape: tuple[int, ...], low: float | None, high: float | None
    ) -> np.ndarray:
        limits = np.iinfo(kind)
        if low is None and self.chance(0.15):
            made = self.generator.integers(limits.min, limits.max, shape, kind, endpoint=True)
            return np.asarray(made)
        first = (0 if limits.min == 0 else -5) if low is None else max(int(low), int(limits.min))
        last = 9 if high is None else min(int(high), int(limits.max))
        return np.asarray(self.generator.integers(first, last, shape, endpoint=True)).astype(kind)

    def _floats(self, kind: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        scale = self.some((1.0, 1.0, 1.0, 0.1, 4.0))
        wide = np.asarray(self.generator.normal(size=shape) * scale)
        if self.chance(0.2):
            wide = np.round(wide)  # ties, zeros and whole numbers
        if self.special:
            drawn = self.generator.choice(SPECIALS, shape)
            share = self.some((0.05, 0.3, 1.0))
            wide = np.where(self.generator.random(shape) < share, drawn, wide)
        with np.errstate(all="ignore"):
            return np.asarray(wide).astype(kind)

    def like(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with another one."""
        kept = list(shape[self.number(0, len(shape)) if self.chance(0.4) else 0 :])
        return tuple(1 if self.chance(0.2) else d for d in kept)
