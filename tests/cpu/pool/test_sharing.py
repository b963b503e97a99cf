"""Functions of parts: whoever is there runs them, and the numbers are always the same."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from monograph.codegen.llvm.module.barrier import BARRIER_BYTES, SHARING
from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.parts import build_next_part, build_part_done, sharing_bytes
from monograph.runtime.cpu import pool_code
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.cpu.pool import shared_pool
from tests.cpu.launching import HANG, load, wait_for
from tests.cpu.pool.stress import chain, everyone_shares, rows
from tests.cpu.pool.stress import load as load_session

STAGES = 3

# Three stages, each a sum over what all parts wrote in the stage before. Numbers: a gate, whether
# somebody waits there, then for each stage the sum that each part has found.
SUMS = """
define void @stage(ptr %context, i64 %stage, i64 %part, i64 %parts) nounwind {
entry:
  %all = getelementptr i8, ptr %context, i64 80
  %before = sub i64 %stage, 1
  %row = mul i64 %before, %parts
  %first = icmp eq i64 %stage, 0
  br i1 %first, label %done, label %add
add:
  %i = phi i64 [ 0, %entry ], [ %i.next, %add ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %add ]
  %index = add i64 %row, %i
  %at = getelementptr i64, ptr %all, i64 %index
  %x = load i64, ptr %at
  %sum.next = add i64 %sum, %x
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %parts
  br i1 %more, label %add, label %done
done:
  %found = phi i64 [ 0, %entry ], [ %sum.next, %add ]
  %mine = add i64 %found, %part
  %row.own = mul i64 %stage, %parts
  %index.own = add i64 %row.own, %part
  %at.own = getelementptr i64, ptr %all, i64 %index.own
  %old = load i64, ptr %at.own
  %new = add i64 %mine, %old
  store i64 %new, ptr %at.own
  ret void
}

define void @sums(ptr %context, i64 %me, i64 %parts) nounwind {
entry:
  %area.at = getelementptr i8, ptr %context, i64 56
  %area = load ptr, ptr %area.at
  %base = load i64, ptr %area
  %gate = getelementptr i8, ptr %context, i64 64
  %here = getelementptr i8, ptr %context, i64 72
  br label %stage
stage:
  %s = phi i64 [ 0, %entry ], [ %s.next, %over ]
  %number = add i64 %base, %s
  %last = icmp eq i64 %s, 2
  br label %again
again:
  %part = call i64 @next_part(ptr %context, i64 %number, i64 %me, i1 %last)
  %some = icmp sge i64 %part, 0
  br i1 %some, label %work, label %over
work:
  call void @stage(ptr %context, i64 %s, i64 %part, i64 %parts)
  call void @part_done(ptr %context, i64 %number)
  br label %again
over:
  %s.next = add i64 %s, 1
  br i1 %last, label %end, label %stage
end:
  %caller = icmp eq i64 %me, 0
  br i1 %caller, label %wait, label %done
wait:
  store atomic i64 1, ptr %here release, align 8
  call i32 @sched_yield()
  %closed = load atomic i64, ptr %gate acquire, align 8
  %open = icmp eq i64 %closed, 0
  br i1 %open, label %done, label %wait
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def sums() -> NativeCode:
    made = (build_next_part(host_features()), build_part_done())
    return load("\n".join([*(b.text() for b in made), SUMS]), "sums")


class Shared:
    """A context of parts."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        slots = BARRIER_BYTES + 64 * (-(-8 * (2 + STAGES * parts) // 64))
        raw = np.zeros(slots + sharing_bytes(parts) + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.memory = raw[start:]
        self.address = int(self.memory.ctypes.data)
        self.memory[SHARING:BARRIER_BYTES].view(np.int64)[0] = self.address + slots
        self.numbers = self.memory[BARRIER_BYTES:slots].view(np.int64)

    def clear(self) -> None:
        self.numbers[2:] = 0

    def found(self) -> list[list[int]]:
        count = STAGES * self.parts
        return [list(map(int, row)) for row in self.numbers[2 : 2 + count].reshape(STAGES, -1)]

    def expected(self) -> list[list[int]]:
        made = [list(range(self.parts))]
        while len(made) < STAGES:
            made.append([sum(made[-1]) + part for part in range(self.parts)])
        return made


@pytest.mark.parametrize("parts", [2, 3, 5, 9])
def test_every_part_of_every_stage_runs_once(sums: NativeCode, parts: int) -> None:
    context = Shared(parts)
    for _ in range(300):
        context.clear()
        shared_pool().share(sums.address("sums"), context.address, parts)
        assert context.found() == context.expected()


def test_callers_side_by_side(sums: NativeCode) -> None:
    """More callers than cores, some with more parts than others; one holds a launch open."""
    held = Shared(4)
    held.numbers[0] = 1
    arguments = (sums.address("sums"), held.address, 4)
    holder = threading.Thread(target=shared_pool().share, args=arguments)
    holder.start()
    wait_for(lambda: held.numbers[1] == 1, "the launch that is held")
    problems: list[object] = []

    def call(parts: int) -> None:
        context = Shared(parts)
        for _ in range(100):
            context.clear()
            shared_pool().share(sums.address("sums"), context.address, parts)
            if context.found() != context.expected():
                problems.append(context.found())

    callers = [threading.Thread(target=call, args=(2 + i % 3,)) for i in range(6)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(HANG)
        assert not thread.is_alive(), "it waits for the launch that is held"
    assert problems == []
    held.numbers[0] = 0
    holder.join(HANG)
    assert held.found() == held.expected()


def test_nobody_waits_for_workers_that_do_not_come(sums: NativeCode) -> None:
    """All workers are occupied by a launch that needs them."""
    pool = shared_pool()
    pool.reserve(3)
    slots = [pool._state + pool_code.SLOTS + i * pool_code.SLOT_BYTES for i in range(1, pool.size)]
    cells = [ctypes.c_int32.from_address(slot) for slot in slots]
    wait_for(lambda: all(c.value % pool_code.STATES == pool_code.IDLE for c in cells), "idle")
    for cell in cells:
        cell.value += pool_code.RESERVED
    context = Shared(3)
    pool.share(sums.address("sums"), context.address, 3)
    assert context.found() == context.expected()
    for cell in cells:
        cell.value -= pool_code.RESERVED
    context.clear()
    pool.share(sums.address("sums"), context.address, 3)
    assert context.found() == context.expected()


def test_expected_callers_divide_the_cores(sums: NativeCode) -> None:
    pool = shared_pool()
    pool.reserve(8)
    slots = [pool._state + pool_code.SLOTS + i * pool_code.SLOT_BYTES for i in range(1, pool.size)]
    cells = [ctypes.c_int32.from_address(slot) for slot in slots]
    cores = ctypes.c_int32.from_address(pool._state + pool_code.CORES)
    context = Shared(8)

    def workers() -> int:
        """Return the number of workers that a launch of eight parts takes."""
        wait_for(lambda: all(c.value % pool_code.STATES == pool_code.IDLE for c in cells), "idle")
        before = [c.value for c in cells]
        context.clear()
        pool.share(sums.address("sums"), context.address, 8)
        assert context.found() == context.expected()
        return sum(c.value != b for c, b in zip(cells, before, strict=True))

    own, cores.value = cores.value, 8
    found = []
    try:
        for callers in (0, 1, 1, 1, 1, 4, 1):  # up to so many more are expected
            pool.expect(callers)
            found.append(workers())
    finally:
        pool.expect(-9)
        cores.value = own
    assert found == [7, 7, 3, 1, 1, 0, 0]


@pytest.mark.parametrize("model", [chain, rows])
def test_bits_do_not_depend_on_the_threads_that_take_part(model: object) -> None:
    """Two parts, run by two threads, and by one of eight callers."""
    with everyone_shares():
        session = load_session(model(), 2)  # type: ignore[operator]
        shape = (1, 5, 21, 18) if model is chain else (13, 37)
        feeds = {"x": np.random.default_rng(5).normal(size=shape).astype(np.float32)}
        alone = session.run(feeds)
        found: list[bool] = []

        def call() -> None:
            for _ in range(50):
                made = session.run(feeds)
                found.append(all(map(np.array_equal, made, alone)))

        callers = [threading.Thread(target=call) for _ in range(8)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(HANG)
    assert len(found) == 400
    assert all(found)


def test_launches_after_pauses(sums: NativeCode) -> None:
    """Workers that sleep, that are waking, and that spin."""
    context = Shared(3)
    for turn in range(60):
        context.clear()
        shared_pool().share(sums.address("sums"), context.address, 3)
        assert context.found() == context.expected(), turn
        time.sleep((0, 0.0002, 0.004)[turn % 3])
