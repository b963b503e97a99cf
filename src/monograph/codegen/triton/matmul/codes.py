"""Weights of few bits, in the form that products of few rows read: codes, scales, zero points.

A column's codes are contiguous, divided into units that share a scale, in words of 32 bits that
hold eight codes of 4 bits or four of 8. Code i of word j of a unit with w words is that of k = w i
+ j, so that words and their factors are both read in long pieces, by the same threads. Signed codes
of 4 bits are stored with 8 added.

For two products at once a word has two halves of four codes: code i of the first
is that of k = 2 (w i + j), code i of the second its neighbour, so that their factors are read in
pairs.

Codes of 4 bits times f16 on NVIDIA's units, two products at once:

A pair of nibbles is put into the fractions of two ones: 1 + q / 1024 or, four bits further up, 1 +
q / 64, so that only every other pair needs a shift. One fused multiply-add turns that into (q - z)
/ reach: all its numbers are exact in f16, and so is the result. The reach is a power of two.

Two or four products are added in f16 (`chained`) before they are widened and added in f32. With a
reach of at least `chained` times the largest |q - z|, such a sum is never larger than the largest
x: nothing overflows, however large x is. A product loses at most 2^-11 of itself, and so does every
sum: `chained` products lose at most chained 2^-11 of the sum of their sizes. Rounding errors have
both signs: of their variances a chain of four has 1 + 2 + 3 + 4 where two of two have 6, and its
error is 1.3 times as large. Below 2^-14 f16 is coarser: smaller products lose reach 2^-25 of (q -
z) x instead.

Triton's interpreter runs no machine code: there the same steps are written in Triton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import TritonPacked
from monograph.ir import Array, Constant, DType, Value, known
from monograph.ir.dtype import f16, f32, i4, i8, i32, u4, u8
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Reshape, Transpose

UNIT = 128
"""The most codes of a unit."""
LEAST_UNIT = 16


@dataclass(frozen=True, eq=False)
class Paired:
    """Weights of 4 bits for two products at once."""

    words: TritonPacked
    """[n, units, lanes]."""
    shared: TritonPacked
    """[n, groups]: scales, f16; or with them, in the upper halves, the second addends."""
    zero: float | None
    """The zero point of all groups, if there is only one."""
    reach: int


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """The weights of a product of [m, k] with [k, n], or of a batch of them, before packing.

    Matrices of a stack are packed one after the other, as if they were columns of one.
    """

    source: Value
    """A Dequantize of constants, [..., n, k] if `by_column`."""
    by_column: bool
    n: int
    k: int
    group: int
    """The elements of a column that share a scale; k if a column has one."""
    matrices: int = 1

    @property
    def dtype(self) -> DType:
        return self.source.inputs[0].dtype

    @property
    def nibbles(self) -> bool:
        """True if codes are integers of 4 bits."""
        return self.dtype in (i4, u4)

    @property
    def together(self) -> int:
        """Codes in a word."""
        return 32 // self.dtype.bits

    @property
    def lanes(self) -> int:
        """Words of a unit."""
        return self.unit // self.together

    @property
    def unit(self) -> int:
        return UNIT if self.group >= self.k else min(self.group, UNIT)

    @property
    def units(self) -> int:
        """The units of a column; the last may be padded."""
        return -(-self.k // self.unit)

    @property
    def groups(self) -> int:
        return -(-self.k // self.group)

    def pack(self) -> tuple[TritonPacked, TritonPacked, TritonPacked | None]:
        """Pack words [n, units, lanes], scales [n, groups] and zero points alike."""
        scales = TritonPacked(np.ascontiguousarray(self._parameter(1)), self.source.inputs[1].dtype)
        raised = 8 if self.dtype == i4 else 0
        zeros = None
        if len(self.source.inputs) > 2:
            given = self.source.inputs[2].dtype
            kind = u8 if self.nibbles and not given.is_float else f32 if given.is_float else given
            data = self._parameter(2).astype(np.float32) + raised
            zeros = TritonPacked(np.ascontiguousarray(data.astype(kind.numpy)), kind)
        words = pack_words(self._bits(self.unit), self.unit, self.together)
        return TritonPacked(words, i32), scales, zeros

    def _bits(self, unit: int) -> Array:
        """Return codes [n, k] as whole bytes, padded at the end to whole units."""
        bits: Array = self._column_major(self._data(0).view(np.uint8))
        if self.dtype.bits == 4:
            # In two's complement, flipping the sign bit adds 8.
            bits = (bits & 15) ^ (8 if self.dtype == i4 else 0)
        padding = -self.k % unit
        return np.pad(bits, ((0, 0), (0, padding))) if padding else bits

    def column_codes(self, unit: int) -> Array:
        """The same, and never negative: codes with a sign are raised by half of their range."""
        bits = self._bits(unit)
        return bits ^ np.uint8(128) if self.dtype == i8 else bits

    @property
    def pairs(self) -> bool:
        """True if two products fit at once: scales fit f16, zero points are integers."""
        if not self.nibbles:
            return False
        scales, zeros = self.scales(), self.zeros()
        with np.errstate(over="ignore"):
            exact = np.array_equal(scales.astype(np.float16).astype(scales.dtype), scales)
        return exact and bool(np.all((zeros == np.rint(zeros)) & (zeros >= 0) & (zeros < 512)))

    def scales(self) -> Array:
        """Return scales [n, groups]."""
        return self._parameter(1)

    def zeros(self) -> Array:
        """Return zero points [n, groups] of codes that are never negative."""
        raised = {i4: 8, i8: 128}.get(self.dtype, 0)
        if len(self.source.inputs) > 2:
            return self._parameter(2).astype(np.float32) + np.float32(raised)
        return np.full((1, 1), raised, np.float32)

    def pack_pairs(self, chained: int) -> Paired:
        """Pack for two products at once; `chained` products are added before they are widened."""
        zeros, scales = self.zeros(), self.scales().astype(np.float16)
        # At least `chained` times the largest possible |q - z|, as a power of two.
        reach = 1 << int(chained * max(zeros.max(), 15 - zeros.min()) - 1).bit_length()
        words = TritonPacked(_words_of_pairs(self._bits(self.unit), self.unit), i32)
        if zeros.min() == zeros.max():
            given = TritonPacked(np.ascontiguousarray(scales), f16)
            return Paired(words, given, float(zeros.min()), reach)
        second = (-(zeros + 64) / reach).astype(np.float16).view(np.uint16)
        both = scales.view(np.uint16).astype(np.uint32) | second.astype(np.uint32) << np.uint32(16)
        return Paired(
            words, TritonPacked(np.ascontiguousarray(both).view(np.int32), i32), None, reach
        )

    def _data(self, index: int) -> Array:
        data = known(self.source.inputs[index])
        assert data is not None
        return data

    def _column_major(self, data: Array) -> Array:
        columns = data if self.by_column else data.swapaxes(-1, -2)
        return columns.reshape(-1, columns.shape[-1])

    def _parameter(self, index: int) -> Array:
        """Return a scale or zero point for every column and group."""
        data = self._data(index)
        if data.ndim < 2:
            columns = self.n * self.matrices
            data = np.broadcast_to(data.reshape(-1, 1), (columns, 1))
            return np.broadcast_to(data, (columns, self.groups))
        return self._column_major(data)


def pack_words(codes: Array, unit: int, together: int) -> Array:
    """Pack the codes of columns as words."""
    n, k = codes.shape
    parts = codes.reshape(n, k // unit, together, unit // together)
    words = np.zeros((n, k // unit, unit // together), np.uint32)
    for i in range(together):
        words |= parts[:, :, i].astype(np.uint32) << np.uint32(32 // together * i)
    return words.view(np.int32)


def _words_of_pairs(codes: Array, unit: int) -> Array:
    """Pack 4-bit codes of columns as words of four pairs."""
    n, k = codes.shape
    parts = codes.reshape(n, k // unit, 4, unit // 8, 2)
    words = np.zeros((n, k // unit, unit // 8), np.uint32)
    for i in range(4):
        for p in range(2):
            words |= parts[:, :, i, :, p].astype(np.uint32) << np.uint32(16 * p + 4 * i)
    return words.view(np.int32)


def codes_of(weights: Value) -> WeightCodes | None:
    """Return the codes that weights [k, n] are decoded from; None if this form cannot hold them."""
    by_column = False
    outer = weights.tensor.static[:-2]
    while isinstance(weights.op, Reshape) and _keeps_matrices(weights):
        weights = weights.inputs[0]
    rank = weights.tensor.rank
    if weights.op == Transpose((*range(rank - 2), rank - 1, rank - 2)):
        weights, by_column = weights.inputs[0], True
    op = weights.op
    if not isinstance(op, Dequantize) or math.prod(outer) != math.prod(weights.tensor.static[:-2]):
        return None
    if not all(isinstance(v.op, Constant) for v in weights.inputs):
        return None
    codes = weights.inputs[0].dtype
    if codes.bits not in (4, 8):
        return None
    along = -1 if by_column else -2
    k, n = weights.tensor.static[along], weights.tensor.static[-3 - along]
    group = k
    axis = None if op.axis is None else op.axis - rank
    if op.block and axis == along:
        group = op.block
    elif axis is not None and (op.block or axis == along or rank > 2):
        return None
    fits = group >= k or (group & (group - 1) == 0 and group >= LEAST_UNIT)
    if not fits:
        return None
    return WeightCodes(weights, by_column, n, k, min(group, k), math.prod(outer))


def _keeps_matrices(view: Value) -> bool:
    source = view.inputs[0].tensor
    return source.rank >= 2 and source.static[-2:] == view.tensor.static[-2:]


LARGEST_HALF = 65504.0
_REGISTERS = (
    "{{ .reg .b32 t, a, s, u, e, o, j, k, n; .reg .b16 l, h; .reg .f32 f, g, v; "
    "mov.b32 e, 0x000F000F; mov.b32 o, 0x00F000F0; mov.b32 n, 0x3C003C00; "
    "mov.b32 j, {}; mov.b32 k, {}; {} }}"
)
_CODES = (
    "lop3.b32 {0}, {1}, e, n, 0xEA; fma.rn.f16x2 {0}, {0}, j, {2}; ",
    "lop3.b32 {0}, {1}, o, n, 0xEA; fma.rn.f16x2 {0}, {0}, k, {3}; ",
)
_SHIFT = "shr.u32 t, {}, 8; "
_WIDEN = "mov.b32 {{l, h}}, {}; cvt.f32.f16 f, l; cvt.f32.f16 g, h; add.f32 {}, f, g; "


def _widened(chained: int) -> str:
    if chained == 4:
        return _WIDEN.format("s", "$0")
    return _WIDEN.format("s", "v") + _WIDEN.format("u", "f") + "add.f32 $0, v, f; "


def _product(chained: int, i: int, code: str, x: str) -> str:
    """Return product i, added to those before it in its chain."""
    total = "s" if i < chained else "u"
    added = f"fma.rn.f16x2 {total}, {code}, {x}, {total}; "
    return added if i % chained else f"mul.rn.f16x2 {total}, {code}, {x}; "


def twice(number: float) -> int:
    """Return the bits of a pair of equal halves."""
    return int(np.float16(number).view(np.uint16)) * 0x10001


def _hexadecimal(number: float) -> str:
    return f"0x{twice(number):08X}"


def factors(reach: int) -> tuple[float, float]:
    """Return the factors of fractions with a nibble at the bottom, and four bits up."""
    return 1024 / reach, 64 / reach


def addends(zero: float, reach: int) -> tuple[float, float]:
    """Return the addends for a zero point."""
    return -(1024 + zero) / reach, -(64 + zero) / reach


def _with_registers(reach: int, lines: str) -> str:
    return _REGISTERS.format(*map(_hexadecimal, factors(reach)), lines)


def products(reach: int, chained: int) -> str:
    """PTX: $0, a float, of eight products: $1 the word, $2 and $3 the addends, $4 to $7 pairs."""
    lines = []
    for i in range(4):
        if i == 2:
            lines.append(_SHIFT.format("$1"))
        lines.append(_CODES[i % 2].format("a", "$1" if i < 2 else "t", "$2", "$3"))
        lines.append(_product(chained, i, "a", f"${i + 4}"))
    return _with_registers(reach, "".join(lines) + _widened(chained))


def decoded(reach: int) -> str:
    """PTX: $0 to $3, the four pairs of a word $4 with the addends $5 and $6."""
    lines = []
    for i in range(4):
        if i == 2:
            lines.append(_SHIFT.format("$4"))
        lines.append(_CODES[i % 2].format(f"${i}", "$4" if i < 2 else "t", "$5", "$6"))
    return _with_registers(reach, "".join(lines))


def summed(chained: int) -> str:
    """PTX: $0, a float, of the products of four pairs $1 to $4 with others, $5 to $8."""
    lines = "".join(_product(chained, i, f"${i + 1}", f"${i + 5}") for i in range(4))
    registers = "{ .reg .b32 s, u; .reg .b16 l, h; .reg .f32 f, g, v; "
    return registers + lines + _widened(chained) + "}"


SCALED = "mul.rn.f16x2 $0, $1, $2;"


def spread(reach: int) -> str:
    """PTX: $0 and $1, both addends twice, from the second in the upper half of $2."""
    step = _hexadecimal((64 - 1024) / reach)
    return (
        f"{{ .reg .b32 c; mov.b32 c, {step}; "
        "prmt.b32 $1, $2, $2, 0x3232; add.rn.f16x2 $0, $1, c; }"
    )


@dataclass(frozen=True)
class Halves:
    """Writes work on pairs of f16, as blocks of words."""

    w: Writer
    reach: int
    chained: int
    interpreted: bool = False

    def addends(self, shared: str) -> tuple[str, str]:
        """Return both addends as pairs, from words with the second in their upper halves."""
        if self.interpreted:
            second = self.part(shared, 1)
            first = self.w.let(f"{second} + {(64 - 1024) / self.reach}", "h")
            return self._pair(first, first), self._pair(second, second)
        a, b = self._machine(spread(self.reach), "=&r,=&r,r", [shared], 2)
        return a, b

    def products(self, words: str, added: tuple[str, str], pairs: Sequence[str]) -> str:
        """The sums of the eight products of each word, as f32."""
        if self.interpreted:
            return self.summed(self.decoded(words, added), pairs)
        operands = [words, *added, *pairs]
        return self._machine(products(self.reach, self.chained), "=f,r,r,r,r,r,r,r", operands)[0]

    def decoded(self, words: str, added: tuple[str, str]) -> tuple[str, ...]:
        """The four pairs of each word."""
        if not self.interpreted:
            names = self._machine(decoded(self.reach), "=&r,=&r,=&r,=&r,r,r,r", [words, *added], 4)
            return tuple(names)
        found = []
        for i in range(4):
            mask = f"0x{(0xF0 if i % 2 else 0xF) * 0x10001:08X}"
            moved = f"({words} >> 8)" if i > 1 else words
            fraction = self.w.let(f"({moved} & {mask}) | 0x3C003C00")
            factor = factors(self.reach)[i % 2]
            both = [
                f"{self.part(fraction, p)} * {factor} + {self.part(added[i % 2], p)}"
                for p in (0, 1)
            ]
            found.append(self._pair(*both))
        return tuple(found)

    def summed(self, codes: Sequence[str], pairs: Sequence[str]) -> str:
        """Return the sums of the products of four pairs with others, as f32."""
        if not self.interpreted:
            return self._machine(summed(self.chained), "=f" + ",r" * 8, [*codes, *pairs])[0]
        sums = []
        for p in range(2):
            made = [
                f"{self.part(c, p)} * {self.part(x, p)}" for c, x in zip(codes, pairs, strict=True)
            ]
            for i in range(0, 4, self.chained):
                sums.append(f"({' + '.join(made[i : i + self.chained])}).to(tl.float32)")
        return self.w.let(" + ".join(sums), "s")

    def scaled(self, x: str, by: str) -> str:
        """Products of pairs, rounded once."""
        if self.interpreted:
            return self._pair(*(f"{self.part(x, p)} * {self.part(by, p)}" for p in (0, 1)))
        return self._machine(SCALED, "=r,r,r", [x, by])[0]

    def part(self, pair: str, which: int) -> str:
        """The first or the second half of pairs, as f16."""
        bits = f"({pair} >> 16)" if which else pair
        return self.w.let(f"{bits}.to(tl.int16).to(tl.float16, bitcast=True)", "h")

    def pair(self, first: str, second: str) -> str:
        """Return two f16 in memory form as a pair."""
        low, high = (f"({x}).to(tl.int16, bitcast=True).to(tl.int32)" for x in (first, second))
        return self.w.let(f"({low} & 0xFFFF) | ({high} << 16)", "xx")

    _pair = pair

    def _machine(
        self, text: str, constraints: str, operands: Sequence[str], results: int = 1
    ) -> list[str]:
        names = [self.w.name("s" if constraints.startswith("=f") else "xx") for _ in range(results)]
        kind = "tl.float32" if constraints.startswith("=f") else "tl.int32"
        kinds = kind if results == 1 else f"({', '.join([kind] * results)})"
        self.w.line(
            f'{", ".join(names)} = tl.inline_asm_elementwise("{text}", "{constraints}", '
            f"[{', '.join(operands)}], dtype={kinds}, is_pure=True, pack=1)"
        )
        return names
