"""Copies within the host's memory by threads of the process's pool.

One core copies half a MiB in about the time that a whole small model takes on a device. The pool is
that of compiled code for CPUs: its threads wait for work without Python, and start in a microsecond
where runs follow each other.
"""

from __future__ import annotations

import ctypes
from functools import cache

from monograph.codegen.llvm.barrier import BARRIER_BYTES
from monograph.codegen.llvm.features import host_features
from monograph.runtime.native import NativeCode, compile_module
from monograph.runtime.pool import shared_pool
from monograph.runtime.threads import available_threads

THREADS = 4
"""The most threads that copy: more have to be waited for without copying faster."""
_LINE = 64
_TEXT = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

; Copies the share of one thread, in whole lines of the cache.
define void @gather(ptr %context, i64 %tid, i64 %threads) nounwind {{
  %to.at = getelementptr i8, ptr %context, i64 {BARRIER_BYTES}
  %from.at = getelementptr i8, ptr %context, i64 {BARRIER_BYTES + 8}
  %count.at = getelementptr i8, ptr %context, i64 {BARRIER_BYTES + 16}
  %to = load ptr, ptr %to.at, align 8
  %from = load ptr, ptr %from.at, align 8
  %count = load i64, ptr %count.at, align 8
  %equal = udiv i64 %count, %threads
  %lines = udiv i64 %equal, {_LINE}
  %more = add i64 %lines, 1
  %share = mul i64 %more, {_LINE}
  %start = mul i64 %share, %tid
  %end = add i64 %start, %share
  %first = call i64 @llvm.umin.i64(i64 %start, i64 %count)
  %last = call i64 @llvm.umin.i64(i64 %end, i64 %count)
  %mine = sub i64 %last, %first
  %place = getelementptr i8, ptr %to, i64 %first
  %source = getelementptr i8, ptr %from, i64 %first
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %source, i64 %mine, i1 false)
  ret void
}}
"""


def gather_threads() -> int:
    """How many threads copy; 1 where there are no more."""
    return min(THREADS, available_threads())


@cache
def _function() -> int:
    code = NativeCode([compile_module(_TEXT, host_features())], ("gather",))
    code.keep()
    return code.address("gather")


class Gather:
    """A copy by several threads: as `ctypes.memmove` is called. For one caller at a time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = shared_pool()
        self._function = _function()
        self._room = (ctypes.c_uint8 * (BARRIER_BYTES + 24 + _LINE))()
        start = -(-ctypes.addressof(self._room) // _LINE) * _LINE
        self._context = start
        self._words = (ctypes.c_uint64 * 3).from_address(start + BARRIER_BYTES)

    def __call__(self, to: int, source: int, count: int) -> None:
        words = self._words
        words[0], words[1], words[2] = to, source, count
        self._pool.launch(self._function, self._context, self._threads)
