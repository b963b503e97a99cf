"""Overlapped upload: a graph is launched before its inputs have arrived, and reads them as they do.

A launch takes the host and the driver some microseconds, and so does gathering half a MiB into
pinned memory. Here both overlap: the graph begins with the kernel of `upload_kernel`, whose blocks
wait for flags in pinned memory. Native code launches and gathers in one call without Python's lock,
so that no other thread can keep the device waiting.

If a program rounds an f32 input to 16 bits first, the host may round it while it gathers (a
downcast), and the kernel widens it again. Kernels then compute the same bits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from monograph.codegen.llvm.module.features import Features, host_features
from monograph.ir import DType
from monograph.ir.dtype import bf16, f16
from monograph.runtime.cpu.native import NativeCode, compile_module

AT_ONCE = 4
"""Vector registers that are rounded together, so that their latencies overlap."""


def can_narrow(dtype: DType) -> bool:
    """Return whether the host rounds to this type about as fast as it copies."""
    return dtype == bf16 or (dtype == f16 and host_features().converts_half)


def narrow_text(dtype: DType, features: Features) -> str:
    """Return LLVM text of `@narrow`, which rounds `n` unaligned floats to nearest, ties to even.

    A NaN stays a NaN; the device canonicalises it when it casts.
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
    """Return a loop that rounds `lanes` numbers at a time.

    begin: the first index and the block that it comes from; end: the index after the last.
    """
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
    """Return integer code that rounds to bf16: take the upper half, and add 1 as the lower one
    says.

    Few hosts have an instruction for it. A carry turns the largest numbers into infinity.
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


THREADS, EACH = 512, 4
GRAIN = THREADS * EACH * 16
"""Threads of a block of the kernel, 16-byte words per thread, and bytes per block. Each block has
an arrival flag in a cache line of its own, because blocks that poll one line are served one by
one."""
LINE = 64
"""Bytes of a cache line. The first line says that a block has timed out."""
LARGEST = 8 << 20
"""Maximum bytes of an overlapped upload: more blocks would occupy the device while they wait."""
SECONDS = 5
"""Seconds before the device gives up, for example because a debugger stopped the host."""
_FIRST = 8
"""Words of a plan before the arrays: see @start."""
_PART = 6
"""Words of a part: see @start."""

_COPIED = "call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %source, i64 %size, i1 false)"
_NARROWED = f"""%narrows = icmp ne i64 %kind, 0
  br i1 %narrows, label %narrow, label %copy
narrow:
  call void @narrow(ptr %to, ptr %source, i64 %size)
  br label %brought
copy:
  {_COPIED}"""
_START = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Launches a graph, copies parts of arrays into pinned memory, and sets flags of complete blocks.
; A plan: launch, executable, stream, staging, control, blocks, parts, number of parts, arrays.
; A part: array, offset in it, offset in the buffer, blocks that are complete after it, bytes, 0.
; A narrowed part ends with the count of numbers and 1.
define i32 @start(ptr %plan) nounwind {{
entry:
  %p1 = getelementptr i64, ptr %plan, i64 1
  %p2 = getelementptr i64, ptr %plan, i64 2
  %p3 = getelementptr i64, ptr %plan, i64 3
  %p4 = getelementptr i64, ptr %plan, i64 4
  %p5 = getelementptr i64, ptr %plan, i64 5
  %p6 = getelementptr i64, ptr %plan, i64 6
  %p7 = getelementptr i64, ptr %plan, i64 7
  %arrays = getelementptr i64, ptr %plan, i64 {_FIRST}
  %launch = load ptr, ptr %plan, align 8
  %executable = load ptr, ptr %p1, align 8
  %stream = load ptr, ptr %p2, align 8
  %staging = load ptr, ptr %p3, align 8
  %control = load ptr, ptr %p4, align 8
  %blocks = load i64, ptr %p5, align 8
  %parts = load ptr, ptr %p6, align 8
  %count = load i64, ptr %p7, align 8
  %error = call i32 %launch(ptr %executable, ptr %stream)
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %told.all]
  %told = phi i64 [0, %entry], [%now, %told.all]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %tell
body:
  %part = getelementptr [{_PART} x i64], ptr %parts, i64 %i
  %a1 = getelementptr i64, ptr %part, i64 1
  %a2 = getelementptr i64, ptr %part, i64 2
  %a3 = getelementptr i64, ptr %part, i64 3
  %a4 = getelementptr i64, ptr %part, i64 4
  %a5 = getelementptr i64, ptr %part, i64 5
  %which = load i64, ptr %part, align 8
  %first = load i64, ptr %a1, align 8
  %offset = load i64, ptr %a2, align 8
  %complete = load i64, ptr %a3, align 8
  %size = load i64, ptr %a4, align 8
  %kind = load i64, ptr %a5, align 8
  %place = getelementptr i64, ptr %arrays, i64 %which
  %array = load ptr, ptr %place, align 8
  %source = getelementptr i8, ptr %array, i64 %first
  %to = getelementptr i8, ptr %staging, i64 %offset
  BRING
  br label %brought
brought:
  br label %tell
tell:
  %upto = phi i64 [%complete, %brought], [%blocks, %head]
  br label %telling
telling:
  %now = phi i64 [%told, %tell], [%then, %say]
  %left = icmp ult i64 %now, %upto
  br i1 %left, label %say, label %told.all
say:
  %then = add i64 %now, 1
  %skipped = mul i64 %then, {LINE}
  %at = getelementptr i8, ptr %control, i64 %skipped
  store atomic i32 1, ptr %at release, align 4
  br label %telling
told.all:
  %next = add i64 %i, 1
  br i1 %more, label %head, label %done
done:
  ret i32 %error
}}
"""


def can_overlap() -> bool:
    """Return whether launches return before the device is done. Under a debugger they do not."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") in ("", "0")


def start_text(narrowed: DType | None, features: Features) -> str:
    """Return LLVM text of `@start`; parts are rounded to `narrowed`, if given."""
    if narrowed is None:
        return _START.replace("BRING", _COPIED)
    return _START.replace("BRING", _NARROWED) + narrow_text(narrowed, features)


@cache
def _start(narrowed: DType | None) -> Any:
    features = host_features()
    code = NativeCode([compile_module(start_text(narrowed, features), features)], ("start",))
    code.keep()
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(code.address("start"))


class OverlappedUpload:
    """Launches a graph and uploads its inputs. For one caller at a time."""

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        nbytes: int,
        narrowed: DType | None = None,
        narrow_to: int = 0,
    ) -> None:
        """Take the start and end of each input in a staging buffer, and the bytes of all.

        Inputs before `narrow_to` are f32. They are rounded to `narrowed`, which halves their
        offsets.
        """
        parts = [n for part in _with_kinds(spans, nbytes, narrow_to) for n in part]
        self._parts = (ctypes.c_uint64 * max(len(parts), 1))(*parts)
        self._count = len(parts) // _PART
        self._narrowed = narrowed
        self._kept: Sequence[Any] = ()
        self._plan = (ctypes.c_uint64 * (_FIRST + len(spans)))()
        self._address = ctypes.addressof(self._plan)
        self._plan[5] = blocks_of(nbytes, narrow_to)
        self._plan[6] = ctypes.addressof(self._parts)

    def aim(
        self, staging: int, control: int, arrays: Sequence[int], kept: Sequence[Any] = ()
    ) -> None:
        """Set the buffer and the arrays in the order of inputs; no arrays if they are gathered
        already.

        kept: objects that must live until the arrays have been copied.
        """
        plan, self._kept = self._plan, kept
        plan[3], plan[4], plan[7] = staging, control, self._count if arrays else 0
        for number, address in enumerate(arrays):
            plan[_FIRST + number] = address

    def __call__(self, launch: int, executable: int, stream: int) -> int:
        """Launch and copy; return the error of `launch`, the driver's function."""
        plan = self._plan
        plan[0], plan[1], plan[2] = launch, executable, stream
        try:
            return int(_start(self._narrowed)(self._address))
        finally:
            self._kept = ()


def blocks_of(nbytes: int, narrow_to: int = 0) -> int:
    """Return the number of blocks that copy so many bytes; narrowed inputs have their own."""
    return -(-narrow_to // GRAIN) - (narrow_to - nbytes) // GRAIN


def control_bytes(nbytes: int, narrow_to: int = 0) -> int:
    """Return the bytes of arrival flags, or 0 if the inputs are too large for this mode."""
    return LINE * (blocks_of(nbytes, narrow_to) + 1) if 0 < nbytes <= LARGEST else 0


def parts_of(
    spans: Sequence[tuple[int, int]], nbytes: int, narrow_to: int = 0
) -> list[tuple[int, int, int, int, int]]:
    """Return the parts that are copied at a time, in the buffer's order; each is in one block."""
    cuts, complete = [], []
    for number, (begin, end) in enumerate(spans):
        base = 0 if begin < narrow_to else narrow_to
        over = begin - (begin - base) % GRAIN + GRAIN
        starts = [begin, *range(over, end, GRAIN)] if end > begin else []
        for start, stop in zip(starts, [*starts[1:], end], strict=False):
            cuts.append((number, start - begin, start, stop - start))
            complete.append(blocks_of(base) + (start - base) // GRAIN)
    behind = [*complete[1:], blocks_of(nbytes, narrow_to)]
    return [(*cut, count) for cut, count in zip(cuts, behind, strict=False)]


def _with_kinds(
    spans: Sequence[tuple[int, int]], nbytes: int, narrow_to: int
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield the parts as @start reads them. Narrowed inputs take half the room."""
    for number, first, at, size, complete in parts_of(spans, nbytes, narrow_to):
        if at < narrow_to:
            yield number, first, at // 2, complete, size // 4, 1
        else:
            yield number, first, at, complete, size, 0
