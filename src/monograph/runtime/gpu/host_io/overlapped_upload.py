"""Graphs that are launched before their inputs are there, and take them as they arrive.

A launch takes the host and the driver some microseconds, and so does gathering half a MiB into
pinned memory. Here both happen at once: the graph begins with a kernel that waits for each piece
until a word in pinned memory says that it has arrived. Launching and gathering are one call of
native code that needs no lock of Python's: whatever other threads do meanwhile, and be it to wait
for the device, the device gets what it waits for. On the way numbers may be rounded: `narrowing`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from monograph.codegen.llvm.module.features import Features, host_features
from monograph.ir import DType
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.gpu.host_io.host_downcast import narrow_text

THREADS, EACH = 512, 4
GRAIN = THREADS * EACH * 16
"""Threads of a block of the kernel, words of 16 bytes for each, and the bytes of a block. For every
block the host says in a line of its own that they have arrived: what many blocks ask of one line,
they are answered one after the other.
"""
LINE = 64
"""Bytes of such a line. One before them all says that a block has waited in vain."""
LARGEST = 8 << 20
"""Bytes beyond which blocks that wait would take the places of others on the device."""
SECONDS = 5
"""How long the device waits: a host that stops in between, under a debugger say, is an error."""
_FIRST = 8
"""Words of a plan before the arrays: see @start."""
_PART = 6
"""Words of a part: see there, too."""

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

; Launches a graph, copies parts of arrays into pinned memory, and says which blocks are complete.
; A plan: launch, executable, stream, slab, control, blocks, parts, how many parts, arrays.
; A part: which array, from where, to where in the slab, how many blocks are complete then, bytes,
; 0; or of what is narrowed how many numbers, 1.
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
  %slab = load ptr, ptr %p3, align 8
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
  %to = getelementptr i8, ptr %slab, i64 %offset
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


def can_arrive() -> bool:
    """Whether launches return before the device is done: a debugger's do not."""
    return os.environ.get("CUDA_LAUNCH_BLOCKING", "0") in ("", "0")


def start_text(narrowed: DType | None, features: Features) -> str:
    """LLVM's text of `@start`, which rounds parts to a type, or has none that are rounded."""
    if narrowed is None:
        return _START.replace("BRING", _COPIED)
    return _START.replace("BRING", _NARROWED) + narrow_text(narrowed, features)


@cache
def _start(narrowed: DType | None) -> Any:
    features = host_features()
    code = NativeCode([compile_module(start_text(narrowed, features), features)], ("start",))
    code.keep()
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(code.address("start"))


class Arrivals:
    """Launches a graph and brings its inputs. For one caller at a time."""

    def __init__(
        self,
        spans: Sequence[tuple[int, int]],
        nbytes: int,
        narrowed: DType | None = None,
        narrow_to: int = 0,
    ) -> None:
        """Where in a slab each input begins and ends, in this order; the bytes of all of them.

        What lies before `narrow_to` are numbers of f32. They are rounded to the type `narrowed`,
        which makes half of every offset.
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

    def aim(self, slab: int, control: int, arrays: Sequence[int], kept: Sequence[Any] = ()) -> None:
        """Says what goes where: arrays in the order of the inputs, none where all is there.

        kept: what must live until they have been brought.
        """
        plan, self._kept = self._plan, kept
        plan[3], plan[4], plan[7] = slab, control, self._count if arrays else 0
        for number, address in enumerate(arrays):
            plan[_FIRST + number] = address

    def __call__(self, launch: int, executable: int, stream: int) -> int:
        """Does it; launch: the driver's function. What that has returned."""
        plan = self._plan
        plan[0], plan[1], plan[2] = launch, executable, stream
        try:
            return int(_start(self._narrowed)(self._address))
        finally:
            self._kept = ()


def blocks_of(nbytes: int, narrow_to: int = 0) -> int:
    """Blocks of the kernel that takes so many bytes: what is narrowed has blocks of its own."""
    return -(-narrow_to // GRAIN) - (narrow_to - nbytes) // GRAIN


def control_bytes(nbytes: int, narrow_to: int = 0) -> int:
    """What a slab needs besides, where so many bytes are taken as they arrive; 0: they are not."""
    return LINE * (blocks_of(nbytes, narrow_to) + 1) if 0 < nbytes <= LARGEST else 0


def parts_of(
    spans: Sequence[tuple[int, int]], nbytes: int, narrow_to: int = 0
) -> list[tuple[int, int, int, int, int]]:
    """What is copied at a time, in the slab's order: no part is in two blocks."""
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
    """The parts as @start has them; what comes before `narrow_to` in half its room."""
    for number, first, at, size, complete in parts_of(spans, nbytes, narrow_to):
        if at < narrow_to:
            yield number, first, at // 2, complete, size // 4, 1
        else:
            yield number, first, at, complete, size, 0
