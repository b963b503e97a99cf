"""Arithmetic, comparison, logic and casts, one element at a time."""

from __future__ import annotations

from functools import reduce

import onnx

from monograph.frontend.onnx.convert.common import cast, scalar
from monograph.frontend.onnx.dtypes import from_onnx
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import DType, Op, Value
from monograph.ir.dtype import f64, i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.cast import BitCast, Cast

_UNARY: dict[str, type[Op]] = {
    "Abs": ew.Abs, "Acos": ew.Acos, "Acosh": ew.Acosh, "Asin": ew.Asin, "Asinh": ew.Asinh,
    "Atan": ew.Atan, "Atanh": ew.Atanh, "Ceil": ew.Ceil, "Cos": ew.Cos, "Cosh": ew.Cosh,
    "Erf": ew.Erf, "Exp": ew.Exp, "Floor": ew.Floor, "Log": ew.Log, "Neg": ew.Neg, "Not": ew.Not,
    "Round": ew.Round, "Sigmoid": ew.Sigmoid, "Sign": ew.Sign, "Sin": ew.Sin, "Sinh": ew.Sinh,
    "Sqrt": ew.Sqrt, "Tan": ew.Tan, "Tanh": ew.Tanh, "IsNaN": ew.IsNan, "BitwiseNot": ew.Not,
}  # fmt: skip
_BINARY: dict[str, type[Op]] = {
    "Add": ew.Add, "Sub": ew.Sub, "Mul": ew.Mul, "Div": ew.Div, "And": ew.And, "Or": ew.Or,
    "Xor": ew.Xor, "Less": ew.Less, "LessOrEqual": ew.LessEqual, "Equal": ew.Equal,
    "BitwiseAnd": ew.And, "BitwiseOr": ew.Or, "BitwiseXor": ew.Xor,
}  # fmt: skip


@converter(*_UNARY)
def unary(n: Node) -> Value:
    return _UNARY[n.op_type]()(n.input(0))


def operands(n: Node) -> tuple[Value, Value]:
    """Return both operands, aligned for numpy broadcasting.

    Before opset 7 the second operand was broadcast only on request (`broadcast`), with its first
    dimension at `axis` of the first operand.
    """
    x, y = n.input(0), n.input(1)
    if n.opset >= 7 or not n.attr_flag("broadcast") or not n.has("axis"):
        return x, y
    axis = n.attr_int("axis")
    start = axis + x.tensor.rank if axis < 0 else axis
    trailing = x.tensor.rank - start - y.tensor.rank
    if not 0 <= start <= x.tensor.rank or trailing < 0:
        n.fail("the second operand does not fit at `axis`", expected=x.type, given=y.type)
    return x, sh.Unsqueeze(tuple(range(-trailing, 0)))(y) if trailing else y


@converter(*_BINARY)
def binary(n: Node) -> Value:
    return _BINARY[n.op_type]()(*operands(n))


@converter("Greater", "GreaterOrEqual")
def greater(n: Node) -> Value:
    """Convert x > y to y < x, so that rules match one form."""
    x, y = operands(n)
    return (ew.Less() if n.op_type == "Greater" else ew.LessEqual())(y, x)


@converter("Sum", "Max", "Min")
def variadic(n: Node) -> Value:
    op = {"Sum": ew.Add(), "Max": ew.Max(), "Min": ew.Min()}[n.op_type]
    return reduce(op, _at_least_one(n))


@converter("Mean")
def mean(n: Node) -> Value:
    total = reduce(ew.Add(), _at_least_one(n))
    return ew.Div()(total, scalar(len(n.inputs), total)) if len(n.inputs) > 1 else total


def _at_least_one(n: Node) -> tuple[Value, ...]:
    if not n.inputs:
        n.fail("at least one input is needed")
    return n.required()


@converter("Reciprocal")
def reciprocal(n: Node) -> Value:
    return ew.Div()(scalar(1, n.input(0)), n.input(0))


@converter("Mod")
def mod(n: Node) -> Value:
    """Convert Mod. ONNX requires `fmod` for floats, so a float without it means the same."""
    x = n.input(0)
    return ew.Mod(truncated=n.attr_flag("fmod") or x.dtype.is_float)(x, n.input(1))


@converter("Mod", since=28)
def mod_28(n: Node) -> Value:
    """Convert Mod; floats may take the sign of the divisor too."""
    return ew.Mod(truncated=n.attr_flag("fmod"))(n.input(0), n.input(1))


@converter("Pow")
def power(n: Node) -> Value:
    """Convert Pow. The result has the type of x, so another exponent is cast to it first."""
    x, y = operands(n)
    if x.dtype == y.dtype:
        return ew.Pow()(x, y)
    if x.dtype.is_float:
        return ew.Pow()(x, cast(y, x.dtype))
    # A type that holds both operands: the exponent may not fit the type of x.
    wide = f64 if y.dtype.is_float else i64
    return cast(ew.Pow()(cast(x, wide), cast(y, wide)), x.dtype)


@converter("BitShift")
def bit_shift(n: Node) -> Value:
    direction = n.attr_string("direction")
    if direction not in ("LEFT", "RIGHT"):
        n.fail("unknown direction", expected="LEFT or RIGHT", given=direction)
    op = ew.ShiftLeft() if direction == "LEFT" else ew.ShiftRight()
    return op(n.input(0), n.input(1))


@converter("IsInf")
def is_inf(n: Node) -> Value:
    positive, negative = n.attr_flag("detect_positive", True), n.attr_flag("detect_negative", True)
    return ew.IsInf(positive, negative)(n.input(0))


@converter("Where")
def where(n: Node) -> Value:
    return ew.Where()(n.input(0), n.input(1), n.input(2))


def _cast(n: Node, to: DType) -> Value:
    x = n.input(0)
    if x.dtype == to:
        return x
    return Cast(to, n.attr_flag("saturate", True), n.attr_string("round_mode", "up"))(x)


@converter("Cast")
def cast_by_name(n: Node) -> Value:
    """Convert Cast of opsets up to 5, which name the type by a string."""
    name = n.attr_string("to").upper()
    if name not in onnx.TensorProto.DataType.keys():  # noqa: SIM118 (a protobuf enum is no mapping)
        n.fail("no such element type", given=name)
    return _cast(n, from_onnx(onnx.TensorProto.DataType.Value(name)))


@converter("Cast", since=6)
def cast_to_type(n: Node) -> Value:
    return _cast(n, n.attr_dtype("to"))


@converter("CastLike")
def cast_like(n: Node) -> Value:
    return _cast(n, n.input(1).dtype)


@converter("BitCast")
def bit_cast(n: Node) -> Value:
    x, to = n.input(0), n.attr_dtype("to")
    return x if x.dtype == to else BitCast(to)(x)
