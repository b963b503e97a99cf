"""Constant weights of few bits: reading them from the graph, their packing and their decoding.

Codes of less than a byte are packed in words: a word of each lane has those of several depths. If
the machine has a table lookup instruction, four bits index a table of sixteen floats. Otherwise
integers are put into the low bits of a large float, which is then subtracted. Floats of 8 bits are
moved into the bits of an f16 if the machine converts those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.common.types import decode
from monograph.codegen.llvm.emit.builder import Builder, float_text
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.matmul.dot import DotKernel
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, DType, Value, known
from monograph.ir.dtype import f8e4m3fn, f8e5m2
from monograph.ops.quant import Dequantize, spread
from monograph.ops.shape import Reshape, Transpose
from monograph.program.fusion.op_classes import coded


@dataclass(frozen=True)
class QuantisedWeights:
    """w[k, n] = (number - zeros[k // block, n]) * scale[k // block, n], for each matrix of a stack.

    The number of an integer's code is the code itself; signed ones count from the lowest. A float's
    code is its bits. Scales and zeros are f64, [..., blocks, columns].
    """

    codes: Array
    scale: Array
    zeros: Array
    block: int
    dtype: DType

    @property
    def middle(self) -> int | None:
        """Return the whole number that is subtracted from all codes, if there is only one."""
        first = self.zeros.flat[0] if self.zeros.size else 0.0
        whole = first == np.rint(first) and 0 <= first < 256
        return int(first) if whole and bool((self.zeros == first).all()) else None

    @property
    def depth(self) -> int:
        return int(self.codes.shape[-2])

    def matrices(self) -> list[QuantisedWeights]:
        """Return the matrices of a stack, each with its own codes."""
        flat = [a.reshape(-1, *a.shape[-2:]) for a in (self.codes, self.scale, self.zeros)]
        return [
            QuantisedWeights(c, s, z, self.block, self.dtype) for c, s, z in zip(*flat, strict=True)
        ]

    @property
    def shift(self) -> Array:
        """The addend of a scaled number."""
        return np.asarray(-self.zeros * self.scale)


def decoded(weights: Value) -> Array:
    """Weights as floats."""
    data = known(weights)
    if data is None:
        data = weights.op.reference(*(decoded(v) for v in weights.inputs))
    return np.asarray(data)


def read_codes(weights: Value) -> QuantisedWeights | None:
    """Return constant weights as codes; None if their blocks are not along the depth."""
    source = coded(weights)
    assert source is not None
    x, scale, *zero = (known(v) for v in source.inputs)
    assert x is not None
    assert scale is not None
    views = _views(weights, source)
    of = source.inputs[0].dtype
    bias = 1 << (of.bits - 1) if of.is_signed and not of.is_float else 0
    codes = x.view(np.uint8) if of.is_float else (x.astype(np.int16) + bias).astype(np.uint8)
    codes = _viewed(codes, views)
    zero_point = np.zeros(()) if not zero or zero[0] is None else zero[0]
    spreads = [_blocks(p, source, views) for p in (scale, zero_point)]
    if spreads[0] is None or spreads[1] is None:
        return None
    *outer, depth, columns = codes.shape
    blocks = max(p.shape[-2] for p in spreads if p is not None)
    op = source.op
    assert isinstance(op, Dequantize)
    block = op.block if blocks > 1 else max(depth, 1)
    whole = (*outer, blocks, columns)
    scales, zeros = (np.broadcast_to(p, whole) for p in spreads if p is not None)
    return QuantisedWeights(codes, scales, zeros + bias, block, of)


def _views(weights: Value, source: Value) -> list[Value]:
    """The views between decoded weights and their use, the innermost first."""
    views: list[Value] = []
    while weights is not source:
        views.insert(0, weights)
        weights = weights.inputs[0]
    return views


def _viewed(array: Array, views: list[Value]) -> Array:
    for v in views:
        array = v.op.reference(array)
    return np.asarray(array)


def _blocks(parameter: Array, source: Value, views: list[Value]) -> Array | None:
    """Return a scale or zero point as [..., blocks of the depth, columns]; either may be 1."""
    op, shape = source.op, source.tensor.static
    assert isinstance(op, Dequantize)
    wide = parameter.astype(np.float64)
    if op.axis is None or wide.size == 1:
        return wide.reshape(1, 1)
    axis = op.axis - len(shape)
    if op.block == 0 and len(shape) == 2 and all(map(_flips, views)):
        along = axis == (-1 if len(views) % 2 else -2)
        return None if along else wide.reshape(1, -1)
    if op.block:
        found = _moved_blocks(wide, axis, views)
        if found is not None:
            return found
    full = _viewed(np.broadcast_to(spread(wide, shape, op.axis, op.block), shape), views)
    depth = full.shape[-2]
    block = op.block if 0 < op.block < depth else max(depth, 1)
    firsts = full[..., ::block, :]
    same = np.array_equal(np.repeat(firsts, block, -2)[..., :depth, :], full)
    return firsts if same else None


def _flips(view: Value) -> bool:
    """Return True if a view swaps the last two dimensions and keeps the others."""
    rank = view.tensor.rank
    return view.op == Transpose((*range(rank - 2), rank - 1, rank - 2))


def _moved_blocks(parameter: Array, axis: int, views: list[Value]) -> Array | None:
    """Return scales of blocks under views that keep whole matrices; None under other views."""
    for v in views:
        if _flips(v):
            parameter, axis = parameter.swapaxes(-1, -2), -3 - axis
        elif v.tensor.static[-2:] == v.inputs[0].tensor.static[-2:] and isinstance(v.op, Reshape):
            parameter = parameter.reshape(*v.tensor.static[:-2], *parameter.shape[-2:])
        else:
            return None
    return parameter if axis == -2 else None


class Decoded(DotKernel):
    """Weights as plain floats, decoded at compile time."""

    def _known(self, w: Value) -> Array | None:
        return decoded(w)

    def _read(self) -> Sequence[Value]:
        """Return the inputs: codes, scales and zero points only if the epilogue reads them too."""
        region = self.context.step.region
        inside, stack = set[Value](), [self.anchor.inputs[1]]
        while stack:
            value = stack.pop()
            if value in region.body:
                inside.add(value)
                stack.extend(value.inputs)
        read = {v for u in region.body if u not in inside for v in u.inputs}
        return [v for v in region.inputs_besides(1) if v in read]


WORD_BITS, BYTE_BITS = 32, 8
MANTISSA = 23
NIBBLE = 4
_NAN = 0x7F
_HALF_GAIN = 2.0**8
"""The factor between an e4m3 and the f16 with its bits."""


class CodeFormat:
    """The packing and decoding of the codes of one matrix."""

    def __init__(self, codes: QuantisedWeights, features: Features, lanes: int) -> None:
        self.codes, self.lanes = codes, lanes
        self.bits = codes.dtype.bits
        self.small = self.bits < BYTE_BITS
        self.depths = WORD_BITS // self.bits if self.small else 1
        """The number of depths in one word (or byte) of a lane."""
        self.middle = codes.middle
        looks_up = features.lookup and lanes == 1 << NIBBLE and self.bits == NIBBLE
        self.lookup = features.lookup if looks_up else ""
        self.as_half = features.converts_half and (
            codes.dtype == f8e5m2
            or (codes.dtype == f8e4m3fn and not (codes.codes & _NAN == _NAN).any())
        )

    @property
    def gain(self) -> float:
        """The factor that scales are multiplied with."""
        return _HALF_GAIN if self.as_half and self.codes.dtype == f8e4m3fn else 1.0

    @property
    def lane_bytes(self) -> int:
        return WORD_BITS // BYTE_BITS if self.small else 1

    def words(self, depth: int) -> int:
        return -(-depth // self.depths)

    def pack(self, codes: Array) -> Array:
        """Pack codes [depth, columns] as [words, columns]; missing depths are zeros."""
        if not self.small:
            return self._signed(codes)
        count = self.words(len(codes))
        whole = np.zeros((count * self.depths, codes.shape[1]), np.uint8)
        whole[: len(codes)] = codes
        made = np.zeros((count, codes.shape[1]), np.uint32)
        for d in range(self.depths):
            made |= whole[d :: self.depths].astype(np.uint32) << np.uint32(d * self.bits)
        return made

    @property
    def _centred(self) -> bool:
        """True if bytes are signed around zero."""
        return not self.codes.dtype.is_float and self.bits == BYTE_BITS and self.middle == 1 << 7

    def _signed(self, codes: Array) -> Array:
        return codes ^ np.uint8(1 << 7) if self._centred else codes

    def load(self, b: Builder, pointer: Reg) -> Reg:
        element = "i32" if self.small else "i8"
        return b.load(vector(self.lanes, element), pointer, 1)

    def number(self, a: LlvmArith, word: Reg, d: int, zeros: Reg | None) -> Reg:
        """Return the numbers of a depth of a word, minus the zero point."""
        made = self._float(a, word, d) if self.codes.dtype.is_float else self._int(a, word, d)
        return made if zeros is None else a.sub(made, zeros)

    def _float(self, a: LlvmArith, word: Reg, d: int) -> Reg:
        if self.lookup:
            values = np.arange(1 << NIBBLE, dtype=np.uint8).view(self.codes.dtype.numpy)
            return self._looked_up(a, word, d, values.astype(np.float64))
        if self.as_half:
            bits = a.op("shl", a.convert("zext", word, "i16"), BYTE_BITS)
            if self.codes.dtype == f8e4m3fn:
                # The exponent has one bit less: it moves down, the sign stays.
                bits = a.op("and", a.op("ashr", bits, 1), -0x4001)
            return a.convert("fpext", a.floats(bits, "half"), "float")
        return decode(a, self.codes.dtype, self._alone(a, word, d))

    def _int(self, a: LlvmArith, word: Reg, d: int) -> Reg:
        middle = self.middle or 0
        if self.lookup:
            return self._looked_up(a, word, d, np.arange(1 << NIBBLE) - float(middle))
        if self._centred:
            return a.convert("sitofp", a.convert("sext", word, "i32"), "float")
        if not self.small:
            word = a.convert("zext", word, "i32")
        at = d * self.bits
        if at + self.bits > MANTISSA:
            word, at = a.op("lshr", word, at), 0
        if self.small:
            word = a.op("and", word, ((1 << self.bits) - 1) << at)
        # 2^(23 - at), whose bit `at` counts 1.
        base = 2.0 ** (MANTISSA - at)
        large = a.floats(a.op("or", word, int(np.float32(base).view(np.uint32))))
        return a.sub(large, base + middle)

    def _alone(self, a: LlvmArith, word: Reg, d: int) -> Reg:
        if not self.small:
            return word
        moved = a.op("lshr", word, d * self.bits) if d else word
        return a.op("and", moved, (1 << self.bits) - 1)

    def _looked_up(self, a: LlvmArith, word: Reg, d: int, values: Array) -> Reg:
        """Look codes up in a table; only the low bits of an index count."""
        kind = vector(self.lanes, "float")
        texts = ", ".join(f"float {float_text(float(v), 'float')}" for v in values)
        index = a.op("lshr", word, d * self.bits) if d else word
        return a.b.call(self.lookup, kind, Reg(f"<{texts}>", kind), index)
