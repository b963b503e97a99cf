"""The barrier between dependent kernels, as text for every module that runs on several threads.

Its state is the head of the context that a launch hands to all its threads, so that two launches
never share one. The launch clears it and says how long to wait and how to sleep.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.module.features import Features

BARRIER_BYTES = 64
"""What a context begins with: one cache line, aligned like one."""
ARRIVALS = 0
"""Where in it: i64, arrivals at all barriers of this launch so far."""
SPINS, YIELDS = 8, 12
"""i32, turns to wait now, and times to give the core away, before going to sleep."""
SLEEPERS = 16
"""i32, threads that sleep until more have arrived."""
CELL, SLEEP, WAKE = 24, 32, 40
"""Pointers to what they sleep on, and to the functions that put them to sleep and wake them."""
MOST_SPINS = 48
"""i32, turns to wait where waiting has been worth it."""
SHORTER, SHORTEST = 2, 4
"""By how many powers of two a wait in vain shortens the next one, and how far that goes."""
TRIALS = 16
"""Every so many barriers the longest wait is tried again."""


def build_barrier(features: Features) -> Builder:
    """`void barrier(ptr state, i64 threads)`: returns when all threads have called it.

    What any thread wrote before it, all threads see after it. The count of arrivals only grows,
    and the last arrival lets the others go: with a word to reset and another to announce, the
    cache line would travel twice as often. The function is internal: each module has its own.
    """
    b = Builder("barrier", [("state", "ptr"), ("threads", "i64")], "internal void")
    state, threads = b.arguments["state"], b.arguments["threads"]
    before = b.set("i64", f"atomicrmw add ptr {state}, i64 1 seq_cst")
    passed = b.set("i64", f"udiv i64 {before}, {threads}")
    wanted = b.i64(b.mul(b.add(passed, 1), threads))
    last, wait, done = (b.new_label(stem) for stem in ("last", "wait", "done"))
    b.branch(b.compare("eq", b.i64(b.add(before, 1)), wanted), last, wait)
    b.label(last)
    _wake(b, state)
    b.jump(done)
    b.label(wait)
    _wait_until(b, features, state, passed, wanted)
    b.jump(done)
    b.label(done)
    b.ret()
    return b


def _wake(b: Builder, state: Reg) -> None:
    """Wakes whoever sleeps. Each side writes its own word, then reads the other's, in one total
    order: either the sleeper is seen here, or it sees the last arrival."""
    asleep = b.set("i32", f"load atomic i32, ptr {b.offset(state, SLEEPERS)} seq_cst, align 4")

    def call() -> None:
        function = b.load("ptr", b.offset(state, WAKE), 8)
        b.line(f"call void {function}(ptr {state})")

    b.when(b.compare("ne", asleep, Reg("0", "i32")), call)


def _wait_until(b: Builder, features: Features, state: Reg, passed: Reg, wanted: Reg) -> None:
    """Waits for a count of arrivals: spins, then gives the core away between looks, then sleeps.

    Where other programs have the cores, whoever is awaited may want this very one, and every turn
    keeps it from coming. So who has spun in vain has all threads spin less next time, until
    somebody comes in time again: otherwise each of a hundred barriers costs a whole spin. Now and
    then all of it is tried, for threads whose work is just not even.
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

    # Most often it is at its longest, and the line need not be written to.
    b.when(b.compare("ne", spins, most), longer)
    b.jump(done)
    b.label(done)


def _look(
    b: Builder, state: Reg, wanted: Reg, turns: Reg, there: str, pause: Callable[[], object]
) -> None:
    """Looks at the count that many times with a pause after each; jumps when it is there."""
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
