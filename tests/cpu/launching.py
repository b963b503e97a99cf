"""Small native functions for tests of the runtime."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.barrier import BARRIER_BYTES, build_barrier
from monograph.codegen.llvm.module.features import Features, host_features
from monograph.runtime.cpu.native import NativeCode, compile_module

HANG = 120
"""Seconds after which another thread or process counts as hung."""


def function(address: int, returns: Any, *arguments: Any) -> Any:
    """A native function as ctypes calls it."""
    return ctypes.CFUNCTYPE(returns, *arguments)(address)


def load(text: str, *names: str, features: Features | None = None) -> NativeCode:
    """A module of text in memory, with the barrier at hand."""
    features = features or host_features()
    barrier = build_barrier(features)
    whole = "\n".join([*sorted(barrier.declarations), barrier.text(), text])
    return NativeCode([compile_module(whole, features)], names)


class Context:
    """The memory that a launch gives to its threads: barrier state, then numbers for the test."""

    def __init__(self, count: int) -> None:
        raw = np.zeros(BARRIER_BYTES + 8 * count + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.address = raw.ctypes.data + start
        self.numbers = raw[start + BARRIER_BYTES :][: 8 * count].view(np.int64)


def wait_for(ready: Callable[[], bool], what: str) -> None:
    """Waits for another thread; only a hang makes it fail."""
    stop = time.monotonic() + HANG
    while not ready():
        assert time.monotonic() < stop, f"never happened: {what}"
        time.sleep(0.001)


def workers_sleep() -> bool:
    """Tell whether the kernel has put every thread to sleep that Python does not know."""
    ours = {str(t.native_id) for t in threading.enumerate()}
    others = [task for task in Path("/proc/self/task").iterdir() if task.name not in ours]
    assert others
    return all((t / "stat").read_text().rpartition(")")[2].split()[0] == "S" for t in others)


# Functions to launch. Numbers of the context are meant where comments say "number".

COUNT = """
define void @count(ptr %context, i64 %tid, i64 %threads) nounwind {
  %at = getelementptr i64, ptr %context, i64 %tid
  %mine = getelementptr i8, ptr %at, i64 64
  %old = load i64, ptr %mine
  %more = add i64 %old, %threads
  store i64 %more, ptr %mine
  ret void
}
"""
# Each thread writes the number of the phase, and after the barrier finds it with all others;
# number 0 counts what was found wrong, number 1 is how many phases to run.
PHASES = """
define void @phases(ptr %context, i64 %tid, i64 %threads) nounwind {
entry:
  %wrong.at = getelementptr i8, ptr %context, i64 64
  %limit.at = getelementptr i8, ptr %context, i64 72
  %all = getelementptr i8, ptr %context, i64 80
  %limit = load i64, ptr %limit.at
  %mine = getelementptr i64, ptr %all, i64 %tid
  br label %phase
phase:
  %p = phi i64 [ 1, %entry ], [ %p.next, %checked ]
  store i64 %p, ptr %mine
  call void @barrier(ptr %context, i64 %threads)
  br label %check
check:
  %t = phi i64 [ 0, %phase ], [ %t.next, %check.next ]
  %other = getelementptr i64, ptr %all, i64 %t
  %seen = load i64, ptr %other
  %same = icmp eq i64 %seen, %p
  br i1 %same, label %check.next, label %bad
bad:
  atomicrmw add ptr %wrong.at, i64 1 monotonic
  br label %check.next
check.next:
  %t.next = add i64 %t, 1
  %more = icmp ult i64 %t.next, %threads
  br i1 %more, label %check, label %checked
checked:
  call void @barrier(ptr %context, i64 %threads)
  %p.next = add i64 %p, 1
  %again = icmp ule i64 %p.next, %limit
  br i1 %again, label %phase, label %done
done:
  ret void
}
"""
# Thread 0 says that it is there (number 0) and waits for number 1. (The barrier in the same module
# declares sched_yield.)
HOLD = """
define void @hold(ptr %context, i64 %tid, i64 %threads) nounwind {
entry:
  %here = getelementptr i8, ptr %context, i64 64
  %gate = getelementptr i8, ptr %context, i64 72
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %wait, label %done
wait:
  store atomic i64 1, ptr %here release, align 8
  call i32 @sched_yield()
  %open = load atomic i64, ptr %gate acquire, align 8
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %wait, label %done
done:
  ret void
}
"""
# Thread 0 says that it is there (number 0), waits for number 1, and only then meets the others.
MEET = """
define void @meet(ptr %context, i64 %tid, i64 %threads) nounwind {
entry:
  %here = getelementptr i8, ptr %context, i64 64
  %gate = getelementptr i8, ptr %context, i64 72
  %left = getelementptr i8, ptr %context, i64 80
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %wait, label %met
wait:
  store atomic i64 1, ptr %here release, align 8
  call i32 @sched_yield()
  %open = load atomic i64, ptr %gate acquire, align 8
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %wait, label %met
met:
  call void @barrier(ptr %context, i64 %threads)
  atomicrmw add ptr %left, i64 1 monotonic
  ret void
}
"""
# A barrier for callers of their own, and what its state may name to sleep by: it says that it is
# there (number 0) and waits for the arrivals itself.
ARRIVE = """
define void @arrive(ptr %context, i64 %threads) nounwind {
  call void @barrier(ptr %context, i64 %threads)
  ret void
}
define void @doze(ptr %context, i64 %wanted) nounwind {
entry:
  %here = getelementptr i8, ptr %context, i64 64
  store atomic i64 1, ptr %here release, align 8
  br label %wait
wait:
  call i32 @sched_yield()
  %now = load atomic i64, ptr %context acquire, align 8
  %there = icmp uge i64 %now, %wanted
  br i1 %there, label %done, label %wait
done:
  ret void
}
"""
# Thread 0 takes the next place in a list that several contexts share (number 0 points to it).
ENLIST = """
define void @enlist(ptr %context, i64 %tid, i64 %threads) nounwind {
entry:
  %list.at = getelementptr i8, ptr %context, i64 64
  %place = getelementptr i8, ptr %context, i64 72
  %first = icmp eq i64 %tid, 0
  br i1 %first, label %take, label %done
take:
  %list = load ptr, ptr %list.at
  %got = atomicrmw add ptr %list, i64 1 seq_cst
  store i64 %got, ptr %place
  br label %done
done:
  ret void
}
"""
TINY = """
define void @tiny(ptr %context, i64 %tid, i64 %threads) nounwind {
  %in.at = getelementptr i8, ptr %context, i64 64
  %at = getelementptr i64, ptr %context, i64 %tid
  %out.at = getelementptr i8, ptr %at, i64 72
  %x = load volatile float, ptr %in.at
  %y = fmul float %x, 0x3FF8000000000000
  store float %y, ptr %out.at
  ret void
}
"""
