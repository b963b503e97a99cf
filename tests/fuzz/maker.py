"""A random graph while it grows: values with their data, and choices among them.

Every value is computed as it is made. One that overflows, or has no numbers at all, is dropped:
rewrites that reassociate promise nothing about those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monograph.errors import MonographError
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype, unpack
from monograph.ir.evaluate import apply
from monograph.ops.elementwise import (
    Neg,
)

SIZES = (1, 2, 2, 3, 4, 4, 6, 8)
MOST_ELEMENTS = 768
LARGEST = 1e4
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e-5)


@dataclass
class Maker:
    """A graph that grows by random moves."""

    generator: np.random.Generator
    float_type: str = "f32"
    pool: list[tuple[Value, np.ndarray]] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)

    # Choices -----------------------------------------------------------------------------------

    def some(self, options: Sequence[Any]) -> Any:
        return options[int(self.generator.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = int(self.generator.integers(1, 5)) if rank is None else rank
        return tuple(int(self.some(SIZES)) for _ in range(rank))

    def pick(self, wanted: Callable[[TensorType], bool] = lambda t: True) -> Value:
        """A value that is there already, recent ones more often; a new input where none fits."""
        fits = [v for v, _ in self.pool if wanted(v.tensor)]
        if not fits:
            for _ in range(50):
                made = TensorType(dtype(self.float_type), self.shape())
                if wanted(made):
                    return self.input(made)
            raise MonographError("nothing fits")
        if self.chance(0.6):
            fits = fits[-4:]
        return self.some(fits)

    def pick_float(self, least_rank: int = 0) -> Value:
        return self.pick(lambda t: t.dtype.is_float and t.rank >= least_rank)

    # Leaves ------------------------------------------------------------------------------------

    def input(self, type_: TensorType, data: Any = None) -> Value:
        name = f"x{len(self.inputs)}"
        value = Input(name, type_)()
        if data is None:
            data = self.numbers(type_)
        self.inputs.append(value)
        self.feeds[name] = data
        self.pool.append((value, data))
        return value

    def numbers(self, type_: TensorType) -> np.ndarray:
        if type_.dtype.is_float:
            data = self.generator.normal(size=type_.static)
        else:
            data = self.generator.integers(0, 2, type_.static)
        return np.asarray(data).astype(type_.dtype.numpy)

    def weights(self, *shape: int, like: Value) -> Value:
        """A constant whose products keep their scale."""
        fan = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        data = self.generator.normal(size=shape) / math.sqrt(max(1, fan))
        return constant(data, like.dtype)

    def operand(self, like: Value) -> Value:
        """A constant that broadcasts with a value: a special number, or one per element of axes."""
        shape = like.tensor.static
        if self.chance(0.4):
            return constant(np.full((1,) * int(self.generator.integers(2)), self.some(NUMBERS)),
                            like.dtype)  # fmt: skip
        cut = int(self.generator.integers(0, len(shape) + 1))
        kept = tuple(d if self.chance(0.6) else 1 for d in shape[cut:])
        return constant(self.generator.normal(size=kept), like.dtype)

    # Growth ------------------------------------------------------------------------------------

    def add(self, value: Value) -> Value:
        """Computes a value and all below it that is new; keeps what has plain numbers."""
        known = dict(self.pool)
        stack = [value]
        while stack:
            top = stack[-1]
            missing = [v for v in top.inputs if v not in known]
            if top in known:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                known[top] = apply(top, [known[v] for v in top.inputs])
                stack.pop()
        data = known[value]
        self.check(value, data)
        self.pool.append((value, data))
        return value

    def add_results(self, value: Value) -> None:
        """As `add`, for an op that may have several results."""
        items = (value,) if isinstance(value.type, TensorType) else unpack(value)
        for item in items:
            self.add(item)

    def check(self, value: Value, data: Any) -> None:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            raise MonographError("no static tensor")
        if value.type.size > MOST_ELEMENTS:
            raise MonographError("too large")
        if value.dtype.is_float:
            wide = np.abs(np.asarray(data).astype(np.float64))
            if not np.isfinite(wide).all() or wide.max(initial=0) > LARGEST:
                raise MonographError("not plain numbers")

    def grow(self, moves: int, kinds: Sequence[Callable[[Maker], None]]) -> None:
        made = 0
        for _ in range(4 * moves):
            try:
                self.some(kinds)(self)
                made += 1
            except MonographError:
                continue
            if made == moves:
                return

    def graph(self) -> Graph:
        """The values that nothing reads, and a few others, as outputs."""
        values = [v for v, _ in self.pool if not isinstance(v.op, Input)]
        if not values:
            values = [self.add(Neg()(self.pick_float()))]
        read = {i for v in values for i in _below(v)}
        ends = list(dict.fromkeys(v for v in values if v not in read))
        ends = ends[-6:]
        ends += [v for v in dict.fromkeys(values) if v not in ends and self.chance(0.08)]
        outputs = tuple((f"y{i}", v) for i, v in enumerate(ends))
        used = set(Graph(tuple(self.inputs), outputs).values)
        inputs = tuple(v for v in self.inputs if v in used)
        self.feeds = {v.op.label: self.feeds[v.op.label] for v in inputs}  # type: ignore[attr-defined]
        graph = Graph(inputs, outputs)
        origins = {v: f"{v.op.name}_{i}" for i, v in enumerate(graph.values)
                   if not isinstance(v.op, Input)}  # fmt: skip
        return Graph(inputs, outputs, "random", origins)


def _below(value: Value) -> set[Value]:
    seen: set[Value] = set()
    stack = list(value.inputs)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack.extend(v.inputs)
    return seen
