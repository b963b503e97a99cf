"""The barrier between dependent kernels, as LLVM text for every module with several threads.

Its state is at the start of the context that a launch passes to all its threads, so that two
launches never share one. The launch clears it and sets how long to wait and how to sleep.

The context: barrier state | one pointer per slot | two words per fault. The writer and the caller
of a native function agree on this and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.features import Features

ARENA, CONSTANTS, SIZES, WEIGHTS, FIRST_PORT = 0, 1, 2, 3, 4
"""Slots of the context, after the barrier state: pointers to memory, then to each port.

SIZES points to the table of open sizes (see `monograph.ir.sizes`), WEIGHTS to a table of the
addresses of large constants.
"""
FAULT_BYTES = 16
"""The bytes of a fault after the slots: an i64 flag, an i64 with the data."""
BARRIER_BYTES = 64
"""The size of the barrier state at the start of a context: one cache line, aligned."""
ARRIVALS = 0
"""The offset of an i64: arrivals at all barriers of this launch so far."""
SPINS, YIELDS = 8, 12
"""Offsets of i32: spins of a wait, and yields of the core, before it sleeps."""
SLEEPERS = 16
"""The offset of an i32: the number of threads that sleep until more have arrived."""
CELL, SLEEP, WAKE = 24, 32, 40
"""Offsets of pointers: the word they sleep on, and the functions for sleeping and waking."""
MOST_SPINS = 48
"""The offset of an i32: spins of a wait after waits that were worth it."""
SHARING = 56
"""The offset of a pointer to the claims of parts (see `parts`); none for kernels that meet."""
SHORTER, SHORTEST = 2, 4
"""The powers of two by which a wait in vain shortens the next one, and the limit of that."""
TRIALS = 16
"""After this many barriers the longest wait is tried again."""


def build_barrier(features: Features) -> Builder:
    """Build `void barrier(ptr state, i64 threads)`: it returns when all threads have called it.

    After it, all threads see what any thread wrote before it. The count of arrivals only grows, and
    the last arrival releases the others: with a word to reset and another to announce, the cache
    line would travel twice as often. The function is internal: each module has its own.
    """
    b = Builder("barrier", [("state", "ptr"), ("threads", "i64")], "internal void")
    state, threads = b.arguments["state"], b.arguments["threads"]
    before = b.set("i64", f"atomicrmw add ptr {state}, i64 1 seq_cst")
    passed = b.set("i64", f"udiv i64 {before}, {threads}")
    wanted = b.i64(b.mul(b.add(passed, 1), threads))
    last, wait, done = (b.new_label(stem) for stem in ("last", "wait", "done"))
    b.branch(b.compare("eq", b.i64(b.add(before, 1)), wanted), last, wait)
    b.label(last)
    wake(b, state)
    b.jump(done)
    b.label(wait)
    wait_until(b, features, state, passed, wanted)
    b.jump(done)
    b.label(done)
    b.ret()
    return b


def wake(b: Builder, state: Reg) -> None:
    """Wake sleeping threads.

    Each side writes its own word, then reads the other's, in one total order: either the sleeper is
    seen here, or it sees the last arrival.
    """
    asleep = b.set("i32", f"load atomic i32, ptr {b.offset(state, SLEEPERS)} seq_cst, align 4")

    def call() -> None:
        function = b.load("ptr", b.offset(state, WAKE), 8)
        b.line(f"call void {function}(ptr {state})")

    b.when(b.compare("ne", asleep, Reg("0", "i32")), call)


def wait_until(b: Builder, features: Features, state: Reg, passed: Reg, wanted: Reg) -> None:
    """Wait for a count of arrivals: spin, then yield the core between looks, then sleep.

    If other programs occupy the cores, the awaited thread may need this very core, and every spin
    delays it. So a thread that has spun in vain makes all threads spin less next time, until a wait
    succeeds again: otherwise each of a hundred barriers costs a full spin. Now and then the full
    spin is tried, for threads whose work is merely uneven.
    """
    at = b.offset(state, SPINS)
    spins = b.set("i32", f"load atomic i32, ptr {at} monotonic, align 4")
    most = b.load("i32", b.offset(state, MOST_SPINS), 4)
    yields = b.load("i32", b.offset(state, YIELDS), 4)
    trial = b.compare("eq", b.i64(b.mod(passed, TRIALS)), Reg(str(TRIALS - 1), "i64"))
    turns = b.set("i32", f"select i1 {trial}, i32 {most}, i32 {spins}")
    in_time, done = b.new_label("in_time"), b.new_label("there")
    relax = features.relax
    _look(b, state, wanted, turns, in_time, lambda: relax and b.call(relax, "void"))
    shorter, least = (
        b.set("i32", f"lshr i32 {x}, {by}") for x, by in ((spins, SHORTER), (most, SHORTEST))
    )
    following = b.call("llvm.umax.i32", "i32", shorter, least)
    b.line(f"store atomic i32 {following}, ptr {at} monotonic, align 4")
    _look(b, state, wanted, yields, done, lambda: b.call("sched_yield", "i32"))
    function = b.load("ptr", b.offset(state, SLEEP), 8)
    b.line(f"call void {function}(ptr {state}, i64 {wanted})")
    b.jump(done)
    b.label(in_time)

    def longer() -> None:
        b.line(f"store atomic i32 {most}, ptr {at} monotonic, align 4")

    # Usually it is at its longest, and the line need not be written.
    b.when(b.compare("ne", spins, most), longer)
    b.jump(done)
    b.label(done)


def _look(
    b: Builder, state: Reg, wanted: Reg, turns: Reg, there: str, pause: Callable[[], object]
) -> None:
    """Read the count `turns` times with a pause after each; jump when it is reached."""
    before = b.block
    look, more, rest, given_up = (b.new_label(s) for s in ("look", "more", "pause", "over"))
    turn, following = Reg(b.fresh("turn"), "i32"), Reg(b.fresh("turn"), "i32")
    b.jump(look)
    b.label(look)
    b.line(f"{turn} = phi i32 [ 0, %{before} ], [ {following}, %{rest} ]")
    now = b.set("i64", f"load atomic i64, ptr {state} acquire, align 8")
    b.branch(b.compare("uge", now, wanted), there, more)
    b.label(more)
    b.branch(b.compare("ult", turn, turns), rest, given_up)
    b.label(rest)
    pause()
    b.line(f"{following} = add i32 {turn}, 1")
    b.jump(look)
    b.label(given_up)
