"""A part of a program whose sizes data decide: compiled once, for all sizes.

The sizes that a run finds are open sizes of the code, as those of inputs are in code for any shape
(see `monograph.ir.sizes`). A part that has no such code is compiled for the sizes of each run.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from monograph.errors import InferError, MonographError
from monograph.frontend.onnx.size_search import known_sizes
from monograph.ir import Dim, Graph, Input, TensorType, Type, Value, constant, from_numpy
from monograph.ir.size_expressions import (
    LEAST,
    MOST,
    SizeExpression,
    Symbol,
    from_number,
    substitute,
)
from monograph.ir.sizes import SizeScope, is_open
from monograph.program.dynamic.resize import Change, resized_type
from monograph.runtime.executable import Executable, constant_bytes
from monograph.runtime.shape_code import ShapeCode, Shapes

MOST_VARIANTS = 8
"""The most variants of the code of a part; beyond, each set of sizes has exact code."""
MOST_BOUND = 1024
"""The most sets of sizes for which a part keeps what binds its code to them."""
CONSTANT_BYTES = 1 << 30
"""The bytes that the constants of exact code may take; one program is always kept."""
SMALL = 64
"""The most numbers of a value that become open sizes."""

Sizes: TypeAlias = Mapping[Symbol, int]
"""The values of the open sizes of the program that a part belongs to."""
_log = logging.getLogger("monograph")


class PartCompiler(Protocol):
    """Compiles a part, for one set of sizes or for all."""

    def exact(self, graph: Graph) -> Executable:
        """Compile a graph of known sizes."""

    def open_code(self, graph: Graph, scope: SizeScope, shapes: Shapes) -> ShapeCode | None:
        """Compile a graph with open sizes; None if the target has no such code.

        shapes: the open sizes that each set of numbers gives.
        """


@dataclass(frozen=True)
class Formal:
    """An operand of a part."""

    name: str
    type: Type
    elements: tuple[Dim, ...] | None = None
    """Of an operand whose data decide shapes, what is known of its elements; None for others."""

    def numbers(self, data: Any) -> tuple[tuple[Dim, int], ...]:
        """Return the numbers of the operand that may be open sizes, with what names them."""
        if self.elements is not None:
            found = zip(self.elements, np.asarray(data).reshape(-1).tolist(), strict=True)
        elif isinstance(self.type, TensorType) and isinstance(data, np.ndarray):
            dims = self.type.shape or tuple(f"{self.name}.{i}" for i in range(data.ndim))
            found = zip(dims, data.shape, strict=True)
        else:
            return ()
        return tuple((d, n) for d, n in found if isinstance(d, str))

    def rest(self, data: Any, decides: bool) -> Any:
        """Return what distinguishes code besides these numbers."""
        if not isinstance(self.type, TensorType):
            return str(self.type)
        plain = np.asarray(data)
        if decides and self.elements is None:
            return (plain.shape, plain.dtype.str, plain.tobytes())
        return (plain.ndim, plain.dtype.str)


def formal(name: str, value: Value, decides: bool) -> Formal:
    """Return the operand of a part for a value; decides: its data decide shapes."""
    if not decides:
        return Formal(name, value.type)
    static = isinstance(value.type, TensorType) and value.type.is_static
    if not static or not value.dtype.is_integer or value.tensor.size > SMALL:
        return Formal(name, value.type)
    found = known_sizes(value) or ("?",) * value.tensor.size
    named = (f"{name}[{i}]" if d == "?" else d for i, d in enumerate(found))
    return Formal(name, value.type, tuple(named))


@dataclass
class _Group:
    """Code for operands that differ in open sizes only."""

    codes: list[ShapeCode] = field(default_factory=list)
    exact_reason: str = ""
    """The reason why there is no code for all sizes."""


class OpenPart:
    """The code of a part. The caller makes sure that one thread asks at once."""

    def __init__(
        self,
        formals: Sequence[Formal],
        decides: Sequence[bool],
        build: Callable[[tuple[Value, ...], Change], Graph],
        compiler: PartCompiler,
        kept: int,
        grows: bool = False,
    ) -> None:
        """kept: the most programs for one set of sizes that are kept. grows: sizes are expected to
        grow, so that one of 1 is not taken for a constant.
        """
        self.kept = kept
        self._grows = grows
        self.compiled = 0
        """The number of compilations."""
        self._formals = tuple(zip(formals, decides, strict=True))
        self._build = build
        self._compiler = compiler
        self._groups: OrderedDict[tuple[Any, ...], _Group] = OrderedDict()
        self._bound: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._exact: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._last: dict[int, Executable] = {}
        """The last executable of each code for all sizes."""
        self._gone = 0
        self._found: tuple[tuple[Any, ...], Executable] | None = None
        """The key and the result of the last call."""

    def find(self, data: Sequence[Any], sizes: Sizes) -> Executable:
        """Return what runs on these operands; sizes: those of the program around the part."""
        key = (*map(_key, self._formals, data), *sizes.values())
        if self._found is not None and self._found[0] == key:
            return self._found[1]
        found = self._bound.get(key) or self._exact.get(key)
        if found is None:
            found = self._find(key, data, sizes)
        else:
            kept = self._bound if key in self._bound else self._exact
            kept.move_to_end(key)
        self._found = key, found
        return found

    def _find(self, key: tuple[Any, ...], data: Sequence[Any], sizes: Sizes) -> Executable:
        rest = tuple(f.rest(x, d) for (f, d), x in zip(self._formals, data, strict=True))
        group = self._groups.setdefault(rest, _Group())
        self._groups.move_to_end(rest)
        while len(self._groups) > self.kept:
            _, old = self._groups.popitem(last=False)
            for code in old.codes:
                self._last.pop(id(code), None)
                self._gone += code.specialisations
            self._bound.clear()
        named = {f.name: f.numbers(x) for (f, _), x in zip(self._formals, data, strict=True)}
        named = {name: numbers for name, numbers in named.items() if numbers}
        numbers = {name: tuple(n for _, n in pairs) for name, pairs in named.items()}
        numbers["sizes"] = tuple(sizes.values())
        made = self._open(group, numbers)
        ones = any(1 in given for given in numbers.values())
        if made is None and self._grows and ones and not group.codes:
            made = self._compile_open(group, data, named, numbers, sizes, least=1)
        if made is None and not group.exact_reason and len(group.codes) < MOST_VARIANTS:
            made = self._compile_open(group, data, named, numbers, sizes, least=LEAST)
        if made is not None:
            self._bound[key] = made
            while len(self._bound) > MOST_BOUND:
                self._bound.popitem(last=False)
            return made
        made = self._exact[key] = self._compile_exact(data, named, sizes)
        self._forget()
        return made

    def _open(self, group: _Group, numbers: Shapes) -> Executable | None:
        for code in group.codes:
            values = code.bind(numbers)
            if values is not None:
                try:
                    made = self._last[id(code)] = code.executable(values)
                except InferError:
                    return None
                return made
        return None

    def _compile_open(
        self,
        group: _Group,
        data: Sequence[Any],
        named: Mapping[str, tuple[tuple[Dim, int], ...]],
        numbers: Shapes,
        sizes: Sizes,
        least: int,
    ) -> Executable | None:
        """Compile code for these numbers and others; None if there is none.

        least: the least number that becomes an open size. The code for one of 1 is made for more,
        so it may not fit.
        """
        scope = SizeScope(1)
        symbols: dict[tuple[Dim, int], int] = {}

        def size(name: Dim, number: int) -> int:
            if not least <= number <= MOST:
                return number
            if (name, number) not in symbols:
                symbols[name, number] = scope.symbol(str(name), max(number, LEAST))
            return symbols[name, number]

        shapes = {name: tuple(size(d, n) for d, n in pairs) for name, pairs in named.items()}
        outer = {s: size(f"{s.name}", n) for s, n in sizes.items()}
        shapes["sizes"] = tuple(outer.values())
        try:
            graph = self._graph(data, shapes, _changed(outer, scope))
            code = self._compiler.open_code(graph, scope, shapes)
        except InferError:
            return None  # sizes that the part cannot take, as exact code will tell
        except MonographError as e:
            if least < LEAST:
                return None
            _log.info("a part is compiled for each set of sizes: %s", e)
            group.exact_reason = e.message
            return None
        if code is None:
            group.exact_reason = "the target has no code for any size"
            return None
        self.compiled += 1
        group.codes.append(code)
        made = self._open(group, numbers)
        if least == LEAST:
            assert made is not None, "code is valid for the sizes that it was compiled for"
        return made

    def _compile_exact(
        self,
        data: Sequence[Any],
        named: Mapping[str, tuple[tuple[Dim, int], ...]],
        sizes: Sizes,
    ) -> Executable:
        shapes = {name: tuple(n for _, n in pairs) for name, pairs in named.items()}
        graph = self._graph(data, shapes, _changed(sizes, SizeScope()))
        self.compiled += 1
        return self._compiler.exact(graph)

    def _graph(self, data: Sequence[Any], shapes: Shapes, change: Change) -> Graph:
        """Return the graph of the part for operands with these numbers."""
        arguments = []
        for (formal_, decides), x in zip(self._formals, data, strict=True):
            own = iter(shapes.get(formal_.name, ()))
            if formal_.elements is not None:
                listed = [_sized(d, own, change) for d in formal_.elements]
                given = np.array(listed, object).reshape(np.shape(x))
                arguments.append(constant(given, from_numpy(np.asarray(x).dtype)))
            elif decides:
                arguments.append(constant(x))
            else:
                arguments.append(Input(formal_.name, _type(formal_.type, x, own, change))())
        return self._build(tuple(arguments), change)

    def _forget(self) -> None:
        while len(self._exact) > self.kept or (
            len(self._exact) > 1 and constant_bytes(self._exact.values()) > CONSTANT_BYTES
        ):
            _, gone = self._exact.popitem(last=False)
            self._gone += gone.specialisations

    @property
    def executables(self) -> list[Executable]:
        """The executables that are kept: of code for all sizes, those of the last sizes."""
        return [*self._last.values(), *self._exact.values()]

    @property
    def specialisations(self) -> int:
        """The number of programs compiled for sizes that data decided, inside parts too."""
        codes = (code for group in self._groups.values() for code in group.codes)
        inside = sum(c.specialisations for c in codes)
        inside += sum(e.specialisations for e in self._exact.values())
        return self.compiled + self._gone + inside


def _key(formal_: tuple[Formal, bool], data: Any) -> Any:
    """Return what of an operand decides the executable."""
    dense = data.__class__ is np.ndarray
    if not formal_[1]:
        return data.shape if dense else None
    plain = data if dense else np.asarray(data)
    return (plain.shape, plain.dtype.num, plain.tobytes())


def _type(declared: Type, data: Any, own: Any, change: Change) -> Type:
    """Return the type of an input of a part: its sizes are the next of `own` where data decide."""
    if not isinstance(declared, TensorType) or not isinstance(data, np.ndarray):
        made: Type = resized_type(declared, change)
        return made
    dims = declared.shape or ("?",) * data.ndim
    shape = tuple(_sized(d, own, change) for d in dims)
    return TensorType(from_numpy(data.dtype), shape)


def _sized(dim: Dim, own: Any, change: Change) -> Dim:
    """Return a size as the part has it: the next of `own` where data decide it."""
    if isinstance(dim, str):
        found: Dim = next(own)
        return found
    return change(dim) if is_open(dim) else dim


def _changed(outer: Mapping[Symbol, int], scope: SizeScope) -> Change:
    """Return what replaces the open sizes of the program around a part."""
    values: dict[Symbol, SizeExpression] = {
        s: n.expression if is_open(n) else from_number(n) for s, n in outer.items()
    }
    return lambda n: scope.sized(substitute(n.expression, values)) if is_open(n) else n
