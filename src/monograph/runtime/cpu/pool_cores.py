"""LLVM text that finds the cores of the pool's threads."""

from __future__ import annotations

import sys

_MASK = 128
"""Bytes of a set of cores, as Linux has it."""

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
"""
_STAYING = """
define internal i32 @core() nounwind {
  ret i32 0
}
define internal i1 @step_aside(i32 %core) nounwind {
  ret i1 false
}
"""
"""Code for systems that do not tell the core of a thread."""


def cores_text() -> str:
    """`i32 core()`, the core of the calling thread, and `i1 step_aside(i32 core)`."""
    return _SPREADING if sys.platform == "linux" else _STAYING
