"""Writes the body of a Triton kernel: one assignment per line, each expression once.

Registers have LLVM element types (`codegen.common.registers`), so that code in terms of registers
serves both generators. Integers in registers are signed; an unsigned operation reads them as
unsigned first, as in LLVM. A register holds a block of numbers of the shape that its expression
broadcasts to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from monograph.codegen.common.registers import Reg
from monograph.ir.sizes import is_open

TYPES = {
    "i1": "tl.int1",
    "i2": "tl.int8",
    "i4": "tl.int8",
    "i8": "tl.int8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "half": "tl.float16",
    "bfloat": "tl.bfloat16",
    "float": "tl.float32",
    "double": "tl.float64",
}
"""Triton types of LLVM register types; i2 and i4 are kept wrapped in a byte."""

_FUNCTIONS = {
    "sqrt": "tl.sqrt_rn({})",
    "floor": "tl.floor({})",
    "ceil": "tl.ceil({})",
    "fabs": "tl.abs({})",
    "rint": "functions.nearbyint({})",
    "fmuladd": "tl.fma({}, {}, {})",
    "smin": "tl.minimum({}, {})",
    "smax": "tl.maximum({}, {})",
}


_BOUND = re.compile(r"(\w+(?:, \w+)*) (?:[-+*/|&^]|//|<<|>>)?= ")
"""Matches a line that assigns variables."""


@dataclass
class _Block:
    """The effects of a block's lines on the code outside of it."""

    reused: dict[str, None] = field(default_factory=dict)
    """Expressions that were computed before it."""
    bound: set[str] = field(default_factory=set)
    """Variables that it assigns."""


class Writer:
    """A kernel's body while it is being written."""

    converts_half = False
    """Elements of f16 are loaded and stored directly: no conversion by bits is needed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self._count = 0
        self._known: list[dict[str, str]] = [{}]
        self._blocks: list[_Block] = []

    def line(self, text: str) -> None:
        """Write a line; expressions of variables that it assigns are forgotten."""
        bound = _BOUND.match(text)
        for name in bound[1].split(", ") if bound else ():
            self._forget(name)
        self.lines.append("    " * self.depth + text)

    def name(self, stem: str = "v") -> str:
        """Return a new name."""
        assert stem != "p", "those are the kernel's pointers"
        self._count += 1
        return f"{stem}{self._count}"

    def let(self, text: str, stem: str = "v") -> str:
        """Return the name of an expression's value; equal expressions share a name."""
        if text.isidentifier():
            return text
        for depth, scope in enumerate(self._known):
            if text in scope:
                for block in self._blocks[depth:]:
                    block.reused[text] = None
                return scope[text]
        name = self.name(stem)
        self.lines.append("    " * self.depth + f"{name} = {text}")
        self._known[-1][text] = name
        return name

    def assign(self, name: str, text: str) -> None:
        """Assign a variable."""
        self.line(f"{name} = {text}")

    def _forget(self, name: str) -> None:
        word = re.compile(rf"\b{name}\b")
        for scope in self._known:
            for known in [t for t in scope if word.search(t)]:
                del scope[known]
        for block in self._blocks:
            block.bound.add(name)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write the lines of a loop or condition; their expressions are unknown after it."""
        self.line(f"{head}:")
        self.depth += 1
        self._known.append({})
        self._blocks.append(_Block())
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._known.pop()
        self.depth -= 1
        block = self._blocks.pop()
        if head.startswith(("for ", "while ")):
            stale = [t for t in block.reused if block.bound.intersection(re.findall(r"\w+", t))]
            assert not stale, f"the second turn of '{head}' would see the first one's {stale[0]}"

    # What registers are made of

    def set(self, type_: str, text: str) -> Reg:
        return Reg(self.let(text), type_)

    def number(self, number: float, element: str, lanes: int = 0) -> Reg:
        """A literal of an element type."""
        return Reg(literal(number, element), element)

    def intrinsic(self, stem: str, *arguments: Reg) -> Reg:
        """A function by its LLVM name."""
        x = arguments[0]
        if stem in ("umin", "umax"):
            how = "<" if stem == "umin" else ">"
            a, b = (unsigned(o) for o in arguments)
            return self.set(x.type, f"tl.where({a} {how} {b}, {arguments[0]}, {arguments[1]})")
        if stem == "abs":
            return self.set(x.type, f"tl.where({x} < 0, -{x}, {x})")
        if stem == "copysign":
            return self._copysign(*arguments)
        if stem == "sqrt" and x.type == "double":
            return self.set(x.type, f"tl.sqrt({x})")
        return self.set(x.type, _FUNCTIONS[stem].format(*arguments))

    def _copysign(self, x: Reg, sign: Reg) -> Reg:
        width = 64 if x.type == "double" else 32
        kind, top = f"tl.int{width}", literal(-(2 ** (width - 1)), f"i{width}")
        most = literal(2 ** (width - 1) - 1, f"i{width}")
        bits = f"({x}.to({kind}, bitcast=True) & {most})"
        other = f"({sign}.to({kind}, bitcast=True) & {top})"
        return self.set(x.type, f"({bits} | {other}).to({TYPES[x.type]}, bitcast=True)")

    def call(self, name: str, returns: str, *arguments: Reg) -> Reg:
        """A function of the device's mathematical library."""
        return self.set(returns, f"functions.{name}({', '.join(map(str, arguments))})")

    def compare(self, how: str, a: Reg, b: Reg) -> Reg:
        """A comparison by its LLVM name."""
        if how == "uno":
            return self.set("i1", f"({a} != {a}) | ({b} != {b})")
        sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[how[-2:]]
        if how in ("ult", "ule", "ugt", "uge"):
            return self.set("i1", f"{unsigned(a)} {sign} {unsigned(b)}")
        if how == "one":
            return self.set("i1", f"({a} < {b}) | ({a} > {b})")
        return self.set("i1", f"{a} {sign} {b}")


def literal(value: float | int, element: str) -> str:
    """Return the text of a number of an element type; it broadcasts against anything."""
    kind = TYPES[element]
    if is_open(value):
        return f"({value}).to({kind})"
    if element == "i1":
        return f"tl.full((), {int(bool(value))}, tl.int1)"
    if element.startswith("i"):
        width = int(element[1:])
        wrapped = int(value) & ((1 << width) - 1)
        return f"tl.full((), {wrapped - ((wrapped >> (width - 1)) << width)}, {kind})"
    number = float(value)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return f"tl.full((), {text}, {kind})"


def unsigned(x: Reg) -> str:
    """Return the expression of an integer register read as unsigned."""
    if x.type == "i1":
        return str(x)
    if x.type in ("i2", "i4"):
        return f"({x} & {(1 << int(x.type[1:])) - 1}).to(tl.uint8, bitcast=True)"
    return f"{x}.to(tl.u{TYPES[x.type][3:]}, bitcast=True)"


def power(n: int) -> int:
    """Return the least power of two that is not below a size."""
    return 1 << max(n - 1, 0).bit_length()
