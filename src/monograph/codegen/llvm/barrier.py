"""The barrier between dependent kernels, as text for every module that runs on several threads.

Its state is the head of the context that a launch hands to all its threads, so that two launches
never share one. The launch clears it and says how long to spin.
"""

from __future__ import annotations

from monograph.codegen.llvm.builder import Builder, Reg
from monograph.codegen.llvm.features import Features

BARRIER_BYTES = 64
"""What a context begins with: one cache line, aligned like one."""
ARRIVALS = 0
"""Where in it: i64, arrivals at all barriers of this launch so far."""
SPINS = 8
"""i32, turns to wait before giving the core away: few where threads outnumber cores."""


def build_barrier(features: Features) -> Builder:
    """`void barrier(ptr state, i64 threads)`: returns when all threads have called it.

    What any thread wrote before it, all threads see after it. The count of arrivals only grows,
    and the last arrival lets the others go: with a word to reset and another to announce, the
    cache line would travel twice as often. The function is internal: each module has its own.
    """
    b = Builder("barrier", [("state", "ptr"), ("threads", "i64")], "internal void")
    state, threads = b.arguments["state"], b.arguments["threads"]
    before = b.set("i64", f"atomicrmw add ptr {state}, i64 1 acq_rel")
    passed = b.set("i64", f"udiv i64 {before}, {threads}")
    wanted = b.i64(b.mul(b.add(passed, 1), threads))
    spins = b.load("i32", b.offset(state, SPINS), 4)
    _wait_until(b, features, state, wanted, spins)
    b.ret()
    return b


def _wait_until(b: Builder, features: Features, word: Reg, wanted: Reg, spins: Reg) -> None:
    """Waits for a count: spins a number of turns, then gives the core away between looks."""
    before = b.block
    look, more, relax, give, done = (
        b.new_label(stem) for stem in ("look", "more", "relax", "yield", "done")
    )
    turn, following = Reg(b.fresh("turn"), "i32"), Reg(b.fresh("turn"), "i32")
    b.jump(look)
    b.label(look)
    b.line(f"{turn} = phi i32 [ 0, %{before} ], [ {following}, %{relax} ], [ {turn}, %{give} ]")
    now = b.set("i64", f"load atomic i64, ptr {word} acquire, align 8")
    b.branch(b.compare("uge", now, wanted), done, more)
    b.label(more)
    b.branch(b.compare("ult", turn, spins), relax, give)
    b.label(relax)
    if features.relax:
        b.call(features.relax, "void")
    b.line(f"{following} = add i32 {turn}, 1")
    b.jump(look)
    b.label(give)
    b.call("sched_yield", "i32")
    b.jump(look)
    b.label(done)
