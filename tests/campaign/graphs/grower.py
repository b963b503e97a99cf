"""A random ONNX graph while it grows: values with their data for every run of the case.

Every node is computed by the reference as it is added, for the shapes and data of all runs. One
that the reference refuses, that grows too large or that leaves no plain numbers is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

import monograph
from monograph.errors import MonographError
from tests.campaign.case import Case, Feeds, element_type, finish, tensor
from tests.campaign.draw import Draw

LARGEST = 1e4
MOST_ELEMENTS = 3000
MOST_OUTPUTS = 5
Dims = Sequence[int | str]


class DroppedError(Exception):
    """A move that does not fit here."""


@dataclass(frozen=True, eq=False)
class Held:
    """A value of the graph, with what it is in every run."""

    name: str
    arrays: tuple[np.ndarray, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.arrays[0].dtype

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes; None for one that differs between runs."""
        columns = zip(*(x.shape for x in self.arrays), strict=True)
        return tuple(c[0] if len(set(c)) == 1 else None for c in columns)

    @property
    def least(self) -> tuple[int, ...]:
        """The smallest size of each dimension."""
        return tuple(min(c) for c in zip(*(x.shape for x in self.arrays), strict=True))


Operand = Held | np.ndarray | None


@dataclass
class Grower:
    """A graph that grows by random moves."""

    d: Draw
    sizes: dict[str, tuple[int, ...]]
    """Open dimensions, with their size in each run."""
    runs: int
    opset: int = 21
    pool: list[Held] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    infos: list[onnx.ValueInfoProto] = field(default_factory=list)
    initialisers: list[onnx.TensorProto] = field(default_factory=list)
    feeds: list[Feeds] = field(default_factory=list)
    counter: int = 0

    def name(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    # Leaves -------------------------------------------------------------------------------------

    def input(self, kind: Any, dims: Dims, make: Callable[..., np.ndarray] | None = None) -> Held:
        """A graph input; a dimension is a size, or the name of an open one."""
        name = self.name("x")
        arrays = []
        for run in range(self.runs):
            shape = tuple(n if isinstance(n, int) else self.sizes[n][run] for n in dims)
            arrays.append(self.d.array(kind, shape) if make is None else make(shape, run))
        self.infos.append(helper.make_tensor_value_info(name, element_type(arrays[0]), list(dims)))
        self.feeds = self.feeds or [{} for _ in range(self.runs)]
        for feeds, x in zip(self.feeds, arrays, strict=True):
            feeds[name] = x
        held = Held(name, tuple(arrays))
        self.pool.append(held)
        return held

    def constant(self, x: np.ndarray) -> str:
        name = self.name("c")
        self.initialisers.append(tensor(x, name))
        return name

    # Choices ------------------------------------------------------------------------------------

    def pick(self, fits: Callable[[Held], bool] = lambda h: True) -> Held:
        """A value that is there already, recent ones more often."""
        found = [h for h in self.pool if fits(h)]
        if not found:
            raise DroppedError("nothing fits")
        return self.d.some(found[-3:] if self.d.chance(0.6) else found)

    def floats(self, least: int = 0, most: int = 9) -> Held:
        return self.pick(lambda h: h.is_float and least <= h.rank <= most)

    # Growth -------------------------------------------------------------------------------------

    def add(self, op: str, *operands: Operand, outputs: int = 1, **attributes: Any) -> Held:
        """Adds a node; its first result."""
        return self.add_all(op, *operands, outputs=outputs, **attributes)[0]

    def add_all(
        self, op: str, *operands: Operand, outputs: int = 1, **attributes: Any
    ) -> list[Held]:
        """Adds a node; all its results."""
        names, arrays = [], {}
        kept = len(self.initialisers)
        for x in operands:
            if x is None:
                names.append("")
            elif isinstance(x, Held):
                names.append(x.name)
                arrays[x.name] = x.arrays
            else:
                names.append(self.constant(x))
        results = [self.name("v") for _ in range(outputs)]
        node = helper.make_node(op, names, results, **attributes)
        try:
            made = self._compute(node, arrays, self.initialisers[kept:])
        except DroppedError:
            del self.initialisers[kept:]
            raise
        self.nodes.append(node)
        held = [Held(n, m) for n, m in zip(results, made, strict=True)]
        self.pool.extend(held)
        return held

    def _compute(
        self,
        node: onnx.NodeProto,
        arrays: dict[str, tuple[np.ndarray, ...]],
        constants: list[onnx.TensorProto],
    ) -> list[tuple[np.ndarray, ...]]:
        """The results of a node in every run, by the reference."""
        infos = [
            helper.make_tensor_value_info(n, element_type(a[0]), [f"{n}_{i}" for i in
                                                                  range(a[0].ndim)])
            for n, a in arrays.items()
        ]  # fmt: skip
        model = finish([node], infos, node.output, constants, self.opset)
        made: list[list[np.ndarray]] = []
        try:
            session = monograph.load(model, "reference")
            with np.errstate(all="ignore"):
                for run in range(self.runs):
                    feeds = {n: a[run] for n, a in arrays.items()}
                    made.append([np.asarray(y) for y in session.run(feeds)])
        except MonographError as e:
            raise DroppedError(str(e)) from e
        results = [tuple(column) for column in zip(*made, strict=True)]
        for arrays_of in results:
            self._check(arrays_of)
        return results

    @staticmethod
    def _check(arrays: tuple[np.ndarray, ...]) -> None:
        if len({x.ndim for x in arrays}) > 1 or arrays[0].ndim > 6:
            raise DroppedError("no fixed rank")
        for x in arrays:
            if x.size > MOST_ELEMENTS:
                raise DroppedError("too large")
            if x.dtype.kind == "f":
                wide = np.abs(x.astype(np.float64))
                if not np.isfinite(wide).all() or wide.max(initial=0) > LARGEST:
                    raise DroppedError("no plain numbers")

    def grow(self, moves: int, kinds: Sequence[Callable[[Grower], Any]]) -> None:
        """Makes so many moves, or as many as work out."""
        made = 0
        for _ in range(4 * moves):
            try:
                self.d.some(kinds)(self)
                made += 1
            except DroppedError:
                continue
            if made == moves:
                return

    def case(self, kind: str, seed: int, number: int) -> Case:
        """Return what has grown: values that nothing reads are outputs, and a few others."""
        read = {n for node in self.nodes for n in node.input}
        for node in self.nodes:
            for a in node.attribute:
                read |= {n for m in a.g.node for n in m.input}
        made = [h for h in self.pool if any(h.name in n.output for n in self.nodes)]
        if not made:
            made = [self.add("Neg", self.floats())]
        ends = [h for h in made if h.name not in read][-MOST_OUTPUTS:]
        ends += [h for h in made if h not in ends and self.d.chance(0.08)]
        nodes, used = needed(self.nodes, [h.name for h in ends])
        infos = [i for i in self.infos if i.name in used]
        constants = [t for t in self.initialisers if t.name in used]
        model = finish(nodes, infos, [h.name for h in ends], constants, self.opset)
        for output, held in zip(model.graph.output, ends, strict=True):
            info = helper.make_tensor_value_info(
                held.name, element_type(held.arrays[0]), [f"{held.name}_{i}" for i in
                                                          range(held.rank)]
            )  # fmt: skip
            output.CopyFrom(info)
        names = {i.name for i in infos}
        runs = tuple({n: x for n, x in f.items() if n in names} for f in self.feeds)
        return Case(kind, seed, number, model, runs)


def needed(
    nodes: Sequence[onnx.NodeProto], ends: Sequence[str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that some values need, and the names of all that they read."""
    wanted, kept = set(ends), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
            for a in node.attribute:
                wanted |= {n for m in a.g.node for n in m.input}
    return kept[::-1], wanted
