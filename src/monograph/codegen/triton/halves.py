"""Codes of 4 bits times f16 on NVIDIA's units, two products at once.

A nibble becomes the upper bits of a fraction, 1 + q / 16, and less 1.5 that is (q - 8) / 16, which
is exact: centred, so that sums stay small. Of each product, and of each sum of two or four of them,
at most 2^-11 of it is lost; they are then widened and added in f32. Two products of |(q - 8) / 16|
<= 1/2 are never larger than the largest x, so that they cannot overflow; four of them may be twice
as large, and are added only where x is known to be small.
"""

from __future__ import annotations

LARGEST_HALF = 65504.0
_DECODE = (
    "{{ .reg .b32 t, a, m, o, n, s, u; .reg .b16 l, h; .reg .f32 f, g; "
    "mov.b32 m, 0x03C003C0; mov.b32 o, 0x3C003C00; mov.b32 n, 0xBE00BE00; {} }}"
)
_NIBBLE = "{} t, $1, {}; lop3.b32 a, t, m, o, 0xEA; add.rn.f16x2 a, a, n; "
_SHIFTS = (("shl.b32", 6), ("shl.b32", 2), ("shr.u32", 2), ("shr.u32", 6))
_WIDEN = "mov.b32 {{l, h}}, {}; cvt.f32.f16 f, l; cvt.f32.f16 g, h; "


def paired(chained: int) -> str:
    """PTX that adds eight products of (q - 8) / 16 with halves, so many pairs before widening."""
    lines = []
    for i, shift in enumerate(_SHIFTS):
        lines.append(_NIBBLE.format(*shift))
        x = f"${i + 2}"
        lines.append(f"fma.rn.f16x2 s, a, {x}, s; " if i % chained else f"mul.rn.f16x2 s, a, {x}; ")
        if (i + 1) % chained:
            continue
        lines.append(_WIDEN.format("s"))
        lines.append(
            "add.f32 f, f, g; " + ("add.f32 $0, $0, f; " if i >= chained else "mov.f32 $0, f; ")
        )
    return _DECODE.format("".join(lines))
