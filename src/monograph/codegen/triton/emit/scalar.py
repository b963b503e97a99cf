"""The elements of a kernel as Triton expressions: blocks of numbers."""

from __future__ import annotations

from monograph.codegen.common import mathlib, types
from monograph.codegen.common.registers import Reg
from monograph.codegen.common.scalars import RegisterScalars
from monograph.codegen.triton.emit.arith import TritonArith
from monograph.codegen.triton.emit.writer import TYPES, Writer, literal
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16, f32, f64
from monograph.ops.scalar import Scalar

_FAST = {"exp": "tl.exp({})", "log": "tl.log({})", "sigmoid": "tl.sigmoid({})"}
"""Device instructions accurate to about 2^-21: enough for a result of 16 bits."""
_HALVES = {f16: "tl.float16", bf16: "tl.bfloat16"}


def stored(dtype: DType) -> str:
    """The LLVM name of the type that pointers to elements have."""
    if dtype in _HALVES:
        return "half" if dtype == f16 else "bfloat"
    return types.storage(dtype)


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
