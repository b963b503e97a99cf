"""The scalar form of elementwise ops: one element, for any code generator.

An op says once how an element of its result comes from elements of its operands:

    def scalar(self, b: ScalarBuilder, x: Scalar) -> Scalar:
        return b.div(x, b.add(b.constant(1.0, x.dtype), b.exp(b.neg(x))))

and each code generator brings a builder. Where the elements lie is not the op's business: views,
broadcasts and the blocks of a quantised tensor are indices, which the code generator knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from monograph.ir import DType, Op


@dataclass(frozen=True)
class Scalar:
    """An element in a kernel that is being written, or several of them side by side.

    Only the builder that made it looks into `reg`. A float type narrower than f32 is computed in
    f32, and rounded where it is stored or cast.
    """

    reg: Any
    dtype: DType
    literal: float | int | None = None
    """Its number, where that is known while the kernel is written."""


class ScalarBuilder(Protocol):
    """Writes the arithmetic of one element into a kernel.

    Operands of one call share an element type unless said otherwise, and results mean what the
    reference of the op of the same name means: NaN and infinities propagate, integers wrap, and
    nothing traps. Denormal floats may be taken for zero.
    """

    def constant(self, number: float | int, dtype: DType) -> Scalar:
        """Return a number known while the kernel is written."""

    # Arithmetic, of integers and floats

    def add(self, x: Scalar, y: Scalar) -> Scalar: ...
    def sub(self, x: Scalar, y: Scalar) -> Scalar: ...
    def mul(self, x: Scalar, y: Scalar) -> Scalar: ...

    def div(self, x: Scalar, y: Scalar) -> Scalar:
        """x / y; of integers rounded towards zero, and 0 where y is 0."""

    def mod(self, x: Scalar, y: Scalar, truncated: bool = False) -> Scalar:
        """The remainder with the sign of y, or with `truncated` that of x; of integers 0 by 0."""

    def pow(self, x: Scalar, y: Scalar) -> Scalar: ...
    def min(self, x: Scalar, y: Scalar) -> Scalar: ...
    def max(self, x: Scalar, y: Scalar) -> Scalar: ...

    def fma(self, x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        """x * y + z, rounded once where the machine does that as fast."""

    def neg(self, x: Scalar) -> Scalar: ...
    def abs(self, x: Scalar) -> Scalar: ...
    def sign(self, x: Scalar) -> Scalar: ...

    # Functions of floats

    def sqrt(self, x: Scalar) -> Scalar: ...
    def floor(self, x: Scalar) -> Scalar: ...
    def ceil(self, x: Scalar) -> Scalar: ...

    def round(self, x: Scalar) -> Scalar:
        """Return the nearest whole number; a half goes to the even one."""

    def exp(self, x: Scalar) -> Scalar: ...
    def log(self, x: Scalar) -> Scalar: ...
    def sin(self, x: Scalar) -> Scalar: ...
    def cos(self, x: Scalar) -> Scalar: ...
    def tan(self, x: Scalar) -> Scalar: ...
    def asin(self, x: Scalar) -> Scalar: ...
    def acos(self, x: Scalar) -> Scalar: ...
    def atan(self, x: Scalar) -> Scalar: ...
    def sinh(self, x: Scalar) -> Scalar: ...
    def cosh(self, x: Scalar) -> Scalar: ...
    def tanh(self, x: Scalar) -> Scalar: ...
    def asinh(self, x: Scalar) -> Scalar: ...
    def acosh(self, x: Scalar) -> Scalar: ...
    def atanh(self, x: Scalar) -> Scalar: ...
    def erf(self, x: Scalar) -> Scalar: ...

    def normal(self, x: Scalar) -> Scalar:
        """(1 + erf(x / sqrt(2))) / 2, right to its last bits where that sum cancels too."""

    def sigmoid(self, x: Scalar) -> Scalar: ...

    # Questions, answered as bool

    def is_nan(self, x: Scalar) -> Scalar: ...
    def is_inf(self, x: Scalar, positive: bool = True, negative: bool = True) -> Scalar: ...
    def equal(self, x: Scalar, y: Scalar) -> Scalar: ...
    def less(self, x: Scalar, y: Scalar) -> Scalar: ...
    def less_equal(self, x: Scalar, y: Scalar) -> Scalar: ...

    # Bits, of integers and bools

    def and_(self, x: Scalar, y: Scalar) -> Scalar: ...
    def or_(self, x: Scalar, y: Scalar) -> Scalar: ...
    def xor(self, x: Scalar, y: Scalar) -> Scalar: ...
    def not_(self, x: Scalar) -> Scalar: ...
    def shift_left(self, x: Scalar, y: Scalar) -> Scalar: ...
    def shift_right(self, x: Scalar, y: Scalar) -> Scalar: ...

    # Choice and conversion

    def select(self, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
        """x where the bool holds, y elsewhere."""

    def cast(self, x: Scalar, to: DType, saturate: bool = True, rounding: str = "up") -> Scalar:
        """Return the same value in another element type, by the rules of the op `Cast`."""

    def bitcast(self, x: Scalar, to: DType) -> Scalar:
        """Return the same bits read as another element type of the same width."""


class Indexed(Op, abstract=True):
    """An elementwise op whose `scalar` also takes, last, the index of the element.

    The index is an i64: it counts the elements of the result in row-major order.
    """


def is_pointwise(op: Op | type[Op]) -> bool:
    """Return True if an op has a scalar form."""
    kind = op if isinstance(op, type) else type(op)
    return kind.scalar is not Op.scalar
