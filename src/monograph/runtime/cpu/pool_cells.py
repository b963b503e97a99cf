"""LLVM text for waiting: cells, and the sleep of threads that wait for others at work.

A *cell* is a number that one side waits for and another publishes: spin a little, give the core
away a little (where threads outnumber cores), then sleep on a condition variable.
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

MUTEX, CONDITION, CELL_BYTES = 64, 128, 192
"""A cell: its number at 0, how many sleep on it at 4, then room for the system's objects."""

RING, RING_CELLS = 128, 16
"""In the pool: the queue of launches that need all their threads."""
MEETING, WAKER = RING + RING_CELLS * CELL_BYTES, 8
"""In the pool: the cell that threads sleep on while they wait for others at work, with the core of
the thread that woke them."""

WAITING = f"""
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

; Returns when the bits of a mask in the cell are as wanted, or differ from that: spins, then
; yields, then sleeps. Says whether it has slept.
define internal i1 @await(
    ptr %cell, i32 %mask, i32 %wanted, i1 %differs, i32 %spins, i32 %yields) nounwind {{
entry:
  %sleepers = getelementptr i8, ptr %cell, i64 4
  %mutex = getelementptr i8, ptr %cell, i64 {MUTEX}
  %condition = getelementptr i8, ptr %cell, i64 {CONDITION}
  br label %spin
spin:
  %spun = phi i32 [ 0, %entry ], [ %spun.next, %spin.more ]
  %seen.spin = load atomic i32, ptr %cell acquire, align 4
  %bits.spin = and i32 %seen.spin, %mask
  %same.spin = icmp eq i32 %bits.spin, %wanted
  %there.spin = xor i1 %same.spin, %differs
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
  %bits.yield = and i32 %seen.yield, %mask
  %same.yield = icmp eq i32 %bits.yield, %wanted
  %there.yield = xor i1 %same.yield, %differs
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
  %bits.sleep = and i32 %seen.sleep, %mask
  %same.sleep = icmp eq i32 %bits.sleep, %wanted
  %there.sleep = xor i1 %same.sleep, %differs
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

; Puts a number into the cell and wakes its sleepers. Both sides write their own word and
; then read the other's in one total order, so a sleeper is seen or sees the number.
define internal void @publish(ptr %cell, i32 %number) nounwind {{
entry:
  store atomic i32 %number, ptr %cell seq_cst, align 4
  call void @wake(ptr %cell)
  ret void
}}

define internal void @wake(ptr %cell) nounwind {{
entry:
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

SLEEPING = f"""
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
