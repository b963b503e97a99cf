"""Numbers that cross from the host to the device in half their room.

What a program rounds to 16 bits before anything else (see `program.casts`), the host may round
while it gathers, and the device widens again where it takes it: kernels find what they expect, and
make the same bits of it. What is here is the half of the host; the other one is in `taking`.
"""

from __future__ import annotations

from monograph.codegen.llvm.module.features import Features, host_features
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16

AT_ONCE = 4
"""Registers full of numbers that are rounded at a time, so that they are under way together."""


def can_narrow(dtype: DType) -> bool:
    """Whether the host rounds to this type about as fast as it copies."""
    return dtype == bf16 or (dtype == f16 and host_features().converts_half)


def narrow_text(dtype: DType, features: Features) -> str:
    """LLVM's text of `@narrow`: rounds `n` floats, wherever they lie, to the nearest, ties to even.

    A NaN stays one. The device makes its own of it when it casts, as of any.
    """
    many = AT_ONCE * features.lanes(32)
    return f"""
define internal void @narrow(ptr %to, ptr %from, i64 %n) nounwind {{
entry:
  %left = urem i64 %n, {many}
  %whole = sub i64 %n, %left
  br label %many.head
{_loop(dtype, "many", many, ("0", "entry"), "%whole", "one.head")}
{_loop(dtype, "one", 1, ("%whole", "many.head"), "%n", "done")}
done:
  ret void
}}
"""


def _loop(dtype: DType, tag: str, lanes: int, begin: tuple[str, str], end: str, after: str) -> str:
    """Rounds so many at a time, from an index that comes from a block, up to another index."""
    first, before = begin
    return f"""
{tag}.head:
  %{tag}.i = phi i64 [{first}, %{before}], [%{tag}.next, %{tag}.body]
  %{tag}.more = icmp ult i64 %{tag}.i, {end}
  br i1 %{tag}.more, label %{tag}.body, label %{after}
{tag}.body:
  %{tag}.source = getelementptr float, ptr %from, i64 %{tag}.i
  %{tag}.place = getelementptr i16, ptr %to, i64 %{tag}.i
  %{tag}.x = load <{lanes} x float>, ptr %{tag}.source, align 1
{(_to_f16 if dtype == f16 else _to_bf16)(tag, lanes)}
  store <{lanes} x i16> %{tag}.y, ptr %{tag}.place, align 2
  %{tag}.next = add i64 %{tag}.i, {lanes}
  br label %{tag}.head"""


def _to_f16(tag: str, lanes: int) -> str:
    return f"""
  %{tag}.half = fptrunc <{lanes} x float> %{tag}.x to <{lanes} x half>
  %{tag}.y = bitcast <{lanes} x half> %{tag}.half to <{lanes} x i16>"""


def _to_bf16(tag: str, lanes: int) -> str:
    """By integers: the upper half, one more where the lower one is above a half, or odd and at it.

    Few hosts have instructions for it. What carries over makes infinity of the largest numbers.
    """
    words, bits = f"<{lanes} x i32>", f"%{tag}.bits"

    def every(number: int) -> str:
        return "<" + ", ".join([f"i32 {number}"] * lanes) + ">"

    return f"""
  {bits} = bitcast <{lanes} x float> %{tag}.x to {words}
  %{tag}.upper = lshr {words} {bits}, {every(16)}
  %{tag}.odd = and {words} %{tag}.upper, {every(1)}
  %{tag}.more.than = add {words} %{tag}.odd, {every(0x7FFF)}
  %{tag}.carried = add {words} {bits}, %{tag}.more.than
  %{tag}.rounded = lshr {words} %{tag}.carried, {every(16)}
  %{tag}.quiet = or {words} %{tag}.upper, {every(0x40)}
  %{tag}.nan = fcmp uno <{lanes} x float> %{tag}.x, %{tag}.x
  %{tag}.chosen = select <{lanes} x i1> %{tag}.nan, {words} %{tag}.quiet, {words} %{tag}.rounded
  %{tag}.y = trunc {words} %{tag}.chosen to <{lanes} x i16>"""
