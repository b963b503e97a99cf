"""Traits: the facts about an op that passes, program analyses and tolerances ask the op for.

Each trait has a default that is always safe: an op that states nothing stays in f32, keeps the
order of its dimensions, has no proved bound and sums one term. Flags are class attributes; facts
that depend on attributes or operands are methods. In a method, `value` is the value that this op
computes. Integer ranges have data types of their own: `Affine` describes a value as an input times
a factor plus an offset; `Demand` is a range that an op needs of one of its integer operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from monograph.ir.dtype import DType
from monograph.ir.layout import LayoutPlan, Order
from monograph.ir.sizes import hint_of
from monograph.ir.types import Array, Dim, TensorType, Type

if TYPE_CHECKING:
    from monograph.ir.op import Value


IntRange: TypeAlias = tuple[int, int]
RangeOf: TypeAlias = "Callable[[Value], IntRange | None]"
"""Returns the proved range of an integer value; None where only its type is known."""
"""The smallest and the largest integer of a value."""
INDEX, LENGTH, MASK, NUMBER, SIZE = "index", "length", "mask", "number", "size"
FEW = 4
"""The largest size or trip count that is drawn where nothing bounds it."""


@dataclass(frozen=True)
class Affine:
    """factor * input + [low, high]; without an input, [low, high]."""

    source: str | None
    factor: float
    low: float
    high: float

    def moved(self, low: float, high: float) -> Affine:
        return replace(self, low=self.low + low, high=self.high + high)

    def times(self, by: float) -> Affine:
        low, high = sorted((self.low * by, self.high * by))
        return replace(self, factor=self.factor * by, low=low, high=high)

    def solved(self, low: float, high: float) -> tuple[float, float]:
        """Return the range of inputs for which the value lies in a range."""
        a, b = (low - self.low) / self.factor, (high - self.high) / self.factor
        return (a, b) if self.factor > 0 else (b, a)


Known: TypeAlias = tuple[Affine, ...]
"""The alternatives that a value may be; empty where nothing is known."""
NOTHING: Known = ()


def index_range(size: int) -> IntRange | None:
    """Return the range of indices into a dimension; None for an empty one."""
    return (0, size - 1) if size else None


def united(*known: Known) -> Known:
    """Return the alternatives of several values, each once."""
    return tuple(dict.fromkeys(a for k in known for a in k))


@dataclass(frozen=True)
class Demand:
    """A range that an op needs of the integers of an operand, and their purpose."""

    operand: int
    kind: str
    low: float = 0
    high: float = 0
    why: str = ""
    must: bool = True
    """True if a run fails outside the range; False if the op does nothing of interest there."""
    negated_only: bool = False
    """True if the demand holds only where the operand falls as the input grows."""


class Narrowing(Enum):
    """The behaviour of an op in a float type narrower than f32."""

    UNKNOWN = "unknown"
    """Nothing is known: the op stays in f32."""
    KEPT = "kept"
    """The op stays in f32, for its `kept_reason`."""
    LAYER = "layer"
    """The op reads and writes the narrow type and sums in f32, as every kernel does."""
    MOVE = "move"
    """The op returns elements of its operands as they are."""
    ARITHMETIC = "arithmetic"
    """The op rounds each result once, and neither overflows nor magnifies errors."""
    COMPARISON = "comparison"
    """The op compares floats."""
    CONVERSION = "conversion"
    """The op changes the element type; `f32_reason` decides."""


MOST_DEGREE = 64.0
"""Degrees beyond this are not told apart."""
LARGEST_F16 = 65504.0
"""The largest finite number of f16."""
NARROW_INTEGER_BITS = 8
"""Integers of this width are exact in every float type that a model is converted to."""
SUMS_MANY = "it sums or multiplies many elements"


def peak(degrees: Iterable[float]) -> float:
    """Return the degree of a sum: the one furthest from 0."""
    return max(degrees, key=lambda d: (abs(d), d), default=0.0)


def known_product(dims: Iterable[Dim]) -> int:
    """Return the product of the sizes that are known; symbols count as 1."""
    return math.prod(d for d in dims if isinstance(d, int))


class OpTraits:
    """The traits of an op, each with its safe default."""

    # Precision

    narrowing: ClassVar[Narrowing] = Narrowing.UNKNOWN
    kept_reason: ClassVar[str] = ""
    """The reason of an op with `Narrowing.KEPT`."""
    wide_range: ClassVar[bool] = False
    """True if results in f32 may exceed the range of a narrow type."""
    adds_terms: ClassVar[bool] = False
    """True if the op puts operands side by side: a term too small to show is lost in any type."""
    saturates: ClassVar[bool] = False
    """True if infinity gives the same result as a large number."""
    divisors: ClassVar[tuple[int, ...]] = ()
    """The operands that the op divides by: a relative error of one shows in full."""
    clipped_from: ClassVar[int | None] = None
    """The first operand that may be clipped to the range of a type: a mask."""

    def f32_reason(self, value: Value, to: DType) -> str | None:
        """Return why the op must stay in f32; None where it may compute in the type `to`."""
        if self.narrowing is Narrowing.UNKNOWN:
            return f"nothing is known of {value.op.name} in {to}"
        return self.kept_reason or None

    def passes_infinity(self, value: Value, operand: Value, alone: bool) -> bool:
        """Return True if an infinity of an operand stays one in the result.

        `alone` is True if no other operand may be infinite.
        """
        return self.narrowing is Narrowing.MOVE

    # Bounds of magnitudes, and growth with the inputs

    within_one: ClassVar[bool] = False
    """True if results lie in -1..1."""
    never_larger: ClassVar[bool] = False
    """True if no result is larger than the largest element of the first operand."""
    level: ClassVar[bool] = False
    """True if results do not grow with operands, or stay in f32 and readers bound them."""
    exponential: ClassVar[bool] = False
    """True if a layer that reads the result grows beyond any degree."""
    contracts: ClassVar[bool] = False
    """True if the op sums products of its first two operands."""

    def bound(self, value: Value, given: Sequence[float]) -> float:
        """Return a proved bound of the magnitude of results, from those of the operands."""
        if self.within_one:
            return 1.0
        return given[0] if self.never_larger else math.inf

    def degree(self, value: Value, given: Sequence[float]) -> float:
        """Return the degree of the result: inputs k times as large make it k^degree as large."""
        if self.level:
            return 0.0
        pairs = zip(value.inputs, given, strict=True)
        return peak(d for v, d in pairs if _is_data(v, value))

    # Front ends: values that stay in f32 because of their readers

    linear: ClassVar[bool] = False
    """True if the op is linear in its operands, or in each one of them."""
    scaling: ClassVar[bool] = False
    """True if the op is linear where the other operand is constant."""
    makes_angles: ClassVar[bool] = False
    """True if an angle is computed by this op."""
    keeps_small: ClassVar[bool] = False
    """True if small results come from small operands: a power, a root, a maximum."""
    makes_scores: ClassVar[bool] = False
    """True if the op may stand between the product of queries with keys and its softmax."""
    reads_scores: ClassVar[bool] = False
    """True if only differences of elements count: a softmax."""
    reads_angles: ClassVar[bool] = False
    """True if the error of an operand is a part of a turn."""
    logarithm: ClassVar[bool] = False
    """True if the op shows the digits of small numbers."""

    def shows_small(self, value: Value, floor: Callable[[Value], float]) -> bool:
        """Return True if small results are small numbers, or differences, of the operands.

        `floor` gives a lower limit of a value.
        """
        moves = self.narrowing is Narrowing.MOVE
        return moves or self.linear or self.scaling or self.keeps_small

    def floor(self, value: Value, of: Callable[[Value], float]) -> float:
        """Return what results are at least, or 0; `of` gives the floor of an operand."""
        return 0.0

    # Layout

    def layer_plan(self, value: Value) -> LayoutPlan | None:
        """Return the channels-last form of a convolution; None for any other op."""
        return None

    def any_spatial_order(self, value: Value) -> bool:
        """Return True if a layer does not depend on the order of the spatial dimensions."""
        return False

    def suits_planes(self, value: Value) -> bool:
        """Return True if windows stay in one channel and are fast along its rows."""
        return False

    def follow_order(self, value: Value, index: int, order: Order) -> LayoutPlan | None:
        """Return the plan for an operand `index` in this order; None where there is none."""
        return None

    def operand_order(self, value: Value, order: Order) -> Order | None:
        """Return the order of the first operand that may give a result in this order."""
        return order if value.inputs[0].tensor.rank == len(order) else None

    def reach_order(self, value: Value, order: Order) -> LayoutPlan | None:
        """Return the plan for a result in this order; None where there is none."""
        before = self.operand_order(value, order)
        plan = None if before is None else self.follow_order(value, 0, before)
        return plan if plan is not None and plan.order == order else None

    # Tolerance

    same_signs: ClassVar[bool] = False
    """True if the op sums terms of one sign, which cannot cancel."""
    rounds: ClassVar[bool] = True
    """False if results are elements of operands, their negatives, signs or limits."""
    rounds_between: ClassVar[bool] = False
    """True if the op rounds the results of one sum before it sums them again."""
    sums_constants: ClassVar[bool] = False
    """True if the op sums attributes; operands only choose them."""

    def error_scale(self, result: Array, *operands: Array) -> Array | None:
        """Return the scale of the error of each element; None for the element itself."""
        return None

    def operand_error_scale(self, index: int, *operands: Array) -> Array | None:
        """Return the scale of the errors of an operand that is summed; None for its elements."""
        return None

    def accumulation_length(self, *types: TensorType) -> int:
        """Return how many terms are summed into one element of the result.

        Symbols count as 1, and so do sums whose length is data.
        """
        return 1

    def summed_terms(self, *operands: Array) -> int:
        """Return how many terms these data sum into one element, at most; 1 if types tell it."""
        return 1

    def summed_power(self) -> int:
        """Return the power of elements that the op sums before it takes the root of that power.

        Elements whose power is below the smallest normal number may count as 0.
        """
        return 1

    def operand_gain(self, index: int, *types: TensorType) -> float:
        """Return the factor by which a squared difference of an operand counts in the result."""
        return 1.0

    def permitted_rounding(self) -> float:
        """Return the relative error that the op permits beyond its own rounding."""
        return 0.0

    # Integers

    passes: ClassVar[bool] = False
    """True if results are elements of the first operand, whatever the attributes are."""

    def integer_range(self, value: Value, of: RangeOf, item: int = 0) -> IntRange | None:
        """Return the proved range of integer results; `of` gives the range of an operand.

        `item` is the number of the result of an op that has several.
        """
        return of(value.inputs[0]) if self.passes else None

    def affine(self, value: Value, given: Sequence[Known]) -> Known | None:
        """Return the result as inputs times factors plus offsets; None where it is none."""
        return given[0] if self.passes else None

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        """Return the ranges that the op needs of integer operands."""
        if self.affine(value, given) is not None:
            return []
        return [Demand(i, NUMBER) for i in range(len(given))]

    @classmethod
    def late_demand(cls, operand: int, name: str, first: Type) -> Demand:
        """Return the range of an attribute that is an operand (see `Deferred`)."""
        return Demand(operand, SIZE, 1, FEW, "a size or a count")

    # Programs

    view: ClassVar[bool] = False
    """True if the result is the operand under another index map, which needs no copy."""
    reads_expressions: ClassVar[bool] = False
    """True if kernels compute the first operand while they read it."""
    looks_up: ClassVar[bool] = False
    """True if the op reads only the elements of the first operand that the second names."""
    updates_first: ClassVar[bool] = False
    """True if the result is the first operand, some of whose elements are replaced."""
    checks_operands: ClassVar[bool] = False
    """True if operands may fail a run although the result has no elements."""
    host_reason: ClassVar[str] = ""
    """The reason why the op runs on the host; "" if kernels may exist."""
    fixed_text: ClassVar[bool] = False
    """True if the reference reads text as numpy's strings of fixed width too, not only as objects.
    """

    def operations(self, value: Value) -> float:
        """Return the floating-point operations of the value; 0 where sizes are not known."""
        known = isinstance(value.type, TensorType) and value.type.is_static
        return float(hint_of(value.tensor.size)) if known else 0.0

    def row_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of the result that goes row by row with an axis of operand `index`.

        Rows added at the end of that axis, whatever they hold, add rows at the end of the axis that
        is returned and change nothing before them. An op states this for each axis and for its own
        attributes; without a statement (None) nothing is known, and a size that data decide has to
        be known before the op runs. An op with a `scalar` form needs no statement.
        """
        return None

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        """Return the axis of the result each of whose rows reads that row of operand `index` only.

        None where that is not known. Other operands have rows along the same axis of the result, or
        none. An op with a `scalar` form, and a reshape, need no statement. By default these are the
        axes of `row_axis`: an op whose rows read rows before them says otherwise.
        """
        return self.row_axis(index, axis, *types)

    def row_filling(self, axis: int) -> float | None:
        """Return the number that changes no result when rows of it are added along an axis."""
        return None

    def most_rows(self, *types: TensorType) -> int | None:
        """Return the largest size of a result whose size data decide; None without a bound."""
        return None


def _is_data(operand: Value, value: Value) -> bool:
    """Return False for indices, lengths and conditions."""
    if not isinstance(value.type, TensorType) or not isinstance(operand.type, TensorType):
        return True
    return operand.dtype.is_float == value.dtype.is_float
