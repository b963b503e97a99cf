"""The class of an op in a program: a view, pointwise, a join, or a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from monograph.ir import Array, Constant, Input, Item, TensorType, TupleType, Type, Value
from monograph.ir.dtype import COMPLEX, STRING, bf16, f16, f32
from monograph.ops.base import Unary
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.scalar import Scalar, ScalarBuilder
from monograph.ops.scalar import is_pointwise as op_is_pointwise
from monograph.ops.shape import Concat

_SUMMED_WIDER = (f32, f16, bf16)
"""Result types of products that sum in f32, whose weights need no rounding to them first."""


@dataclass(frozen=True)
class Copy(Unary):
    """A copy of x, for a kernel that needs it at another address or in another layout.

    Only the lowering makes copies. `place` distinguishes the copies of one value.
    """

    place: int = 0

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: Array) -> Array:
        return x

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return x


def is_leaf(value: Value) -> bool:
    return isinstance(value.op, (Input, Constant))


def is_view(value: Value) -> bool:
    return value.op.view


def is_pointwise(value: Value) -> bool:
    return op_is_pointwise(value.op)


def is_join(value: Value) -> bool:
    return isinstance(value.op, Concat)


def is_kernel(value: Value) -> bool:
    """Return True if a value needs a kernel of its own kind: a dot, a convolution, a sort ..."""
    plain = is_leaf(value) or is_view(value) or is_pointwise(value) or is_join(value)
    return not plain and not isinstance(value.op, Item)


def reads_expressions(value: Value) -> bool:
    """Return True if a kernel can compute its operand instead of reading it from memory."""
    return value.op.reads_expressions


def coded(value: Value) -> Value | None:
    """Return the Dequantize of constants of at most 8 bits behind the views of a value."""
    while is_view(value):
        value = value.inputs[0]
    if not isinstance(value.op, Dequantize) or value.op.to not in _SUMMED_WIDER:
        return None
    codes = value.inputs[0].dtype
    constant = all(isinstance(v.op, Constant) for v in value.inputs)
    return value if constant and codes.bits <= 8 else None


def reads_codes(user: Value, index: int) -> bool:
    """Return True if a kernel decodes this operand itself: constant weights of few bits."""
    if not isinstance(user.op, Dot) or index != 1 or user.dtype not in _SUMMED_WIDER:
        return False
    weights = user.inputs[1]
    source = coded(weights)
    if source is None:
        return False
    # A stack of matrices: each has its own codes.
    return len(weights.tensor.dims) == 2 or weights.tensor.size == source.tensor.size


def is_native(value: Value) -> bool:
    """Return True if compiled code can hold a value: numbers of a static shape."""
    return _native(value.type)


def _native(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return all(map(_native, type_.items))
    if not isinstance(type_, TensorType) or not type_.is_static:
        return False
    return type_.dtype.kind not in (STRING, COMPLEX)
