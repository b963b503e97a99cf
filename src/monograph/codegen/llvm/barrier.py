"""The barrier between dependent kernels, as text for every module that runs on several threads.

Its state is the head of the context that a launch hands to all its threads, so that two launches
never share one. The launch clears it and says how long to spin.
"""

from __future__ import annotations

from monograph.codegen.llvm.builder import Builder, Reg
from monograph.codegen.llvm.features import Features

BARRIER_BYTES = 128
"""What a context begins with, aligned to 64 bytes."""
ARRIVED = 0
"""Where in the state: i32, threads that have arrived."""
GENERATION = 64
"""i32, barriers passed; on a line of its own, because waiting threads keep reading it."""
SPINS = 68
"""i32, turns to wait before giving the core away: few where threads outnumber cores."""


def build_barrier(features: Features) -> Builder:
    """`void barrier(ptr state, i64 threads)`: returns when all threads have called it.

    The function is internal: every module has its own. It leaves all writes before it visible to
    all threads after it.
    """
    b = Builder("barrier", [("state", "ptr"), ("threads", "i64")], "internal void")
    state = b.arguments["state"]
    generation = b.offset(state, GENERATION)
    before = b.set("i32", f"load atomic i32, ptr {generation} acquire, align 4")
    arrived = b.set("i32", f"atomicrmw add ptr {state}, i32 1 acq_rel")
    count = b.set("i32", f"add i32 {arrived}, 1")
    threads = b.set("i32", f"trunc i64 {b.arguments['threads']} to i32")
    last, wait = b.new_label("last"), b.new_label("wait")
    b.branch(b.compare("eq", count, threads), last, wait)
    b.label(last)
    b.line(f"store atomic i32 0, ptr {state} monotonic, align 4")
    after = b.set("i32", f"add i32 {before}, 1")
    b.line(f"store atomic i32 {after}, ptr {generation} release, align 4")
    b.ret()
    b.label(wait)
    _wait_for_change(b, features, generation, before, b.load("i32", b.offset(state, SPINS), 4))
    b.ret()
    return b


def _wait_for_change(b: Builder, features: Features, word: Reg, old: Reg, spins: Reg) -> None:
    """Spins a number of turns, then gives the core away between looks."""
    before, look = b.block, b.new_label("look")
    more, relax, give, again = (b.new_label(s) for s in ("more", "relax", "yield", "again"))
    done = b.new_label("done")
    b.jump(look)
    b.label(look)
    turn, following = Reg(b.fresh("turn"), "i32"), Reg(b.fresh("turn"), "i32")
    b.line(f"{turn} = phi i32 [ 0, %{before} ], [ {following}, %{again} ]")
    now = b.set("i32", f"load atomic i32, ptr {word} acquire, align 4")
    b.branch(b.compare("eq", now, old), more, done)
    b.label(more)
    b.branch(b.compare("ult", turn, spins), relax, give)
    b.label(relax)
    if features.relax:
        b.call(features.relax, "void")
    b.line(f"{following}.spun = add i32 {turn}, 1")
    b.jump(again)
    b.label(give)
    b.call("sched_yield", "i32")
    b.jump(again)
    b.label(again)
    b.line(f"{following} = phi i32 [ {following}.spun, %{relax} ], [ {turn}, %{give} ]")
    b.jump(look)
    b.label(done)
