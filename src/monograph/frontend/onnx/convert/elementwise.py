"""Arithmetic, comparison, logic and activations."""

from __future__ import annotations

from functools import reduce

import numpy as np

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Op, Value, constant
from monograph.ops import elementwise as ew

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


@converter(*_BINARY)
def binary(n: Node) -> Value:
    return _BINARY[n.op_type]()(n.input(0), n.input(1))


@converter("Greater", "GreaterOrEqual")
def greater(n: Node) -> Value:
    """x > y is y < x: one form for the rules to match."""
    op = ew.Less() if n.op_type == "Greater" else ew.LessEqual()
    return op(n.input(1), n.input(0))


@converter("Sum", "Max", "Min")
def variadic(n: Node) -> Value:
    op = {"Sum": ew.Add(), "Max": ew.Max(), "Min": ew.Min()}[n.op_type]
    return reduce(op, n.required())


def scalar(number: float, like: Value) -> Value:
    """A constant of another value's element type."""
    return constant(np.asarray(number), like.dtype)


@converter("Relu")
def relu(n: Node) -> Value:
    x = n.input(0)
    return ew.Clip(lo=0.0)(x) if x.dtype.is_float else ew.Max()(x, scalar(0, x))
