"""The thread pool's native half, as LLVM text: workers and launches.

Functions of parts (`codegen/llvm/module/parts.py`) run at once, side by side: each launch takes as
many idle workers as the load allows, and ends when the work is done, even if some worker has not
woken. Functions whose threads meet need all their threads. Such launches queue: a ring of cells,
one for each ticket, so that they go in the order in which they came and a release wakes one only.
"""

from __future__ import annotations

from monograph.codegen.llvm.module.barrier import ARRIVALS, SHARING
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.parts import BASE, PARTS, PATIENCE
from monograph.runtime.cpu.pool_cells import (
    CELL_BYTES,
    MEETING,
    RING,
    RING_CELLS,
    SLEEPING,
    WAITING,
)
from monograph.runtime.cpu.pool_cores import OWN_CORES, OWN_CORES_BYTES, cores_text
from monograph.runtime.cpu.pool_floats import floats_text, relax_text
from monograph.runtime.cpu.threads import MAX_THREADS

FUNCTION, CONTEXT, THREADS, NUMBER = 8, 16, 24, 32
"""A slot, the memory of a worker: a cell with its state, and its work on the same cache line: the
function, its context, the number of threads or parts, the number of the worker among these..."""
LAUNCHER, INDEX = 52, 56
"""...the core that the launch came from, and which slot this is."""
SLOT_BYTES = CELL_BYTES + OWN_CORES_BYTES
assert OWN_CORES == CELL_BYTES

IDLE, POSTED, RUNNING, RESERVED = range(4)
"""The state of a worker, in the low bits of its cell; the other bits count its jobs. A launch
reserves an idle worker, writes down the work and posts it. The worker takes it by changing the
state, unless the launch has taken it back because nothing is left to do."""
STATES = 4

TICKETS, CALLERS, BUSY, SPIN, CORES, SIZE, EXPECTED = 0, 4, 8, 64, 68, 72, 76
"""The pool: tickets given out; launches under way; workers reserved; turns to spin where each
thread has a core; cores to run on; slots, that of the caller counted; callers that launch again and
again; then a ring of cells and the cell of MEETING (see `pool_cells`)..."""
SLOTS = MEETING + CELL_BYTES
"""...and a slot for every thread (that of thread 0, the caller, stays empty)."""

_SOONER = 2
"""By how many powers of two less to spin for others at work than for the next launch."""
_PATIENT = 10
"""By how many powers of two less to spin before claiming the part of a worker that is awake: a
thousandth, about a microsecond."""
_CROWDED = 16
"""Turns to spin, and to yield, where threads outnumber cores: the awaited thread needs the core.

Otherwise nobody yields. If other processes want the core too, what is given away comes back a time
slice later, once for every barrier, while a sleeper is woken at once.
"""

_RUNNING = f"""
; What every worker thread runs, from its start to the end of the process.
define ptr @worker(ptr %slot) nounwind {{
entry:
  call FLOATS @enter_floats()
  %function.at = getelementptr i8, ptr %slot, i64 {FUNCTION}
  %context.at = getelementptr i8, ptr %slot, i64 {CONTEXT}
  %threads.at = getelementptr i8, ptr %slot, i64 {THREADS}
  %number.at = getelementptr i8, ptr %slot, i64 {NUMBER}
  %launcher.at = getelementptr i8, ptr %slot, i64 {LAUNCHER}
  %index.at = getelementptr i8, ptr %slot, i64 {INDEX}
  %index = load i64, ptr %index.at, align 8
  %back = mul i64 %index, -{SLOT_BYTES}
  %first = getelementptr i8, ptr %slot, i64 %back
  %spin.at = getelementptr i8, ptr %first, i64 {SPIN - SLOTS}
  %cores.at = getelementptr i8, ptr %first, i64 {CORES - SLOTS}
  %spins.roomy = load i32, ptr %spin.at, align 4
  %cores = load i32, ptr %cores.at, align 4
  %index.short = trunc i64 %index to i32
  %roomy = icmp ult i32 %index.short, %cores
  %spins = select i1 %roomy, i32 %spins.roomy, i32 {_CROWDED}
  %yields = select i1 %roomy, i32 0, i32 {_CROWDED}
  br label %next
next:
  %slept = call i1 @await(
    ptr %slot, i32 {STATES - 1}, i32 {POSTED}, i1 false, i32 %spins, i32 %yields)
  %seen = load atomic i32, ptr %slot acquire, align 4
  %state = and i32 %seen, {STATES - 1}
  %posted = icmp eq i32 %state, {POSTED}
  br i1 %posted, label %take, label %next
take:
  %running = add i32 %seen, {RUNNING - POSTED}
  %pair = cmpxchg ptr %slot, i32 %seen, i32 %running seq_cst monotonic, align 4
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %mine, label %next
mine:
  br i1 %slept, label %woken, label %work
woken:
  %launcher = load i32, ptr %launcher.at, align 4
  call i1 @step_aside(i32 %launcher)
  br label %work
work:
  %function = load ptr, ptr %function.at, align 8
  %context = load ptr, ptr %context.at, align 8
  %threads = load i64, ptr %threads.at, align 8
  %number = load i64, ptr %number.at, align 8
  call void %function(ptr %context, i64 %number, i64 %threads)
  %idle = add i32 %running, {STATES + IDLE - RUNNING}
  call void @publish(ptr %slot, i32 %idle)
  br label %next
}}

; Runs a function on the calling thread alone.
define void @run_alone(ptr %function, ptr %context) nounwind {{
  %floats = call FLOATS @enter_floats()
  call void %function(ptr %context, i64 0, i64 1)
  call void @leave_floats(FLOATS %floats)
  ret void
}}

; Runs a function whose threads meet on so many threads, the caller being the first, and returns
; when all are done.
define void @launch(ptr %pool, ptr %function, ptr %context, i64 %threads) nounwind {{
  %callers.at = getelementptr i8, ptr %pool, i64 {CALLERS}
  atomicrmw add ptr %callers.at, i32 1 monotonic
  %ring = getelementptr i8, ptr %pool, i64 {RING}
  %ticket = atomicrmw add ptr %pool, i32 1 monotonic
  %turn = call ptr @turn(ptr %ring, i32 %ticket)
  ; Whoever runs now needs the cores: do not spin beside them.
  call i1 @await(ptr %turn, i32 -1, i32 %ticket, i1 false, i32 {_CROWDED}, i32 1)
  %others = sub i64 %threads, 1
  call void @run_with(ptr %pool, ptr %function, ptr %context, i64 %threads, i64 %others, i1 true)
  %following = add i32 %ticket, 1
  %turn.next = call ptr @turn(ptr %ring, i32 %following)
  call void @publish(ptr %turn.next, i32 %following)
  atomicrmw sub ptr %callers.at, i32 1 monotonic
  ret void
}}

; Runs a function of so many parts on the caller and on workers: all that it can use if the caller
; is alone; otherwise as many as there are cores for besides other callers and their workers, and
; no more than its even part of the cores where more callers are expected.
define void @share(ptr %pool, ptr %function, ptr %context, i64 %parts) nounwind {{
  %callers.at = getelementptr i8, ptr %pool, i64 {CALLERS}
  %busy.at = getelementptr i8, ptr %pool, i64 {BUSY}
  %cores.at = getelementptr i8, ptr %pool, i64 {CORES}
  %expected.at = getelementptr i8, ptr %pool, i64 {EXPECTED}
  %others.now = atomicrmw add ptr %callers.at, i32 1 monotonic
  %callers.now = add i32 %others.now, 1
  %expected = load atomic i32, ptr %expected.at monotonic, align 4
  %callers = call i32 @llvm.smax.i32(i32 %callers.now, i32 %expected)
  %busy = load atomic i32, ptr %busy.at monotonic, align 4
  %cores = load i32, ptr %cores.at, align 4
  %besides = add i32 %callers, %busy
  %left = sub i32 %cores, %besides
  %divisor = call i32 @llvm.smax.i32(i32 %expected, i32 1)
  %each = sdiv i32 %cores, %divisor
  %even = sub i32 %each, 1
  %least = call i32 @llvm.smin.i32(i32 %left, i32 %even)
  %free = call i32 @llvm.smax.i32(i32 %least, i32 0)
  %free.long = zext i32 %free to i64
  %most = sub i64 %parts, 1
  %fewer = call i64 @llvm.umin.i64(i64 %free.long, i64 %most)
  %alone = icmp eq i32 %callers, 1
  %others = select i1 %alone, i64 %most, i64 %fewer
  call void @run_with(ptr %pool, ptr %function, ptr %context, i64 %parts, i64 %others, i1 false)
  atomicrmw sub ptr %callers.at, i32 1 monotonic
  ret void
}}
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.umin.i64(i64, i64)

; Runs a function on the caller and at most so many workers. %all: they are all needed.
define internal void @run_with(
    ptr %pool, ptr %function, ptr %context, i64 %threads, i64 %others, i1 %all) nounwind {{
entry:
  %taken = alloca [{MAX_THREADS} x i64], align 8
  %spin.at = getelementptr i8, ptr %pool, i64 {SPIN}
  %cores.at = getelementptr i8, ptr %pool, i64 {CORES}
  %size.at = getelementptr i8, ptr %pool, i64 {SIZE}
  %busy.at = getelementptr i8, ptr %pool, i64 {BUSY}
  %spins = load i32, ptr %spin.at, align 4
  %cores = load i32, ptr %cores.at, align 4
  %size = load atomic i32, ptr %size.at acquire, align 4
  %limit = zext i32 %size to i64
  %slots = getelementptr i8, ptr %pool, i64 {SLOTS}
  %others.short = trunc i64 %others to i32
  %roomy = icmp ult i32 %others.short, %cores
  %shorter = lshr i32 %spins, {_SOONER}
  %turns = select i1 %roomy, i32 %shorter, i32 {_CROWDED}
  %yields = select i1 %roomy, i32 0, i32 {_CROWDED}
  %patience = lshr i32 %spins, {_PATIENT}
  call void @prepare(ptr %pool, ptr %context, i32 %turns, i32 %yields)
  br i1 %all, label %begun, label %parts
parts:
  call void @begin_parts(ptr %context, i64 %threads, i32 %patience)
  br label %begun
begun:
  %core = call i32 @core()
  br label %start
start:
  %i = phi i64 [ 1, %begun ], [ %i.next, %started ]
  %count = phi i64 [ 0, %begun ], [ %count.next, %started ]
  %late = phi i1 [ false, %begun ], [ %late.next, %started ]
  %wanted = icmp ult i64 %count, %others
  %there = icmp ult i64 %i, %limit
  %go = and i1 %wanted, %there
  br i1 %go, label %reserve, label %run
reserve:
  %offset = mul i64 %i, {SLOT_BYTES}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %seen = load atomic i32, ptr %slot acquire, align 4
  %state = and i32 %seen, {STATES - 1}
  %is.idle = icmp eq i32 %state, {IDLE}
  br i1 %is.idle, label %attempt, label %refused
attempt:
  %reserved = add i32 %seen, {RESERVED - IDLE}
  %pair = cmpxchg ptr %slot, i32 %seen, i32 %reserved seq_cst monotonic, align 4
  %got = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %got, label %post, label %refused
refused:
  br i1 %all, label %queue, label %started
queue:
  call i1 @await(
    ptr %slot, i32 {STATES - 1}, i32 {IDLE}, i1 false, i32 {_CROWDED}, i32 1)
  br label %reserve
post:
  %number = add i64 %count, 1
  %function.at = getelementptr i8, ptr %slot, i64 {FUNCTION}
  %context.at = getelementptr i8, ptr %slot, i64 {CONTEXT}
  %threads.at = getelementptr i8, ptr %slot, i64 {THREADS}
  %number.at = getelementptr i8, ptr %slot, i64 {NUMBER}
  %launcher.at = getelementptr i8, ptr %slot, i64 {LAUNCHER}
  store ptr %function, ptr %function.at, align 8
  store ptr %context, ptr %context.at, align 8
  store i64 %threads, ptr %threads.at, align 8
  store i64 %number, ptr %number.at, align 8
  store i32 %core, ptr %launcher.at, align 4
  br i1 %roomy, label %part, label %wake
part:
  call void @keep_off(ptr %slot, i32 %core)
  br label %wake
wake:
  %sleepers.at = getelementptr i8, ptr %slot, i64 4
  %sleepers = load atomic i32, ptr %sleepers.at monotonic, align 4
  %asleep = icmp ne i32 %sleepers, 0
  %late.now = or i1 %late, %asleep
  %posted = add i32 %seen, {POSTED - IDLE}
  call void @publish(ptr %slot, i32 %posted)
  %entry.at = getelementptr i64, ptr %taken, i64 %count
  %slot.number = shl i64 %i, 32
  %posted.long = zext i32 %posted to i64
  %entry.new = or i64 %slot.number, %posted.long
  store i64 %entry.new, ptr %entry.at, align 8
  br label %started
started:
  %count.next = phi i64 [ %count, %refused ], [ %number, %wake ]
  %late.next = phi i1 [ %late, %refused ], [ %late.now, %wake ]
  %i.next = add i64 %i, 1
  br label %start
run:
  %count.short = trunc i64 %count to i32
  atomicrmw add ptr %busy.at, i32 %count.short monotonic
  br i1 %all, label %work, label %hurry
hurry:
  ; Nobody waits for workers that are not there.
  %next.count = add i64 %count, 1
  %few = icmp ult i64 %next.count, %threads
  %missing = or i1 %few, %late
  br i1 %missing, label %impatient, label %work
impatient:
  call void @set_patience(ptr %context, i32 0)
  br label %work
work:
  %floats = call FLOATS @enter_floats()
  call void %function(ptr %context, i64 0, i64 %threads)
  call void @leave_floats(FLOATS %floats)
  br label %finish
finish:
  %j = phi i64 [ 0, %work ], [ %j.next, %left ]
  %finished = icmp eq i64 %j, %count
  br i1 %finished, label %over, label %dismiss
dismiss:
  %entry.j = getelementptr i64, ptr %taken, i64 %j
  %packed = load i64, ptr %entry.j, align 8
  %which = lshr i64 %packed, 32
  %posted.j = trunc i64 %packed to i32
  %running.j = add i32 %posted.j, {RUNNING - POSTED}
  %offset.j = mul i64 %which, {SLOT_BYTES}
  %slot.j = getelementptr i8, ptr %slots, i64 %offset.j
  br i1 %all, label %begins, label %withdraw
withdraw:
  %idle.j = add i32 %posted.j, {STATES + IDLE - POSTED}
  %pair.j = cmpxchg ptr %slot.j, i32 %posted.j, i32 %idle.j seq_cst monotonic, align 4
  %withdrawn = extractvalue {{ i32, i1 }} %pair.j, 1
  br i1 %withdrawn, label %tell, label %ends
tell:
  ; Somebody may wait for an idle worker.
  call void @wake(ptr %slot.j)
  br label %left
begins:
  call i1 @await(ptr %slot.j, i32 -1, i32 %posted.j, i1 true, i32 %turns, i32 %yields)
  br label %ends
ends:
  call i1 @await(ptr %slot.j, i32 -1, i32 %running.j, i1 true, i32 %turns, i32 %yields)
  br label %left
left:
  %j.next = add i64 %j, 1
  br label %finish
over:
  atomicrmw sub ptr %busy.at, i32 %count.short monotonic
  br i1 %all, label %done, label %end
end:
  call void @end_parts(ptr %context, i64 %threads)
  br label %done
done:
  ret void
}}

; Counts the stages of a launch on from those of the last one in the same context.
define internal void @begin_parts(ptr %context, i64 %parts, i32 %patience) nounwind {{
  %area.at = getelementptr i8, ptr %context, i64 {SHARING}
  %area = load ptr, ptr %area.at, align 8
  %parts.at = getelementptr i8, ptr %area, i64 {PARTS}
  store i64 %parts, ptr %parts.at, align 8
  %base.at = getelementptr i8, ptr %area, i64 {BASE}
  %base = load i64, ptr %base.at, align 8
  %arrivals = mul i64 %base, %parts
  %arrivals.at = getelementptr i8, ptr %context, i64 {ARRIVALS}
  store i64 %arrivals, ptr %arrivals.at, align 8
  call void @set_patience(ptr %context, i32 %patience)
  ret void
}}

define internal void @end_parts(ptr %context, i64 %parts) nounwind {{
  %area.at = getelementptr i8, ptr %context, i64 {SHARING}
  %area = load ptr, ptr %area.at, align 8
  %arrivals.at = getelementptr i8, ptr %context, i64 {ARRIVALS}
  %arrivals = load i64, ptr %arrivals.at, align 8
  %stages = udiv i64 %arrivals, %parts
  %base.at = getelementptr i8, ptr %area, i64 {BASE}
  store i64 %stages, ptr %base.at, align 8
  ret void
}}

define internal void @set_patience(ptr %context, i32 %turns) nounwind {{
  %area.at = getelementptr i8, ptr %context, i64 {SHARING}
  %area = load ptr, ptr %area.at, align 8
  %patience.at = getelementptr i8, ptr %area, i64 {PATIENCE}
  store atomic i32 %turns, ptr %patience.at monotonic, align 4
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
    kind, floats = floats_text(features)
    return "\n".join(
        [
            relax_text(features),
            floats,
            WAITING,
            SLEEPING,
            cores_text(),
            _RUNNING.replace("FLOATS", kind),
        ]
    )
