"""Codes of 4 bits times f16 on NVIDIA's units, two products at once.

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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.emit.writer import Writer

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
