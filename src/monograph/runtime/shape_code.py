"""Code for any shape, of any target: its open sizes, the shapes that fit it, its shape function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monograph.errors import InferError
from monograph.ir.memory import MAX_TENSOR_BYTES, count_elements
from monograph.ir.size_expressions import (
    LEAST,
    MOST,
    Most,
    SizeExpression,
    SizeFloor,
    Symbol,
)
from monograph.ir.size_guards import described
from monograph.ir.sizes import SizeScope, is_open
from monograph.runtime.executable import CompiledArtefact, Executable

Shapes = Mapping[str, tuple[int, ...]]


def open_shapes(
    declared: Mapping[str, Sequence[int | str]], given: Shapes, scope: SizeScope
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs with a symbol for each open dimension that can have one."""
    symbols: dict[tuple[str, int], int] = {}

    def size(dim: int | str, number: int) -> int:
        if isinstance(dim, int) or not LEAST <= number <= MOST:
            return number
        if (dim, number) not in symbols:
            # A model may work although a file gives one name to sizes that differ.
            others = sum(name == dim for name, _ in symbols)
            symbols[dim, number] = scope.symbol(f"{dim}.{others}" if others else dim, number)
        return symbols[dim, number]

    return {
        name: tuple(map(size, declared[name], shape)) if name in declared else shape
        for name, shape in given.items()
    }


def check_port(name: str, shape: Sequence[int], itemsize: int) -> None:
    """Raise an error for a tensor that is too large, as inference does for exact code."""
    nbytes = count_elements(shape) * itemsize
    if nbytes > MAX_TENSOR_BYTES:
        raise InferError(
            "a tensor is too large",
            expected=f"at most {MAX_TENSOR_BYTES:,} bytes",
            given=f"{name}{[*shape]} = {nbytes:,} bytes",
        )


@dataclass(frozen=True)
class ShapeFunction:
    """Computes everything that depends on open sizes, from the sizes of the inputs."""

    symbols: tuple[Symbol, ...]
    compute: Callable[..., tuple[int, ...]]

    def __call__(self, values: Mapping[Symbol, int]) -> tuple[int, ...]:
        return self.compute(*(values[s] for s in self.symbols))


def shape_function(symbols: Sequence[Symbol], wanted: Sequence[SizeExpression]) -> ShapeFunction:
    """Compile the computation of some expressions to one Python function."""
    names = {symbol: f"s{i}" for i, symbol in enumerate(symbols)}
    lines: list[str] = []
    known: dict[SizeFloor | Most, str] = {}

    def factor(f: Symbol | SizeFloor | Most) -> str:
        if isinstance(f, Symbol):
            return names[f]
        if f not in known:
            if isinstance(f, SizeFloor):
                text = f"({total(f.of)}) // ({total(f.by)})"
            else:
                text = f"max({', '.join(map(total, f.of))})"
            known[f] = name = f"t{len(known)}"
            lines.append(f"    {name} = {text}")
        return known[f]

    def total(e: SizeExpression) -> str:
        return " + ".join("*".join([str(c), *map(factor, p)]) for p, c in e.terms) or "0"

    results = ", ".join(map(total, wanted))
    text = f"def compute({', '.join(names.values())}):\n"
    text += "\n".join([*lines, f"    return ({results},)" if wanted else "    return ()"])
    scope: dict[str, Any] = {}
    exec(text, {"max": max}, scope)  # the text is made of numbers and names of our own
    return ShapeFunction(tuple(symbols), scope["compute"])


class ShapeCode(ABC):
    """The code of a model for all sizes for which its guards hold."""

    scope: SizeScope
    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of the inputs, some of whose sizes are open."""

    @property
    def guards(self) -> list[str]:
        """The guards as texts, without the mark of the compilation in the names of symbols."""
        texts = (f"{e} {described(g)}" for e, g in self.scope.guards.items())
        return [self.scope.unmarked(text) for text in texts]

    def bind(self, given: Shapes) -> dict[Symbol, int] | None:
        """Return the values of the symbols for inputs of these shapes; None if they do not fit."""
        values = self._values(given)
        return values if isinstance(values, dict) and self.scope.holds(values) else None

    def misfit(self, given: Shapes) -> str:
        """Return why inputs of these shapes need other code; "" if they do not."""
        values = self._values(given)
        found = values if isinstance(values, str) else self.scope.broken(values)
        return self.scope.unmarked(found or "")

    def _values(self, given: Shapes) -> dict[Symbol, int] | str:
        """Return the values of the symbols, or why shapes do not fit the inputs."""
        values: dict[Symbol, int] = {}
        if given.keys() != self.shapes.keys():
            return f"the inputs must be {', '.join(self.shapes)}"
        for name, shape in given.items():
            own = self.shapes[name]
            if len(own) != len(shape):
                return f"{name} must have rank {len(own)}"
            for axis, (size, number) in enumerate(zip(own, shape, strict=True)):
                if not is_open(size):
                    if size != number:
                        return f"dimension {axis} of {name} is {number}: must be {size}"
                    continue
                symbol = size.expression.terms[0][0][0]
                assert isinstance(symbol, Symbol)
                if not symbol.least <= number <= symbol.most:
                    return f"{symbol.name} is {number}: must be at least {symbol.least}"
                if values.setdefault(symbol, number) != number:
                    return f"{symbol.name} is {values[symbol]} and {number}: must be one size"
        return values

    @property
    def specialisations(self) -> int:
        """The number of programs compiled for sizes that data decided."""
        return 0

    def stored(self, seconds: float) -> CompiledArtefact | None:
        """Return what a file can hold of code that took this time to compile; None if nothing."""
        return None

    def adopt(self, stored: CompiledArtefact) -> None:  # noqa: B027 - a default
        """Take constants and object code from the file that holds them, before any run."""

    @abstractmethod
    def executable(self, values: Mapping[Symbol, int]) -> Executable:
        """Return what runs inputs of these sizes.

        Raises InferError if an input or output is too large.
        """
