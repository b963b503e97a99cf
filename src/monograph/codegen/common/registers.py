"""Registers, and the interface through which both code generators write instructions.

A register has the name that the text of a kernel gives it and an LLVM type. The Triton writer uses
the same type names, so that code in terms of registers serves both generators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

FLOATS = ("half", "bfloat", "float", "double")


@dataclass(frozen=True)
class Reg:
    """A value in a register (or a literal): its LLVM name and type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name

    @property
    def lanes(self) -> int:
        """Elements of a vector; 0 for a scalar."""
        return int(self.type[1:].split(" ")[0]) if self.type.startswith("<") else 0

    @property
    def element(self) -> str:
        return self.type[1:-1].split(" x ")[1] if self.type.startswith("<") else self.type


def vector(lanes: int, element: str) -> str:
    """The type of so many lanes; the plain element type for none."""
    return f"<{lanes} x {element}>" if lanes else element


class Emitter(Protocol):
    """Writes single instructions into the body of a kernel."""

    @property
    def converts_half(self) -> bool:
        """True where the target converts between f16 and f32 by an instruction."""
        ...

    def set(self, type_: str, text: str) -> Reg:
        """Return a new register with the result of an instruction."""
        ...

    def number(self, number: float, element: str, lanes: int = 0) -> Reg:
        """Return a literal of an element type."""
        ...

    def intrinsic(self, stem: str, *arguments: Reg) -> Reg:
        """Call an intrinsic by its LLVM name; operands and result have one type."""
        ...

    def call(self, name: str, returns: str, *arguments: Reg) -> Reg:
        """Call a function of the mathematical library."""
        ...

    def compare(self, how: str, a: Reg, b: Reg) -> Reg:
        """Compare two registers by the LLVM name of the comparison."""
        ...
