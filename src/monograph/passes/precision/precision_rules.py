"""Which ops may compute in a narrower float type, and why the others may not.

Matrix products and convolutions read and write the narrow type and sum in f32 (every kernel does),
so they convert. Arithmetic that neither overflows nor magnifies errors converts with them. What
sums many terms with nothing wider inside, is steep, counts, or carries state stays in f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from monograph.ir import Array, DType, Item, Op, TensorType, Type, Value, known
from monograph.ir.dtype import BOOL, f32
from monograph.ops import composite
from monograph.ops import elementwise as ew
from monograph.ops.attention import Attention, CacheUpdate, Rope
from monograph.ops.base import Comparison
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.linear import Det, Dot
from monograph.ops.pad_tile import Pad, Tile
from monograph.ops.pool import AveragePool, LpPool, MaxPool
from monograph.ops.quant import Dequantize, Quantize
from monograph.ops.recurrent import Gru, Lstm, Rnn
from monograph.ops.reduce import Cumulative, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from monograph.ops.resize import Resize
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.signal import Dft
from monograph.ops.sort import TopK

LAYERS = (Attention, Conv, ConvTranspose, Dot, Rope)
MOVES = (
    Broadcast, CacheUpdate, Concat, Gather, GatherElements, GatherNd, MaxPool, Pad, ReduceMax,
    ReduceMin, Reshape, Slice, Squeeze, Tile, Transpose, Unsqueeze,
)  # fmt: skip
"""Ops that give elements of their operands as they are."""
ARITHMETIC = (
    AveragePool, Resize, composite.Gelu, composite.Silu, ew.Abs, ew.Add, ew.Clip, ew.Div, ew.Erf,
    ew.Max, ew.Min, ew.Mul, ew.Neg, ew.Sigmoid, ew.Sign, ew.Sqrt, ew.Sub, ew.Tanh, ew.Where,
)  # fmt: skip
TERMS = (Concat, ew.Add, ew.Max, ew.Min, ew.Sub, ew.Where)
"""Ops that set an operand beside another one: what is too small to be told apart is lost anyway."""
SUMS = (ReduceSum, ReduceProd, Cumulative, LpPool, Det, Dft)
STEEP = (ew.Exp, ew.Pow, ew.Sinh, ew.Cosh)

COUNTS = 2.0**24
"""Whole numbers below this are exact in f32: a constant of nothing else may count something."""
NARROW_INTEGER_BITS = 8
"""Integers of this width are exact in every float type that a model is converted to."""
CARRIES_STATE = "it carries state from step to step, where errors build up"
_REASONS: tuple[tuple[type[Op] | tuple[type[Op], ...], str], ...] = (
    (SUMS, "it sums or multiplies many elements"),
    ((composite.Softmax, composite.LogSoftmax), "a softmax sums powers of e"),
    ((composite.LayerNorm, composite.RmsNorm), "a norm sums squares"),
    (STEEP, "it is steep: it overflows and magnifies errors"),
    ((ew.Log, ew.Tan, ew.Asin, ew.Acos, ew.Acosh, ew.Atanh, ew.Asinh, ew.Atan), "it is steep"),
    ((ew.Sin, ew.Cos), "the error of a large angle is a large part of a turn"),
    ((ew.Floor, ew.Ceil, ew.Round, ew.Mod), "a small error becomes a whole step"),
    ((Lstm, Gru, Rnn), CARRIES_STATE),
    ((If, Loop, Scan), "sub-graphs take and give f32; inside, they are converted themselves"),
    (Item, "it is a result of an op that stays in f32"),
    (TopK, "sorting keys stay apart"),
    (Quantize, "it rounds to steps of its scale"),
)


def is_f32(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype == f32


def is_flexible(op: Op) -> bool:
    """Whether an op can compute in the type of its operands, either way."""
    return isinstance(op, (*MOVES, *ARITHMETIC, Comparison))


def kept_reason(value: Value, to: DType) -> str | None:
    """Why a value stays in f32 by itself; None where it may convert."""
    op = value.op
    if isinstance(op, Cast):
        return _cast_reason(value, to)
    if isinstance(op, Dequantize):
        wide = value.inputs[0].dtype.bits > NARROW_INTEGER_BITS
        return f"sums of {value.inputs[0].dtype} may exceed {to}" if wide else None
    for kinds, why in _REASONS:
        if isinstance(op, kinds):
            return why
    if not isinstance(op, (*LAYERS, *MOVES, *ARITHMETIC, Comparison)):
        return f"nothing is known of {op.name} in {to}"
    if any(not is_f32(v.type) and _is_float(v.type) for v in value.inputs):
        return "it has operands of other float types"
    for i, v in enumerate(value.inputs):
        data = known(v)
        if data is not None and is_f32(v.type):
            reason = constant_reason(data, to, _exactness(op, i))
            if reason is not None:
                return reason
    return None


def has_wide_range(value: Value, reason: str) -> bool:
    """Whether a value that stays in f32 may hold numbers that the narrow type does not."""
    if isinstance(value.op, (*SUMS, *STEEP)) or reason.startswith(TOO_LARGE):
        return True
    return isinstance(value.op, (Cast, Dequantize))


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


def _cast_reason(value: Value, to: DType) -> str | None:
    given, wanted = value.inputs[0].dtype, value.dtype
    if wanted.is_integer and is_f32(value.inputs[0].type):
        return "whole numbers are taken of it"
    if wanted != f32:
        return None
    small = given.is_integer and given.bits <= NARROW_INTEGER_BITS
    if given.kind == BOOL or given == to or small:
        return None
    return f"numbers of type {given} need not fit {to}"


@dataclass(frozen=True)
class Magnitude:
    """What is known of the largest number in a value."""

    largest: float | None = None
    """An estimate, from a run on drawn inputs; None where there is none."""
    bound: float = math.inf
    """What it is proved not to exceed."""


HEADROOM = 16.0
"""An estimate may be this far below what real inputs give (of the models that come with recorded
inputs, some reach ten times their estimate): an overflow spoils all that follows."""
FOOTROOM = 4.0
"""... and this far above it: digits are lost one by one below the smallest normal number."""
GROWS, VANISHES = "its numbers grow too large", "its numbers are too small"


def has_range_of_f32(to: DType) -> bool:
    limits = (ml_dtypes.finfo(t) for t in (to.numpy, np.float32))  # type: ignore[no-untyped-call]
    narrow, wide = (x.maxexp for x in limits)
    return bool(narrow >= wide)


def range_reason(found: Magnitude, to: DType) -> str | None:
    """Why the numbers of a value do not fit a type; None where they do, or nothing is known."""
    limits = ml_dtypes.finfo(to.numpy)  # type: ignore[no-untyped-call]
    top, bottom = float(limits.max), float(limits.smallest_normal)
    if found.largest is None or has_range_of_f32(to):
        return None
    if found.largest > top / HEADROOM and found.bound > top:
        return f"{GROWS} (expected at most {top / HEADROOM:.4g}, about {found.largest:.2g})"
    if 0 < found.largest < bottom * FOOTROOM:
        limit = bottom * FOOTROOM
        return f"{VANISHES} (expected at least {limit:.2g}, about {found.largest:.2g})"
    return None


TOO_LARGE = "a constant is too large"
LAYER, TERM, FACTOR = "layer", "term", "factor"
"""How the error of a constant shows: against the largest weight, the largest term, or itself."""


def _exactness(op: Op, index: int) -> str:
    if isinstance(op, (*LAYERS, *MOVES)):
        return LAYER
    return FACTOR if isinstance(op, ew.Div) and index == 1 else TERM


def constant_reason(data: Array, to: DType, role: str) -> str | None:
    """Why a constant does not survive in a narrower type; None where it does."""
    finite = np.abs(data[np.isfinite(data)].astype(np.float64))
    if finite.size == 0:
        return None
    limits = ml_dtypes.finfo(to.numpy)  # type: ignore[no-untyped-call]
    largest = float(finite.max())
    with np.errstate(over="ignore"):
        fits = bool(np.isfinite(np.asarray(largest).astype(to.numpy).astype(np.float64)))
    if not fits:
        return f"{TOO_LARGE} (expected at most {float(limits.max):g}, given {largest:g})"
    smallest = float(finite[finite > 0].min(initial=np.inf))
    least = smallest if role == FACTOR else largest
    if 0 < least < float(limits.smallest_normal):
        limit = f"expected at least {float(limits.smallest_normal):.2g}, given {least:.2g}"
        return f"a constant loses its digits ({limit})"
    whole = role != LAYER and largest < COUNTS and bool((finite == np.rint(finite)).all())
    if whole and not np.array_equal(finite.astype(to.numpy).astype(np.float64), finite):
        return f"a constant counts, and {to} has no such whole number (given {largest:g})"
    return None
