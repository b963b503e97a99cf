"""Parts of a stage: the work between two barriers, divided once, claimed by awake threads.

Every kernel is compiled for a number of parts. A thread claims a part of a stage before it runs it,
its own part first. A thread without work claims what nobody has claimed: the parts of workers that
have not woken yet, or that the load left out. The division stays the same, and so do the numbers.

A claim is the number of the next stage in a word of the part. Stages are counted on from launch to
launch, so that nothing is cleared. A thread that comes late finds its parts claimed and the stages
passed, until it reaches the stage that is at work.
"""

from __future__ import annotations

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.module.barrier import SHARING, wait_until, wake
from monograph.codegen.llvm.module.features import Features

BASE, PARTS, PATIENCE = 0, 8, 16
"""Offsets in the memory that SHARING points to: the i64 number of the first stage of a launch, the
i64 number of parts, and the i32 turns to wait for the owner of a part before another claims it."""
CLAIMS, CLAIM_BYTES = 64, 64
"""The offset of the claims: an i64 for each part, on a cache line of its own."""


def sharing_bytes(parts: int) -> int:
    """Return the size of the memory that SHARING points to."""
    return CLAIMS + CLAIM_BYTES * parts


def build_next_part(features: Features) -> Builder:
    """Build `i64 next_part(ptr state, i64 stage, i64 me, i1 last)`.

    It returns a part for the caller to run, or -1 when all parts of the stage are done. In the last
    stage nobody waits but thread 0.
    """
    b = Builder(
        "next_part",
        [("state", "ptr"), ("stage", "i64"), ("me", "i64"), ("last", "i1")],
        "internal i64",
    )
    state, stage, me, last = (b.arguments[n] for n in ("state", "stage", "me", "last"))
    area = b.load("ptr", b.offset(state, SHARING), 8)
    parts = b.load("i64", b.offset(area, PARTS), 8)
    following = b.i64(b.add(stage, 1))
    wanted = b.i64(b.mul(following, parts))
    done, help_, rest = (b.new_label(s) for s in ("done", "help", "rest"))
    _claim(b, area, me, stage, following)
    turns = b.set("i32", f"load atomic i32, ptr {b.offset(area, PATIENCE)} monotonic, align 4")
    _patience(b, features, state, wanted, turns, done)
    b.jump(help_)
    b.label(help_)

    def other(part: Int, _: list[Reg]) -> None:
        _claim(b, area, b.i64(part), stage, following)

    b.loop(0, parts, 1, other)
    idle = b.compare("ne", me, Reg("0", "i64"))
    b.branch(b.set("i1", f"and i1 {last}, {idle}"), done, rest)
    b.label(rest)
    wait_until(b, features, state, stage, wanted)
    b.jump(done)
    b.label(done)
    b.line("ret i64 -1")
    return b


def _claim(b: Builder, area: Reg, part: Reg, stage: Reg, following: Reg) -> None:
    """Return a part from the function if it can be claimed."""
    at = b.offset(b.offset(area, CLAIMS), b.mul(part, CLAIM_BYTES))
    attempt, mine, taken = (b.new_label(s) for s in ("attempt", "mine", "taken"))
    seen = b.set("i64", f"load atomic i64, ptr {at} monotonic, align 8")
    b.branch(b.compare("eq", seen, stage), attempt, taken)
    b.label(attempt)
    exchange = f"cmpxchg ptr {at}, i64 {stage}, i64 {following} seq_cst monotonic, align 8"
    pair = b.set("{ i64, i1 }", exchange)
    b.branch(b.set("i1", f"extractvalue {{ i64, i1 }} {pair}, 1"), mine, taken)
    b.label(mine)
    b.line(f"ret i64 {part}")
    b.label(taken)


def _patience(
    b: Builder, features: Features, state: Reg, wanted: Reg, turns: Reg, done: str
) -> None:
    """Look so many times, and at least once, whether the stage is done."""
    before, look, more, over = b.block, *(b.new_label(s) for s in ("look", "more", "over"))
    turn, following = Reg(b.fresh("turn"), "i32"), Reg(b.fresh("turn"), "i32")
    b.jump(look)
    b.label(look)
    b.line(f"{turn} = phi i32 [ 0, %{before} ], [ {following}, %{more} ]")
    now = b.set("i64", f"load atomic i64, ptr {state} acquire, align 8")
    left = b.new_label("left")
    b.branch(b.compare("uge", now, wanted), done, left)
    b.label(left)
    b.branch(b.compare("ult", turn, turns), more, over)
    b.label(more)
    if features.relax:
        b.call(features.relax, "void")
    b.line(f"{following} = add i32 {turn}, 1")
    b.jump(look)
    b.label(over)


def build_part_done() -> Builder:
    """Build `void part_done(ptr state, i64 stage)`: it counts a part, and wakes at the last one."""
    b = Builder("part_done", [("state", "ptr"), ("stage", "i64")], "internal void")
    state, stage = b.arguments["state"], b.arguments["stage"]
    area = b.load("ptr", b.offset(state, SHARING), 8)
    parts = b.load("i64", b.offset(area, PARTS), 8)
    before = b.set("i64", f"atomicrmw add ptr {state}, i64 1 seq_cst")
    wanted = b.i64(b.mul(b.add(stage, 1), parts))
    b.when(b.compare("eq", b.i64(b.add(before, 1)), wanted), lambda: wake(b, state))
    b.ret()
    return b
