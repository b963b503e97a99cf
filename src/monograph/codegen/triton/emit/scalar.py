"""Arithmetic on registers and scalars, written as Triton expressions."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common import mathlib, types
from monograph.codegen.common.registers import Arith, Operand, Reg
from monograph.codegen.common.scalars import RegisterScalars
from monograph.codegen.triton.emit.writer import TYPES, Writer, literal, unsigned
from monograph.codegen.triton.module.launch import stored
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16, f32, f64
from monograph.ops.scalar import Scalar

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


_FAST = {"exp": "tl.exp({})", "log": "tl.log({})", "sigmoid": "tl.sigmoid({})"}
"""Device instructions accurate to about 2^-21: enough for a result of 16 bits."""
_HALVES = {f16: "tl.float16", bf16: "tl.bfloat16"}


class TritonScalars(RegisterScalars):
    """Writes the ops' own lowering of an element as Triton expressions."""

    def __init__(self, w: Writer) -> None:
        self.w = w
        self.b = w
        self.a: TritonArith = TritonArith(w)

    def decoded(self, text: str, dtype: DType) -> Scalar:
        """Convert an expression from memory form to register form."""
        if dtype in _HALVES:
            return Scalar(self.w.set("float", f"{text}.to(tl.float32)"), dtype)
        return Scalar(types.decode(self.a, dtype, Reg(self.w.let(text), stored(dtype))), dtype)

    def encoded(self, x: Scalar) -> str:
        """Convert an element to memory form."""
        if x.dtype in _HALVES:
            return f"{x.reg}.to({_HALVES[x.dtype]})"
        return str(types.encode(self.a, x.dtype, x.reg))

    def literal(self, number: float | int, dtype: DType, lanes: int = 0) -> Scalar:
        element = types.register(dtype)
        return Scalar(Reg(self.w.let(literal(number, element), "c"), element), dtype, number)

    def _same_lanes(self, *scalars: Scalar) -> list[Reg]:
        return [x.reg for x in scalars]

    def integer_power(self, x: Scalar, y: Scalar) -> Scalar:
        """x^y by repeated squaring; a negative power truncates towards zero."""
        a, kind = self.a, x.reg.type
        result, square, rest = a.number(1, x.reg), x.reg, y.reg
        for _ in range(min(int(kind[1:]), 64)):
            odd = a.compare("ne", a.op("and", rest, 1), 0)
            result = a.select(odd, a.op("mul", result, square), result)
            square, rest = a.op("mul", square, square), a.op("lshr", rest, 1)
        if not x.dtype.is_signed:
            return Scalar(result, x.dtype)
        odd = a.compare("ne", a.op("and", y.reg, 1), 0)
        alternating = a.select(odd, a.number(-1, x.reg), 1)
        whole = a.select(a.compare("eq", x.reg, -1), alternating, a.number(0, x.reg))
        inverse = a.select(a.compare("eq", x.reg, 1), 1, whole)
        return Scalar(a.select(a.compare("slt", y.reg, 0), inverse, result), x.dtype)

    def _function(self, name: str, x: Scalar) -> Scalar:
        if x.dtype not in (f32, f64) and name in _FAST:
            return Scalar(self.w.set("float", _FAST[name].format(x.reg)), x.dtype)
        return Scalar(mathlib.function(self.a, name, x.reg), x.dtype)

    def cast(self, x: Scalar, to: DType, saturate: bool = True, rounding: str = "up") -> Scalar:
        if x.dtype == to:
            return x
        if to in _HALVES and x.dtype in (f32, f64, *_HALVES):
            source = x.reg if x.dtype != f64 or to == bf16 else types.to_odd_single(self.a, x.reg)
            text = f"{source}.to({_HALVES[to]}).to(tl.float32)"
            return Scalar(self.w.set("float", text), to)
        return super().cast(x, to, saturate, rounding)


def register_type(dtype: DType) -> str:
    """The Triton type of an element in a register."""
    return TYPES[types.register(dtype)]


def memory_type(dtype: DType) -> str:
    """The Triton type of an element in memory."""
    return TYPES[stored(dtype)]
