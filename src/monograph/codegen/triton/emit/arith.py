"""Arithmetic on registers, written as Triton expressions.

`codegen.common` holds conversions between element types, integer edge cases and mathematical
functions, for both code generators.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.arith import Arith, Operand
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.writer import TYPES, Writer, unsigned

_PLAIN = {
    "fadd": "{} + {}",
    "fsub": "{} - {}",
    "fmul": "{} * {}",
    "fdiv": "tl.div_rn({}, {})",
    "frem": "functions.fmod({}, {})",
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "sdiv": "{} // {}",
    "srem": "{} % {}",
    "and": "{} & {}",
    "or": "{} | {}",
    "xor": "{} ^ {}",
    "shl": "{} << {}",
    "ashr": "{} >> {}",
}
_UNSIGNED = {"udiv": "//", "urem": "%", "lshr": ">>"}
_WRAPS = ("add", "sub", "mul", "shl")


class TritonArith(Arith):
    """Writes expressions; every register broadcasts against every other."""

    def __init__(self, w: Writer) -> None:
        super().__init__(w)
        self.w = w

    def op(self, name: str, x: Reg, y: Operand) -> Reg:
        other = self.operand(y, x)
        if name in _UNSIGNED:
            text = f"({unsigned(x)} {_UNSIGNED[name]} {unsigned(other)})"
            return self.w.set(x.type, f"{text}.to({TYPES[x.type]}, bitcast=True)")
        if name == "fdiv" and x.type == "double":
            return self.w.set(x.type, f"{x} / {other}")
        made = self.w.set(x.type, _PLAIN[name].format(x, other))
        return self._wrapped(made) if name in _WRAPS else made

    def _wrapped(self, x: Reg) -> Reg:
        """Sign-extend an integer of fewer than 8 bits in its byte."""
        if x.type not in ("i2", "i4"):
            return x
        spare = 8 - int(x.type[1:])
        return self.w.set(x.type, f"({x} << {spare}) >> {spare}")

    def select(self, condition: Reg, x: Operand, y: Operand) -> Reg:
        like = x if isinstance(x, Reg) else y
        assert isinstance(like, Reg)
        a, b = self.operand(x, like), self.operand(y, like)
        return self.w.set(like.type, f"tl.where({condition}, {a}, {b})")

    def convert(self, how: str, x: Reg, element: str) -> Reg:
        if x.element == element:
            return x
        kind = TYPES[element]
        if how == "bitcast":
            return self.w.set(element, f"{x}.to({kind}, bitcast=True)")
        if how == "trunc" and element == "i1":
            return self.w.set(element, f"({x} & 1) != 0")
        if how in ("zext", "uitofp") and x.type != "i1":
            return self.w.set(element, f"{unsigned(x)}.to({kind})")
        if how == "sext" and x.type == "i1":
            return self.w.set(element, f"-({x}.to({kind}))")
        made = self.w.set(element, f"{x}.to({kind})")
        return self._wrapped(made) if how == "trunc" else made

    def neg(self, x: Reg) -> Reg:
        return self.w.set(x.type, f"-{x}")

    def any(self, condition: Reg) -> Reg:
        return condition

    def each_lane(self, function: Callable[..., Reg], *operands: Reg) -> Reg:
        return function(*operands)

    def unless(self, rare: Reg, usual: Reg, otherwise: Callable[[], Reg]) -> Reg:
        return self.select(rare, otherwise(), usual)
