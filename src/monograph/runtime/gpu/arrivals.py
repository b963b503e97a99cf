"""Graphs that are launched before their inputs are there, and take them as they arrive.

A launch takes the host and the driver some microseconds, and so does gathering half a MiB into
pinned memory. Here both happen at once: the graph begins with a kernel that waits for each piece
until a word in pinned memory says that it has arrived. Launching and gathering are one call of
native code that needs no lock of Python's: whatever other threads do meanwhile, and be it to wait
for the device, the device gets what it waits for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from monograph.codegen.llvm.features import host_features
from monograph.runtime.native import NativeCode, compile_module

THREADS, EACH = 512, 4
GRAIN = THREADS * EACH * 16
"""Threads of a block of the kernel, words of 16 bytes for each, and the bytes of a block. For every
block the host says in a line of its own that they have arrived: what many blocks ask of one line,
they are answered one after the other.
"""
LINE = 64
"""Bytes of such a line. One more behind all says that a block has waited in vain."""
LARGEST = 8 << 20
"""Bytes beyond which blocks that wait would take the places of others on the device."""
SECONDS = 5
"""How long the device waits: a host that stops in between, under a debugger say, is an error."""
_FIRST = 8
"""Words of a plan before the arrays: see @start."""

_START = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Launches a graph, copies parts of arrays into pinned memory, and says which blocks are complete.
; A plan: launch, executable, stream, slab, control, blocks, parts, how many parts, arrays.
; A part: which array, from where, to where in the slab, bytes, how many blocks are then complete.
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
  %part = getelementptr [5 x i64], ptr %parts, i64 %i
  %a1 = getelementptr i64, ptr %part, i64 1
  %a2 = getelementptr i64, ptr %part, i64 2
  %a3 = getelementptr i64, ptr %part, i64 3
  %a4 = getelementptr i64, ptr %part, i64 4
  %which = load i64, ptr %part, align 8
  %first = load i64, ptr %a1, align 8
  %offset = load i64, ptr %a2, align 8
  %size = load i64, ptr %a3, align 8
  %complete = load i64, ptr %a4, align 8
  %place = getelementptr i64, ptr %arrays, i64 %which
  %array = load ptr, ptr %place, align 8
  %source = getelementptr i8, ptr %array, i64 %first
  %to = getelementptr i8, ptr %slab, i64 %offset
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %source, i64 %size, i1 false)
  br label %tell
tell:
  %upto = phi i64 [%complete, %body], [%blocks, %head]
  br label %telling
telling:
  %now = phi i64 [%told, %tell], [%then, %say]
  %left = icmp ult i64 %now, %upto
  br i1 %left, label %say, label %told.all
say:
  %skipped = mul i64 %now, {LINE}
  %at = getelementptr i8, ptr %control, i64 %skipped
  store atomic i32 1, ptr %at release, align 4
  %then = add i64 %now, 1
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


@cache
def _start() -> Any:
    code = NativeCode([compile_module(_START, host_features())], ("start",))
    code.keep()
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(code.address("start"))


class Arrivals:
    """Launches a graph and brings its inputs. For one caller at a time."""

    def __init__(self, spans: Sequence[tuple[int, int]], nbytes: int) -> None:
        """Where in a slab each input begins and ends, in this order; the bytes of all of them."""
        parts = [number for part in parts_of(spans, nbytes) for number in part]
        self._parts = (ctypes.c_uint64 * max(len(parts), 1))(*parts)
        self._count = len(parts) // 5
        self._plan = (ctypes.c_uint64 * (_FIRST + len(spans)))()
        self._address = ctypes.addressof(self._plan)
        self._plan[5] = blocks_of(nbytes)
        self._plan[6] = ctypes.addressof(self._parts)

    def aim(self, slab: int, control: int, arrays: Sequence[int]) -> None:
        """Says what goes where: arrays in the order of the inputs, none where all is there."""
        plan = self._plan
        plan[3], plan[4], plan[7] = slab, control, self._count if arrays else 0
        for number, address in enumerate(arrays):
            plan[_FIRST + number] = address

    def __call__(self, launch: int, executable: int, stream: int) -> int:
        """Does it; launch: the driver's function. What that has returned."""
        plan = self._plan
        plan[0], plan[1], plan[2] = launch, executable, stream
        return int(_start()(self._address))


def blocks_of(nbytes: int) -> int:
    """Blocks of the kernel that takes so many bytes, and lines of its control."""
    return -(-nbytes // GRAIN)


def control_bytes(nbytes: int) -> int:
    """What a slab needs besides, where so many bytes are taken as they arrive; 0: they are not."""
    return LINE * (blocks_of(nbytes) + 1) if 0 < nbytes <= LARGEST else 0


def parts_of(spans: Sequence[tuple[int, int]], nbytes: int) -> list[tuple[int, int, int, int, int]]:
    """What is copied at a time, in the slab's order: no part is in two blocks."""
    cuts = []
    for number, (begin, end) in enumerate(spans):
        starts = [begin, *range(begin // GRAIN * GRAIN + GRAIN, end, GRAIN)] if end > begin else []
        for start, stop in zip(starts, [*starts[1:], end], strict=False):
            cuts.append((number, start - begin, start, stop - start))
    behind = [*(start // GRAIN for _, _, start, _ in cuts[1:]), blocks_of(nbytes)]
    return [(*cut, complete) for cut, complete in zip(cuts, behind, strict=False)]


def _word(number: int) -> str:
    """Loads of a thread's words come first, so that they are under way together."""
    at = number * THREADS * 16
    return f"""
  add.u64 %o{number}, %o, {at};
  setp.lt.u64 %q{number}, %o{number}, %n;
  add.u64 %s{number}, %source, %o{number};
  @%q{number} ld.global.v4.u32 {{%a{number}, %b{number}, %c{number}, %d{number}}}, [%s{number}];"""


def _stored(number: int) -> str:
    return f"""
  add.u64 %t{number}, %to, %o{number};
  @%q{number} st.global.v4.u32 [%t{number}], {{%a{number}, %b{number}, %c{number}, %d{number}}};"""


_LET = "\n  griddepcontrol.launch_dependents;"


def take_text(overlaps: bool) -> bytes:
    """A kernel that copies `n` bytes, a multiple of 16: each block its own, once they have arrived.

    overlaps: whether kernels behind it may begin meanwhile, and wait by themselves. Devices from
    sm_90 on know that.
    """
    target, lets = ("sm_90", _LET) if overlaps else ("sm_80", "")
    return f"""
.version 7.8
.target {target}
.address_size 64
.visible .entry take(.param .u64 p_to, .param .u64 p_source, .param .u64 p_control, .param .u64 p_n)
.maxntid {THREADS}, 1, 1
{{
  .reg .pred %other, %here, %soon, %q<{EACH}>;
  .reg .b32 %thread, %block, %said, %a<{EACH}>, %b<{EACH}>, %c<{EACH}>, %d<{EACH}>;
  .reg .b64 %to, %source, %control, %late, %n, %o, %began, %now;
  .reg .b64 %o<{EACH}>, %s<{EACH}>, %t<{EACH}>;
  ld.param.u64 %to, [p_to];
  ld.param.u64 %source, [p_source];
  ld.param.u64 %control, [p_control];
  ld.param.u64 %n, [p_n];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %source, %source;
  cvta.to.global.u64 %control, %control;
  mov.u32 %thread, %tid.x;{lets}
  mov.u32 %block, %ctaid.x;
  setp.ne.u32 %other, %thread, 0;
  @%other bra READY;
  mul.wide.u32 %o, %block, {LINE};
  mov.u32 %said, %nctaid.x;
  mul.wide.u32 %late, %said, {LINE};
  add.u64 %late, %control, %late;
  add.u64 %control, %control, %o;
  mov.u64 %began, %globaltimer;
WAIT:
  ld.acquire.sys.global.u32 %said, [%control];
  setp.ne.u32 %here, %said, 0;
  @%here bra CLEAR;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %began;
  setp.lt.u64 %soon, %now, {SECONDS * 10**9};
  @%soon bra WAIT;
  mov.u32 %said, 1;
  st.volatile.global.u32 [%late], %said;
CLEAR:
  mov.u32 %said, 0;
  st.volatile.global.u32 [%control], %said;
READY:
  bar.sync 0;
  mul.wide.u32 %o, %block, {GRAIN};
  mul.wide.u32 %now, %thread, 16;
  add.u64 %o, %o, %now;{"".join(map(_word, range(EACH)))}{"".join(map(_stored, range(EACH)))}
  ret;
}}
\0""".encode()
