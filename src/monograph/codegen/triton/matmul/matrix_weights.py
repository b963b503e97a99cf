"""Weights as tiles for the matrix units: numbers, or codes of 4 and 8 bits.

A step of a sum takes `depth` elements of every column, in `chunks` tiles [columns, width] of
consecutive elements. Numbers have one tile a step. Codes lie in words of 32 bits, as in `codes`,
but a unit is as long as a step: code i of a unit's words makes tile i, whose elements share a
scale, so that a scale is one number for each column of a tile.

On NVIDIA's units two neighbouring codes are decoded at once. The code is put into the fraction of
1024 (f16) or 128 (bf16); a fused multiply-add leaves code minus zero point, which is exact, and a
product with the scale is rounded once, as a stored weight would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.matmul.codes import WeightCodes, pack_words
from monograph.codegen.triton.matmul.product import Operands
from monograph.codegen.triton.module.kernel import TritonPacked
from monograph.codegen.triton.module.launch import Arch
from monograph.ir import Array, DType
from monograph.ir.dtype import f16, f32, i32

WIDTHS = (32, 16)
"""Words of a unit: elements of a tile of codes."""


@dataclass(frozen=True)
class Columns:
    """The columns of a program's tile: numbers [columns, 1] and their mask."""

    text: str
    mask: str | None
    block: int


class MatrixWeights(Protocol):
    """The weights of a product as tiles."""

    @property
    def chunks(self) -> int:
        """The tiles of a step."""

    @property
    def bits(self) -> int:
        """The bits of a weight in memory."""

    def width(self, depth: int) -> int:
        """Return the elements of a tile."""

    def load(self, o: Operands, step: str, depth: int, columns: Columns, start: int) -> list[str]:
        """Load what a step needs of the columns from `start` on."""

    def tile(self, o: Operands, loaded: list[str], chunk: int) -> str:
        """Return a tile [columns, width] of what was loaded."""

    def finished(self, o: Operands, sums: str, columns: Columns, start: int) -> str:
        """Return the sums [columns, 1] with what is left to do for each column."""


def inside(text: str, mask: str | None) -> str:
    return f", mask={mask}, other=0" if mask else ""


@dataclass
class PlainWeights:
    """Constant numbers, packed with contiguous columns."""

    packed: TritonPacked
    k: int
    chunks = 1
    bits = 16

    def width(self, depth: int) -> int:
        return depth

    def load(self, o: Operands, step: str, depth: int, columns: Columns, start: int) -> list[str]:
        if o.packed is None:
            o.pack(self.packed)
        w = o.k.w
        now = w.let(f"({step}) * {depth} + tl.arange(0, {depth})[None, :]", "kk")
        mask = w.let(f"{now} < {self.k}", "m") if self.k % depth else None
        return [o.rows(BlockAxis(now, mask), BlockAxis(columns.text, columns.mask), True, start)]

    def tile(self, o: Operands, loaded: list[str], chunk: int) -> str:
        return loaded[0]

    def finished(self, o: Operands, sums: str, columns: Columns, start: int) -> str:
        return sums


@dataclass(frozen=True)
class Fraction:
    """The decoding of codes in the fraction of a power of two, in pairs."""

    one: int
    """The power of two, twice, as bits."""
    value: float
    kind: str
    """The PTX type of a pair."""


FRACTIONS = {
    "f16": Fraction(0x64006400, 1024.0, "f16x2"),
    "bf16": Fraction(0x43004300, 128.0, "bf16x2"),
}


@dataclass
class CodedTiles:
    """Codes of 4 or 8 bits with scales and zero points, decoded to the type of the rows."""

    codes: WeightCodes
    kind: DType
    arch: Arch

    @property
    def chunks(self) -> int:
        return self.codes.together

    @property
    def bits(self) -> int:
        return self.codes.dtype.bits

    def width(self, depth: int) -> int:
        return depth // self.chunks

    @cached_property
    def depth(self) -> int:
        """The elements of a unit: as many as fit a group, with the least padding."""
        fitting = [self.chunks * w for w in WIDTHS if w <= max(self.codes.group, WIDTHS[-1])]
        return min(fitting, key=lambda unit: (-(-self.codes.k // unit) * unit, -unit))

    @property
    def units(self) -> int:
        return -(-self.codes.k // self.depth)

    @property
    def one_group(self) -> bool:
        """True if a column has one scale, which its sum is multiplied by."""
        return self.codes.groups == 1

    @cached_property
    def in_pairs(self) -> bool:
        """True if two codes are decoded at once: NVIDIA's units, and numbers that fit."""
        narrow = self.kind == f16 or (self.codes.nibbles and self.kind.name == "bf16")
        if self.arch.backend != "cuda" or self.arch.interpreted or not narrow:
            return False
        zeros = self.codes.zeros()
        whole = bool(np.all((zeros == np.rint(zeros)) & (zeros >= 0) & (zeros <= 255)))
        if self.codes.nibbles:
            whole = whole and float(zeros.max(initial=0)) <= 127
        return whole and _same(self.codes.scales(), self.kind)

    @cached_property
    def words(self) -> TritonPacked:
        """Words [n, units, width]."""
        return TritonPacked(
            pack_words(self.codes.column_codes(self.depth), self.depth, self.chunks), i32
        )

    @cached_property
    def shared(self) -> tuple[TritonPacked, ...]:
        """Scales and zero points [groups, n]: in pairs of one word, or as two arrays of f32."""
        scales, zeros = self.codes.scales(), self.codes.zeros()
        zeros = np.broadcast_to(zeros, scales.shape)
        if not self.in_pairs:
            return self._padded(scales.astype(np.float32), f32), self._padded(zeros, f32)
        added = -(np.float32(FRACTIONS[self.kind.name].value) + zeros)
        low, high = (
            x.astype(self.kind.numpy).view(np.uint16).astype(np.uint32) for x in (scales, added)
        )
        return (self._padded((low | high << np.uint32(16)).view(np.int32), i32),)

    def _padded(self, data: Array, dtype: DType) -> TritonPacked:
        """Transpose [n, groups], and add groups of the elements after the last."""
        groups = 1 if self.one_group else -(-self.units * self.depth // self.codes.group)
        wide = np.zeros((groups, data.shape[0]), dtype.numpy)
        wide[: data.shape[1]] = data.T
        return TritonPacked(wide, dtype)

    # Loads

    def load(self, o: Operands, step: str, depth: int, columns: Columns, start: int) -> list[str]:
        w, width = o.k.w, self.depth // self.chunks
        column = self._column(o, columns.text, start)
        many = self.units * width
        far = ".to(tl.int64)" if self.codes.n * self.codes.matrices * many >= 1 << 31 else ""
        where = f"({column}){far} * {many} + ({step}) * {width} + tl.arange(0, {width})[None, :]"
        options = inside("", columns.mask) + ', eviction_policy="evict_first"'
        words = w.let(f"tl.load({o.k.pointer(self.words)} + {where}{options})", "w")
        if self.one_group:
            return [words, *self._numbers(o, "0", column, columns.mask)]
        found = [words]
        for group in range(max(self.depth // self.codes.group, 1)):
            apart = self.codes.group // self.depth
            number = f"({step}) // {apart}" if apart > 1 else step
            if apart < 1:
                number = f"({step}) * {self.depth // self.codes.group} + {group}"
            found += self._numbers(o, number, column, columns.mask)
        return found

    def _column(self, o: Operands, columns: str, start: int) -> str:
        first = o.first_column() if self.codes.matrices > 1 else ""
        return o.k.w.let(" + ".join(p for p in (columns, str(start) if start else "", first) if p))

    def _numbers(self, o: Operands, group: str, column: str, mask: str | None) -> list[str]:
        """Load scales and zero points of a group, [columns, 1]."""
        n = self.codes.n * self.codes.matrices
        where = f"({group}) * {n} + {column}"
        return [
            o.k.w.let(f"tl.load({o.k.pointer(x)} + {where}{inside('', mask)})", "s")
            for x in self.shared
        ]

    # Tiles

    def tile(self, o: Operands, loaded: list[str], chunk: int) -> str:
        words, *numbers = loaded
        each = len(self.shared)
        per_group = max(min(self.codes.group, self.depth) // self.width(self.depth), 1)
        first = 0 if self.one_group else chunk // per_group * each
        given = numbers[first : first + each]
        return (self._pair if self.in_pairs else self._plain)(o, words, given, chunk)

    def _plain(self, o: Operands, words: str, numbers: list[str], chunk: int) -> str:
        w, bits = o.k.w, self.codes.dtype.bits
        scale, zero = numbers
        moved = f"({words} >> {bits * chunk})" if chunk else words
        made = f"({moved} & {(1 << bits) - 1}).to(tl.float32) - {zero}"
        made = made if self.one_group else f"({made}) * {scale}"
        return w.let(f"({made}).to({self._type})", "q")

    @property
    def _type(self) -> str:
        return "tl.float16" if self.kind == f16 else "tl.bfloat16"

    def _pair(self, o: Operands, words: str, numbers: list[str], chunk: int) -> str:
        w, bits = o.k.w, self.codes.dtype.bits
        there = 16 // bits
        half = w.let(
            f"({words} >> 16).to(tl.int16)" if chunk >= there else f"{words}.to(tl.int16)", "h"
        )
        scale, added = self._halves(o, numbers[0])
        place = chunk % there
        text, raised = decoding(self.kind.name, bits, place, not self.one_group)
        if raised:
            added = w.let(f"{added} + {raised}", "z")
        constraints, given = ("=r,r,r,r", [half, added, scale])
        if self.one_group:
            constraints, given = "=r,r,r", given[:2]
        return w.let(
            f'tl.inline_asm_elementwise("{text}", "{constraints}", [{", ".join(given)}], '
            f"dtype={self._type}, is_pure=True, pack=2)",
            "q",
        )

    def _halves(self, o: Operands, shared: str) -> tuple[str, str]:
        """Return scales and addends, [columns, 1]."""
        w = o.k.w
        low = w.let(f"{shared}.to(tl.int16).to({self._type}, bitcast=True)", "s")
        high = w.let(f"({shared} >> 16).to(tl.int16).to({self._type}, bitcast=True)", "z")
        return low, high

    def finished(self, o: Operands, sums: str, columns: Columns, start: int) -> str:
        """Return sums of whole columns, scaled if a column has one scale."""
        if not self.one_group:
            return sums
        column = self._column(o, columns.text, start)
        given = self._numbers(o, "0", column, columns.mask)
        scale = self._halves(o, given[0])[0] if self.in_pairs else given[0]
        return o.k.w.let(f"({sums}) * {scale}.to(tl.float32)", "s")


def _same(data: Array, kind: DType) -> bool:
    """Return True if numbers are finite and the same in a type."""
    with np.errstate(over="ignore"):
        narrow = data.astype(kind.numpy).astype(np.float64)
    return bool(np.array_equal(narrow, data.astype(np.float64)) and np.isfinite(narrow).all())


def decoding(kind: str, bits: int, place: int, scaled: bool) -> tuple[str, float]:
    """PTX: $0, a pair of numbers, of the code at a place in each half of $1, addend $2, scale $3.

    Returns it with what the addend must be raised by.
    """
    f = FRACTIONS[kind]
    shift, factor, raised = bits * place, 1.0, 0.0
    if kind == "f16" and bits == 4 and place % 2:
        # Four bits further up in the fraction: only every other code is moved.
        shift, factor, raised = shift - 4, 1 / 16, 960.0
    mask = ((1 << bits) - 1) << (bits * place - shift)
    lines = ["{ .reg .b32 t, m, o, f, n;", f"mov.b32 m, 0x{mask * 0x10001:08X};"]
    lines.append(f"mov.b32 o, 0x{f.one:08X};")
    lines.append(f"mov.b32 f, 0x{_twice(factor, kind):08X};")
    lines.append(f"shr.u32 t, $1, {shift};" if shift else "mov.b32 t, $1;")
    lines.append("lop3.b32 t, t, m, o, 0xEA;")
    made = "t" if scaled else "$0"
    lines.append(f"fma.rn.{f.kind} {made}, t, f, $2;")
    if scaled and kind == "f16":
        lines.append("mul.rn.f16x2 $0, t, $3;")
    elif scaled:  # a product of its own needs a newer device
        lines += ["mov.b32 n, 0x80008000;", f"fma.rn.{f.kind} $0, t, $3, n;"]
    return " ".join([*lines, "}"]), raised


def _twice(number: float, kind: str) -> int:
    """Return the bits of a pair of equal numbers."""
    if kind == "f16":
        return int(np.float16(number).view(np.uint16)) * 0x10001
    return int(np.float32(number).view(np.uint32) >> np.uint32(16)) * 0x10001
