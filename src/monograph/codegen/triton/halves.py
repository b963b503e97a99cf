"""Codes of 4 bits times f16 on NVIDIA's units, two products at once.

A pair of nibbles is put into the fractions of two ones: 1 + q / 1024 or, four bits further up,
1 + q / 64, so that two of three nibbles need no shift. One multiplication with addition makes
(q - z) / reach of that: all of its numbers are exact in f16, and so is the result. The reach is a
power of two that makes it 1/2 at most. A product loses at most 2^-11 of itself, and so does the sum
of two; that sum is never larger than the larger x, so that nothing overflows however large x is. It
is then widened and added in f32: what eight products lose is at most 2^-10 of the sum of their
sizes. Below 2^-14 halves are coarser: of products with x less than reach * 2^-14 up to
reach * 2^-25 is lost instead.

Triton's interpreter knows no machine code: there the same steps are written in Triton's own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.triton.writer import Writer

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
_WIDEN = (
    "mov.b32 {l, h}, s; cvt.f32.f16 f, l; cvt.f32.f16 g, h; add.f32 v, f, g; "
    "mov.b32 {l, h}, u; cvt.f32.f16 f, l; cvt.f32.f16 g, h; add.f32 f, f, g; add.f32 $0, v, f;"
)


def twice(number: float) -> int:
    """The bits of a pair of equal halves."""
    return int(np.float16(number).view(np.uint16)) * 0x10001


def _hexadecimal(number: float) -> str:
    return f"0x{twice(number):08X}"


def factors(reach: int) -> tuple[float, float]:
    """What fractions with a nibble at the bottom, and four bits up, are multiplied by."""
    return 1024 / reach, 64 / reach


def addends(zero: float, reach: int) -> tuple[float, float]:
    """What is then added, for a zero point."""
    return -(1024 + zero) / reach, -(64 + zero) / reach


def _with_registers(reach: int, lines: str) -> str:
    return _REGISTERS.format(*map(_hexadecimal, factors(reach)), lines)


def products(reach: int) -> str:
    """PTX: $0, a float, of eight products: $1 the word, $2 and $3 the addends, $4 to $7 pairs."""
    lines = []
    for i in range(4):
        if i == 2:
            lines.append(_SHIFT.format("$1"))
        total, source = ("s", "$1") if i < 2 else ("u", "t")
        lines.append(_CODES[i % 2].format("a", source, "$2", "$3"))
        added = f"fma.rn.f16x2 {total}, a, ${i + 4}, {total}; "
        lines.append(added if i % 2 else f"mul.rn.f16x2 {total}, a, ${i + 4}; ")
    return _with_registers(reach, "".join(lines) + _WIDEN)


def decoded(reach: int) -> str:
    """PTX: $0 to $3, the four pairs of a word $4 with the addends $5 and $6."""
    lines = []
    for i in range(4):
        if i == 2:
            lines.append(_SHIFT.format("$4"))
        lines.append(_CODES[i % 2].format(f"${i}", "$4" if i < 2 else "t", "$5", "$6"))
    return _with_registers(reach, "".join(lines))


SUMMED = (
    "{ .reg .b32 s, u; .reg .b16 l, h; .reg .f32 f, g, v; "
    "mul.rn.f16x2 s, $1, $5; fma.rn.f16x2 s, $2, $6, s; "
    "mul.rn.f16x2 u, $3, $7; fma.rn.f16x2 u, $4, $8, u; " + _WIDEN + " }"
)
"""PTX: $0, a float, of the products of four pairs $1 to $4 with others, $5 to $8."""
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
    """Writes work on pairs of halves, as blocks of words."""

    w: Writer
    reach: int
    interpreted: bool = False

    def addends(self, shared: str) -> tuple[str, str]:
        """Both addends as pairs, from words that hold the second in their upper halves."""
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
        return self._machine(products(self.reach), "=f,r,r,r,r,r,r,r", operands)[0]

    def decoded(self, words: str, added: tuple[str, str]) -> tuple[str, ...]:
        """The four pairs of each word."""
        if not self.interpreted:
            names = self._machine(decoded(self.reach), "=&r,=&r,=&r,=&r,r,r,r", [words, *added], 4)
            return tuple(names)
        found = []
        for i in range(4):
            fraction = self.w.let(
                f"(({words} >> {8 * (i // 2)}) & {0xF0 if i % 2 else 0xF:#x} * 0x10001) | 0x3C003C00"
            )
            factor = factors(self.reach)[i % 2]
            both = [f"{self.part(fraction, p)} * {factor} + {self.part(added[i % 2], p)}" for p in (0, 1)]
            found.append(self._pair(*both))
        return tuple(found)

    def summed(self, codes: Sequence[str], pairs: Sequence[str]) -> str:
        """The sums of the products of four pairs with others, as f32."""
        if not self.interpreted:
            return self._machine(SUMMED, "=f" + ",r" * 8, [*codes, *pairs])[0]
        halves = [[f"{self.part(c, p)} * {self.part(x, p)}" for p in (0, 1)] for c, x in zip(codes, pairs, strict=True)]
        sums = [f"({halves[i][p]} + {halves[i + 1][p]}).to(tl.float32)" for i in (0, 2) for p in (0, 1)]
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
        """Two halves as they are in memory, as a pair."""
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
