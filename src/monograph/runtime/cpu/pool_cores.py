"""LLVM text that finds the cores of the pool's threads.

Linux may wake a thread on the core of the thread that wakes it. Both then share that core for
milliseconds, while another one idles. So a worker is kept off the core that its next launch comes
from. Only a launch from another core changes this.
"""

from __future__ import annotations

import sys

_MASK = 128
"""Bytes of a set of cores, as Linux has it."""
_CORES = f"i{8 * _MASK}"

THREAD, OFF_CORE, OWN_CORES = 40, 48, 192
"""In the slot of a worker: its pthread_t, one more than the core that it is kept off (0 for none),
and the cores that it had before."""
OWN_CORES_BYTES = _MASK

_SPREADING = f"""
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i32 @core() nounwind {{
  %core = call i32 @sched_getcpu()
  ret i32 %core
}}

; Leaves a core for another, and says whether it did: Linux likes to wake a thread on the core that
; it is woken from, and takes its time to part the two. Afterwards it may use the same cores again.
define i1 @step_aside(i32 %core) nounwind {{
entry:
  %mask = alloca [{_MASK} x i8], align 8
  %fewer = alloca [{_MASK} x i8], align 8
  %mine = call i32 @sched_getcpu()
  %shared = icmp eq i32 %core, %mine
  %known = icmp ult i32 %core, {8 * _MASK}
  %asked = and i1 %shared, %known
  br i1 %asked, label %ask, label %done
ask:
  %got = call i32 @sched_getaffinity(i32 0, i64 {_MASK}, ptr %mask)
  %refused = icmp slt i32 %got, 0
  br i1 %refused, label %done, label %leave
leave:
  call void @llvm.memcpy.p0.p0.i64(ptr %fewer, ptr %mask, i64 {_MASK}, i1 false)
  %number = lshr i32 %core, 6
  %word = getelementptr i64, ptr %fewer, i32 %number
  %old = load i64, ptr %word, align 8
  %low = and i32 %core, 63
  %wide = zext i32 %low to i64
  %bit = shl i64 1, %wide
  %others = xor i64 %bit, -1
  %kept = and i64 %old, %others
  store i64 %kept, ptr %word, align 8
  ; Refused, where no core is left: then it stays.
  %moved = call i32 @sched_setaffinity(i32 0, i64 {_MASK}, ptr %fewer)
  %back = call i32 @sched_setaffinity(i32 0, i64 {_MASK}, ptr %mask)
  %apart = icmp eq i32 %moved, 0
  ret i1 %apart
done:
  ret i1 false
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @pthread_getaffinity_np(ptr, i64, ptr)
declare i32 @pthread_setaffinity_np(ptr, i64, ptr)

; Keeps a worker off a core, and gives it back the core that it was kept off before. A mask that
; somebody else has set since is respected.
define void @keep_off(ptr %slot, i32 %core) nounwind {{
entry:
  %now.at = alloca [{_MASK} x i8], align 8
  %fewer.at = alloca [{_MASK} x i8], align 8
  %off.at = getelementptr i8, ptr %slot, i64 {OFF_CORE}
  %thread.at = getelementptr i8, ptr %slot, i64 {THREAD}
  %own.at = getelementptr i8, ptr %slot, i64 {OWN_CORES}
  ; One more than the core, so that a new slot has none.
  %off = load i32, ptr %off.at, align 4
  %wanted = add i32 %core, 1
  %same = icmp eq i32 %off, %wanted
  %unknown = icmp uge i32 %core, {8 * _MASK}
  %settled = or i1 %same, %unknown
  br i1 %settled, label %done, label %ask
ask:
  %thread = load ptr, ptr %thread.at, align 8
  %got = call i32 @pthread_getaffinity_np(ptr %thread, i64 {_MASK}, ptr %now.at)
  %refused = icmp ne i32 %got, 0
  br i1 %refused, label %done, label %decide
decide:
  %now = load {_CORES}, ptr %now.at, align 8
  %own = load {_CORES}, ptr %own.at, align 8
  %off.bit = call {_CORES} @core_bit(i32 %off)
  %off.others = xor {_CORES} %off.bit, -1
  %expected = and {_CORES} %own, %off.others
  %ours = icmp eq {_CORES} %now, %expected
  %none = icmp eq i32 %off, 0
  %is.own = xor i1 %none, true
  %as.left = and i1 %ours, %is.own
  %base = select i1 %as.left, {_CORES} %own, {_CORES} %now
  store {_CORES} %base, ptr %own.at, align 8
  %bit = call {_CORES} @core_bit(i32 %wanted)
  %others = xor {_CORES} %bit, -1
  %fewer = and {_CORES} %base, %others
  ; A worker with one core stays on it.
  %empty = icmp eq {_CORES} %fewer, 0
  %chosen = select i1 %empty, {_CORES} %base, {_CORES} %fewer
  store {_CORES} %chosen, ptr %fewer.at, align 8
  call i32 @pthread_setaffinity_np(ptr %thread, i64 {_MASK}, ptr %fewer.at)
  store i32 %wanted, ptr %off.at, align 4
  br label %done
done:
  ret void
}}

; The mask of one core, whose number is one less than given; no core for 0.
define internal {_CORES} @core_bit(i32 %number) nounwind {{
  %none = icmp eq i32 %number, 0
  %core = sub i32 %number, 1
  %low = and i32 %core, {8 * _MASK - 1}
  %wide = zext i32 %low to {_CORES}
  %bit = shl {_CORES} 1, %wide
  %found = select i1 %none, {_CORES} 0, {_CORES} %bit
  ret {_CORES} %found
}}
"""
_STAYING = """
define internal i32 @core() nounwind {
  ret i32 0
}
define internal i1 @step_aside(i32 %core) nounwind {
  ret i1 false
}
define internal void @keep_off(ptr %slot, i32 %core) nounwind {
  ret void
}
"""
"""Code for systems that do not tell the core of a thread."""


def cores_text() -> str:
    """Return `i32 core()` (of the caller), `i1 step_aside(i32 core)` and `keep_off(slot, core)`."""
    return _SPREADING if sys.platform == "linux" else _STAYING
