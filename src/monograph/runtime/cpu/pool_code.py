"""The thread pool's native half, as LLVM text: waiting, waking, launching.

A *cell* is a number that one side waits for and another publishes: spin a little, give the core
away a little (where threads outnumber cores), then sleep on a condition variable. A worker has two
cells in its slot, one that starts it and one that says it is done. The queue of launches is a ring
of cells, one a ticket, so that launches go in the order in which they came and a release wakes only
the next.
"""

from __future__ import annotations

from monograph.codegen.llvm.module.barrier import (
    ARRIVALS,
    CELL,
    MOST_SPINS,
    SLEEP,
    SLEEPERS,
    SPINS,
    WAKE,
    YIELDS,
)
from monograph.codegen.llvm.module.features import Features
from monograph.runtime.cpu.pool_cores import OWN_CORES, OWN_CORES_BYTES, cores_text

MUTEX, CONDITION, CELL_BYTES = 64, 128, 192
"""A cell: its number at 0, how many sleep on it at 4, then room for the system's objects."""

FUNCTION, CONTEXT, THREADS, INDEX = 8, 16, 24, 32
"""A slot: the cell that starts the worker, with the work on the same cache line..."""
DONE = CELL_BYTES
"""...and the cell that says it is done."""
SLOT_BYTES = 2 * CELL_BYTES + OWN_CORES_BYTES
assert OWN_CORES == 2 * CELL_BYTES

TICKETS, SPIN, CORES, CORE = 0, 64, 68, 72
"""The pool: tickets given out; turns to spin where each thread has a core; cores to run on; the
core that the last launch came from..."""
RING, RING_CELLS = 128, 16
"""...the queue of launches..."""
MEETING, WAKER = RING + RING_CELLS * CELL_BYTES, 8
"""...the cell that threads at a barrier sleep on, with the core of who woke them: one does, for
launches take turns..."""
SLOTS = MEETING + CELL_BYTES
"""...and a slot for every thread (that of thread 0, the caller, stays empty)."""

_SOONER = 2
"""By how many powers of two less to spin for others at work than for the next launch."""
_CROWDED = 16
"""Turns to spin, and to yield, where threads outnumber cores: whoever is awaited needs the core.

Otherwise nobody yields. If other processes want the core too, what is given away comes back a time
slice later, once for every barrier, while a sleeper is woken at once.
"""

_WAITING = f"""
declare i32 @sched_yield()
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define void @spin(ptr %word, i32 %turns) nounwind {{
entry:
  br label %again
again:
  %turn = phi i32 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i32, ptr %word acquire, align 4
  call void @relax()
  %next = add i32 %turn, 1
  %more = icmp ult i32 %next, %turns
  br i1 %more, label %again, label %done
done:
  ret void
}}

; Returns when the cell holds a number: spins, then yields, then sleeps. Says whether it has slept.
define internal i1 @await(ptr %cell, i32 %wanted, i32 %spins, i32 %yields) nounwind {{
entry:
  %sleepers = getelementptr i8, ptr %cell, i64 4
  %mutex = getelementptr i8, ptr %cell, i64 {MUTEX}
  %condition = getelementptr i8, ptr %cell, i64 {CONDITION}
  br label %spin
spin:
  %spun = phi i32 [ 0, %entry ], [ %spun.next, %spin.more ]
  %seen.spin = load atomic i32, ptr %cell acquire, align 4
  %there.spin = icmp eq i32 %seen.spin, %wanted
  br i1 %there.spin, label %done, label %spin.check
spin.check:
  %spent = icmp uge i32 %spun, %spins
  br i1 %spent, label %yield, label %spin.more
spin.more:
  call void @relax()
  %spun.next = add i32 %spun, 1
  br label %spin
yield:
  %yielded = phi i32 [ 0, %spin.check ], [ %yielded.next, %yield.more ]
  %seen.yield = load atomic i32, ptr %cell acquire, align 4
  %there.yield = icmp eq i32 %seen.yield, %wanted
  br i1 %there.yield, label %done, label %yield.check
yield.check:
  %given = icmp uge i32 %yielded, %yields
  br i1 %given, label %sleep, label %yield.more
yield.more:
  call i32 @sched_yield()
  %yielded.next = add i32 %yielded, 1
  br label %yield
sleep:
  call i32 @pthread_mutex_lock(ptr %mutex)
  atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %look
look:
  %seen.sleep = load atomic i32, ptr %cell seq_cst, align 4
  %there.sleep = icmp eq i32 %seen.sleep, %wanted
  br i1 %there.sleep, label %awake, label %doze
doze:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
awake:
  atomicrmw sub ptr %sleepers, i32 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  %slept = phi i1 [ false, %spin ], [ false, %yield ], [ true, %awake ]
  ret i1 %slept
}}

; Puts a number into the cell and wakes whoever sleeps on it. Both sides write their own word and
; then read the other's in one total order, so a sleeper is seen or sees the number.
define internal void @publish(ptr %cell, i32 %number) nounwind {{
entry:
  store atomic i32 %number, ptr %cell seq_cst, align 4
  %sleepers = getelementptr i8, ptr %cell, i64 4
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %done, label %wake
wake:
  %mutex = getelementptr i8, ptr %cell, i64 {MUTEX}
  %condition = getelementptr i8, ptr %cell, i64 {CONDITION}
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}}
"""

_MEETING = f"""
; Puts a thread to sleep at a barrier until so many arrivals are counted.
define internal void @sleep_here(ptr %state, i64 %wanted) nounwind {{
entry:
  %cell.at = getelementptr i8, ptr %state, i64 {CELL}
  %sleepers = getelementptr i8, ptr %state, i64 {SLEEPERS}
  %cell = load ptr, ptr %cell.at, align 8
  %mutex = getelementptr i8, ptr %cell, i64 {MUTEX}
  %condition = getelementptr i8, ptr %cell, i64 {CONDITION}
  %waker.at = getelementptr i8, ptr %cell, i64 {WAKER}
  call i32 @pthread_mutex_lock(ptr %mutex)
  atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %look
look:
  %dozed = phi i1 [ false, %entry ], [ true, %doze ]
  %seen = load atomic i64, ptr %state seq_cst, align 8
  %there = icmp uge i64 %seen, %wanted
  br i1 %there, label %awake, label %doze
doze:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %look
awake:
  atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %waker = load i32, ptr %waker.at, align 4
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br i1 %dozed, label %woken, label %done
woken:
  %apart = call i1 @step_aside(i32 %waker)
  br i1 %apart, label %hope, label %done
hope:
  ; From now on the others are worth waiting for.
  %spins.at = getelementptr i8, ptr %state, i64 {SPINS}
  %most.at = getelementptr i8, ptr %state, i64 {MOST_SPINS}
  %most = load i32, ptr %most.at, align 4
  store atomic i32 %most, ptr %spins.at monotonic, align 4
  br label %done
done:
  ret void
}}

define internal void @wake_all(ptr %state) nounwind {{
  %cell.at = getelementptr i8, ptr %state, i64 {CELL}
  %cell = load ptr, ptr %cell.at, align 8
  %mutex = getelementptr i8, ptr %cell, i64 {MUTEX}
  %condition = getelementptr i8, ptr %cell, i64 {CONDITION}
  %waker.at = getelementptr i8, ptr %cell, i64 {WAKER}
  %core = call i32 @core()
  call i32 @pthread_mutex_lock(ptr %mutex)
  store i32 %core, ptr %waker.at, align 4
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}}

; Clears the barrier of a context and says how its threads wait.
define internal void @prepare(ptr %pool, ptr %context, i32 %turns, i32 %yields) nounwind {{
  %arrivals.at = getelementptr i8, ptr %context, i64 {ARRIVALS}
  %spins.at = getelementptr i8, ptr %context, i64 {SPINS}
  %most.at = getelementptr i8, ptr %context, i64 {MOST_SPINS}
  %yields.at = getelementptr i8, ptr %context, i64 {YIELDS}
  %sleepers.at = getelementptr i8, ptr %context, i64 {SLEEPERS}
  %cell.at = getelementptr i8, ptr %context, i64 {CELL}
  %sleep.at = getelementptr i8, ptr %context, i64 {SLEEP}
  %wake.at = getelementptr i8, ptr %context, i64 {WAKE}
  %meeting = getelementptr i8, ptr %pool, i64 {MEETING}
  store i64 0, ptr %arrivals.at, align 8
  store i32 %turns, ptr %spins.at, align 4
  store i32 %turns, ptr %most.at, align 4
  store i32 %yields, ptr %yields.at, align 4
  store i32 0, ptr %sleepers.at, align 4
  store ptr %meeting, ptr %cell.at, align 8
  store ptr @sleep_here, ptr %sleep.at, align 8
  store ptr @wake_all, ptr %wake.at, align 8
  ret void
}}
"""

_RUNNING = f"""
; What every worker thread runs, from its start to the end of the process.
define ptr @worker(ptr %slot) nounwind {{
entry:
  call FLOATS @enter_floats()
  %function.at = getelementptr i8, ptr %slot, i64 {FUNCTION}
  %context.at = getelementptr i8, ptr %slot, i64 {CONTEXT}
  %threads.at = getelementptr i8, ptr %slot, i64 {THREADS}
  %index.at = getelementptr i8, ptr %slot, i64 {INDEX}
  %done = getelementptr i8, ptr %slot, i64 {DONE}
  %index = load i64, ptr %index.at, align 8
  %back = mul i64 %index, -{SLOT_BYTES}
  %first = getelementptr i8, ptr %slot, i64 %back
  %spin.at = getelementptr i8, ptr %first, i64 {SPIN - SLOTS}
  %cores.at = getelementptr i8, ptr %first, i64 {CORES - SLOTS}
  %core.at = getelementptr i8, ptr %first, i64 {CORE - SLOTS}
  %spins.roomy = load i32, ptr %spin.at, align 4
  %cores = load i32, ptr %cores.at, align 4
  %index.short = trunc i64 %index to i32
  %roomy = icmp ult i32 %index.short, %cores
  %spins = select i1 %roomy, i32 %spins.roomy, i32 {_CROWDED}
  %yields = select i1 %roomy, i32 0, i32 {_CROWDED}
  br label %next
next:
  %before = phi i32 [ 0, %entry ], [ %number, %work ]
  %number = add i32 %before, 1
  %slept = call i1 @await(ptr %slot, i32 %number, i32 %spins, i32 %yields)
  br i1 %slept, label %woken, label %work
woken:
  %launcher = load i32, ptr %core.at, align 4
  call i1 @step_aside(i32 %launcher)
  br label %work
work:
  %function = load ptr, ptr %function.at, align 8
  %context = load ptr, ptr %context.at, align 8
  %threads = load i64, ptr %threads.at, align 8
  call void %function(ptr %context, i64 %index, i64 %threads)
  call void @publish(ptr %done, i32 %number)
  br label %next
}}

; Runs a function on the calling thread alone.
define void @run_alone(ptr %function, ptr %context) nounwind {{
  %floats = call FLOATS @enter_floats()
  call void %function(ptr %context, i64 0, i64 1)
  call void @leave_floats(FLOATS %floats)
  ret void
}}

; Runs a function on so many threads, the caller being the first, and returns when all are done.
define void @launch(ptr %pool, ptr %function, ptr %context, i64 %threads) nounwind {{
entry:
  %spin.at = getelementptr i8, ptr %pool, i64 {SPIN}
  %cores.at = getelementptr i8, ptr %pool, i64 {CORES}
  %spins = load i32, ptr %spin.at, align 4
  %cores = load i32, ptr %cores.at, align 4
  %ring = getelementptr i8, ptr %pool, i64 {RING}
  %slots = getelementptr i8, ptr %pool, i64 {SLOTS}
  %ticket = atomicrmw add ptr %pool, i32 1 monotonic
  %turn = call ptr @turn(ptr %ring, i32 %ticket)
  ; Whoever runs now needs the cores: do not spin beside them.
  call i1 @await(ptr %turn, i32 %ticket, i32 {_CROWDED}, i32 1)
  %threads.short = trunc i64 %threads to i32
  %roomy = icmp ule i32 %threads.short, %cores
  %shorter = lshr i32 %spins, {_SOONER}
  %turns = select i1 %roomy, i32 %shorter, i32 {_CROWDED}
  %yields = select i1 %roomy, i32 0, i32 {_CROWDED}
  call void @prepare(ptr %pool, ptr %context, i32 %turns, i32 %yields)
  %core = call i32 @core()
  %core.at = getelementptr i8, ptr %pool, i64 {CORE}
  store i32 %core, ptr %core.at, align 4
  br label %start
start:
  %i = phi i64 [ 1, %entry ], [ %i.next, %wake ]
  %offset = mul i64 %i, {SLOT_BYTES}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %function.at = getelementptr i8, ptr %slot, i64 {FUNCTION}
  %context.at = getelementptr i8, ptr %slot, i64 {CONTEXT}
  %threads.at = getelementptr i8, ptr %slot, i64 {THREADS}
  store ptr %function, ptr %function.at, align 8
  store ptr %context, ptr %context.at, align 8
  store i64 %threads, ptr %threads.at, align 8
  br i1 %roomy, label %part, label %wake
part:
  call void @keep_off(ptr %slot, i32 %core)
  br label %wake
wake:
  %before = load atomic i32, ptr %slot monotonic, align 4
  %number = add i32 %before, 1
  call void @publish(ptr %slot, i32 %number)
  %i.next = add i64 %i, 1
  %started = icmp eq i64 %i.next, %threads
  br i1 %started, label %run, label %start
run:
  %floats = call FLOATS @enter_floats()
  call void %function(ptr %context, i64 0, i64 %threads)
  call void @leave_floats(FLOATS %floats)
  br label %finish
finish:
  %j = phi i64 [ 1, %run ], [ %j.next, %finish ]
  %offset.j = mul i64 %j, {SLOT_BYTES}
  %slot.j = getelementptr i8, ptr %slots, i64 %offset.j
  %done.j = getelementptr i8, ptr %slot.j, i64 {DONE}
  %number.j = load atomic i32, ptr %slot.j monotonic, align 4
  call i1 @await(ptr %done.j, i32 %number.j, i32 %turns, i32 %yields)
  %j.next = add i64 %j, 1
  %finished = icmp eq i64 %j.next, %threads
  br i1 %finished, label %release, label %finish
release:
  %following = add i32 %ticket, 1
  %turn.next = call ptr @turn(ptr %ring, i32 %following)
  call void @publish(ptr %turn.next, i32 %following)
  ret void
}}

; The cell of the ring where a ticket waits.
define internal ptr @turn(ptr %ring, i32 %ticket) nounwind {{
  %place = urem i32 %ticket, {RING_CELLS}
  %bytes = mul i32 %place, {CELL_BYTES}
  %cell = getelementptr i8, ptr %ring, i32 %bytes
  ret ptr %cell
}}
"""


def pool_text(features: Features) -> str:
    """The module of the pool for a host."""
    kind, floats = _floats(features)
    return "\n".join(
        [
            _relax(features),
            floats,
            _WAITING,
            _MEETING,
            cores_text(),
            _RUNNING.replace("FLOATS", kind),
        ]
    )


def _relax(features: Features) -> str:
    if not features.relax:
        return "define internal void @relax() nounwind {\n  ret void\n}\n"
    return f"""
declare void @{features.relax}()
define internal void @relax() nounwind {{
  call void @{features.relax}()
  ret void
}}
"""


def _floats(features: Features) -> tuple[str, str]:
    """The type of the floating-point control register, and functions that set and restore it."""
    mode = features.float_mode
    if mode is None:
        return (
            "i32",
            """
define internal i32 @enter_floats() nounwind {
  ret i32 0
}
define internal void @leave_floats(i32 %old) nounwind {
  ret void
}
""",
        )
    kind, read, write = mode.type, mode.read, mode.write
    if mode.in_memory:
        return (
            kind,
            f"""
declare void @{read}(ptr)
declare void @{write}(ptr)
define internal {kind} @enter_floats() nounwind {{
  %place = alloca {kind}
  call void @{read}(ptr %place)
  %old = load {kind}, ptr %place
  store {kind} {mode.value}, ptr %place
  call void @{write}(ptr %place)
  ret {kind} %old
}}
define internal void @leave_floats({kind} %old) nounwind {{
  %place = alloca {kind}
  store {kind} %old, ptr %place
  call void @{write}(ptr %place)
  ret void
}}
""",
        )
    return (
        kind,
        f"""
declare {kind} @{read}()
declare void @{write}({kind})
define internal {kind} @enter_floats() nounwind {{
  %old = call {kind} @{read}()
  call void @{write}({kind} {mode.value})
  ret {kind} %old
}}
define internal void @leave_floats({kind} %old) nounwind {{
  call void @{write}({kind} %old)
  ret void
}}
""",
    )
