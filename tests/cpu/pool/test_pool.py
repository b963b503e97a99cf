"""Native threads: launches, barriers, the queue, sleep, fork and the end of the process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import TABLE, host_features
from monograph.errors import ExecutionError
from monograph.runtime.cpu import pool as pool_module
from monograph.runtime.cpu import pool_code
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.cpu.pool import ThreadPool, shared_pool
from monograph.runtime.cpu.threads import MAX_THREADS
from tests.cpu.launching import (
    COUNT,
    ENLIST,
    HANG,
    HOLD,
    MEET,
    PHASES,
    TINY,
    Context,
    function,
    load,
    wait_for,
    workers_sleep,
)

ROOT = Path(__file__).parents[3]

DENORMAL = float(np.float32(1e-40))


@pytest.fixture(scope="module")
def count() -> NativeCode:
    return load(COUNT, "count")


@pytest.fixture(scope="module")
def phases() -> NativeCode:
    return load(PHASES, "phases")


class Held:
    """The pool while a launch on two threads occupies it."""

    def __init__(self) -> None:
        self.code = load(HOLD, "hold")
        self.context = Context(2)
        arguments = (self.code.address("hold"), self.context.address, 2)
        self.thread = threading.Thread(target=shared_pool().launch, args=arguments)

    def __enter__(self) -> Held:
        self.thread.start()
        wait_for(lambda: self.context.numbers[0] == 1, "the launch that holds the pool")
        return self

    def __exit__(self, *_: object) -> None:
        self.context.numbers[1] = 1
        self.thread.join()


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
def test_every_thread_runs_once(count: NativeCode, threads: int) -> None:
    context = Context(16)
    for _ in range(5):
        shared_pool().launch(count.address("count"), context.address, threads)
    assert list(context.numbers) == [5 * threads] * threads + [0] * (16 - threads)


def test_launches_of_different_sizes_take_turns(count: NativeCode) -> None:
    context = Context(8)
    for threads in [4, 2, 1, 3, 2, 4, 8, 2] * 10:
        shared_pool().launch(count.address("count"), context.address, threads)
    # Thread i counts `threads` for each launch that is larger than i.
    sizes = [4, 2, 1, 3, 2, 4, 8, 2] * 10
    assert list(context.numbers) == [sum(s for s in sizes if s > i) for i in range(8)]


@pytest.mark.parametrize("threads", [1, 2, 4, 7])
def test_barriers_keep_phases_apart(phases: NativeCode, threads: int) -> None:
    context = Context(2 + threads)
    context.numbers[1] = 400
    for _ in range(3):
        shared_pool().launch(phases.address("phases"), context.address, threads)
        assert list(context.numbers) == [0, 400] + [400] * threads


def test_barriers_without_the_relax_instruction() -> None:
    code = load(PHASES, "phases", features=TABLE["baseline"])
    context = Context(5)
    context.numbers[1] = 100
    shared_pool().launch(code.address("phases"), context.address, 3)
    assert list(context.numbers) == [0, 100, 100, 100, 100]


def test_a_launch_clears_the_barrier(phases: NativeCode) -> None:
    """As a fork in the midst of a launch would leave it."""
    context = Context(4)
    context.numbers[1] = 10
    ctypes.c_int64.from_address(context.address).value = 3
    shared_pool().launch(phases.address("phases"), context.address, 2)
    assert context.numbers[0] == 0


def test_sessions_in_many_threads(phases: NativeCode, count: NativeCode) -> None:
    def session(seed: int) -> tuple[int, list[int]]:
        rng = np.random.default_rng(seed)
        staged, counted, expected = Context(8), Context(6), np.zeros(6, np.int64)
        staged.numbers[1] = 10
        for _ in range(30):
            threads = int(rng.integers(1, 5))
            shared_pool().launch(phases.address("phases"), staged.address, threads)
            threads = int(rng.integers(1, 5))
            shared_pool().launch(count.address("count"), counted.address, threads)
            expected[:threads] += threads
        return int(staged.numbers[0]), list(counted.numbers - expected)

    with ThreadPoolExecutor(8) as executor:
        for wrong, left in executor.map(session, range(8)):
            assert wrong == 0
            assert left == [0] * 6


def test_launches_go_in_the_order_they_came() -> None:
    pool = shared_pool()
    pool.reserve(2)
    code = load(ENLIST, "enlist")
    arrivals = np.zeros(1, np.int64)
    contexts = [Context(2) for _ in range(40)]
    with Held():
        tickets = ctypes.c_uint32.from_address(pool._state + pool_code.TICKETS)
        waiting = []
        for context in contexts:
            context.numbers[0] = arrivals.ctypes.data
            before = tickets.value
            arguments = (code.address("enlist"), context.address, 2)
            waiting.append(threading.Thread(target=pool.launch, args=arguments))
            waiting[-1].start()
            wait_for(lambda before=before: tickets.value != before, "a place in the queue")
        assert arrivals[0] == 0
    for thread in waiting:
        thread.join()
    assert [int(c.numbers[1]) for c in contexts] == list(range(40))


def test_one_thread_needs_no_queue(count: NativeCode) -> None:
    context = Context(1)
    with Held():
        shared_pool().launch(count.address("count"), context.address, 1)
    assert context.numbers[0] == 1


@pytest.mark.skipif(host_features().float_mode is None, reason="no way to flush denormals here")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_denormals_are_zero_inside_and_stay_outside(threads: int) -> None:
    code = load(TINY, "tiny")
    tiny = function(code.address("tiny"), None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    context = Context(1 + threads)
    floats = context.numbers.view(np.float32)
    floats[0] = DENORMAL
    shared_pool().launch(code.address("tiny"), context.address, threads)
    assert list(floats[2::2]) == [0.0] * threads
    tiny(context.address, 0, 1)
    assert floats[2] == np.float32(DENORMAL) * np.float32(1.5) != 0


@pytest.mark.skipif(host_features().float_mode is None, reason="no such register known")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_float_mode_comes_back(count: NativeCode, threads: int) -> None:
    mode = host_features().float_mode
    assert mode is not None
    if not mode.in_memory:
        pytest.skip("written for registers that are read through memory")
    text = "\n".join(
        [f"declare void @{i}(ptr)" for i in (mode.read, mode.write)]
        + [
            f"define void @{name}(ptr %p) nounwind {{\n  call void @{i}(ptr %p)\n  ret void\n}}"
            for name, i in (("read", mode.read), ("write", mode.write))
        ]
    )
    code = load(text, "read", "write")
    read = function(code.address("read"), None, ctypes.c_void_p)
    write = function(code.address("write"), None, ctypes.c_void_p)
    before, odd, after = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
    context = Context(2)
    read(ctypes.byref(before))
    odd.value = before.value & ~0x3F | 0x2021  # rounding downwards, two exceptions noted
    write(ctypes.byref(odd))
    try:
        shared_pool().launch(count.address("count"), context.address, threads)
        read(ctypes.byref(after))
    finally:
        write(ctypes.byref(before))
    assert after.value == odd.value


def test_an_idle_pool_sleeps(count: NativeCode) -> None:
    context = Context(4)
    shared_pool().launch(count.address("count"), context.address, 4)
    wait_for(workers_sleep, "workers that sleep")
    for _ in range(50):
        time.sleep(0.001)
        # A worker that spun or yielded would be running or ready to run.
        assert workers_sleep()
    shared_pool().launch(count.address("count"), context.address, 4)
    assert list(context.numbers) == [8] * 4


@pytest.mark.parametrize("threads", [2, 5])
def test_who_waits_long_at_a_barrier_sleeps(threads: int) -> None:
    """A core that another process wants is not burnt while a thread of ours is not on one."""
    code, context = load(MEET, "meet"), Context(3)
    arguments = (code.address("meet"), context.address, threads)
    late = threading.Thread(target=shared_pool().launch, args=arguments)
    late.start()
    wait_for(lambda: context.numbers[0] == 1, "the thread that comes late")
    wait_for(workers_sleep, "workers that sleep at the barrier")
    assert context.numbers[2] == 0
    context.numbers[1] = 1
    late.join(HANG)
    assert context.numbers[2] == threads


def test_no_wake_up_is_lost(phases: NativeCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pool that sleeps at once, whoever waits."""
    monkeypatch.setattr(pool_module, "_SPIN_SECONDS", 0.0)
    pool = ThreadPool()

    def session(seed: int) -> int:
        staged = Context(6)
        staged.numbers[1] = 2
        for turn in range(200):
            pool.launch(phases.address("phases"), staged.address, 2 + (seed + turn) % 3)
        return int(staged.numbers[0])

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(session, range(4))) == [0] * 4


def test_too_many_threads() -> None:
    with pytest.raises(ExecutionError, match="too many threads"):
        shared_pool().launch(0, 0, MAX_THREADS + 1)


def test_a_system_without_threads_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        """A C library that makes no threads."""

        def __getattr__(self, name: str) -> object:
            if name == "pthread_create":
                return lambda *_: 11
            return getattr(libc, name)

    pool, libc = ThreadPool(), ctypes.CDLL(None)
    pool.reserve(2)
    monkeypatch.setattr(pool_module.ctypes, "CDLL", lambda _: Libc())
    with pytest.raises(ExecutionError, match="smaller number"):
        pool.reserve(4)
    assert pool.size == 2


def test_python_threads_take_the_signals(count: NativeCode) -> None:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("needs /proc")
    context = Context(2)
    shared_pool().launch(count.address("count"), context.address, 2)
    own = {t.native_id for t in threading.enumerate()}
    masks = []
    for task in tasks.iterdir():
        if int(task.name) not in own:
            lines = (task / "status").read_text().splitlines()
            masks.append(int(next(x for x in lines if x.startswith("SigBlk")).split()[1], 16))
    blocked = [bool(mask >> (signal.SIGINT - 1) & 1) for mask in masks]
    assert sum(blocked) >= shared_pool().size - 1


# What follows runs in processes of its own.

HEAD = """
import os, sys, threading, time
from tests.cpu.launching import COUNT, PHASES, Context, load
from monograph.runtime.cpu.pool import shared_pool
code = load(COUNT, "count")
def check(threads):
    context = Context(threads)
    shared_pool().launch(code.address("count"), context.address, threads)
    assert list(context.numbers) == [threads] * threads
"""


def run_script(body: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", HEAD + body],
        cwd=ROOT,
        timeout=HANG,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    run_script("""
check(3)
for _ in range(5):
    child = os.fork()
    if child == 0:
        check(3)
        check(2)
        grandchild = os.fork()
        if grandchild == 0:
            check(4)
            os._exit(0)
        assert os.waitpid(grandchild, 0)[1] == 0
        sys.exit(0)
    check(3)
    assert os.waitpid(child, 0)[1] == 0
check(4)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_other_threads_launch() -> None:
    run_script("""
staged = load(PHASES, "phases")
context = Context(4)
context.numbers[1] = 20
stop = False
def work():
    while not stop:
        shared_pool().launch(staged.address("phases"), context.address, 2)
workers = [threading.Thread(target=work) for _ in range(3)]
for w in workers:
    w.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        context.numbers[1] = 20
        context.numbers[0] = 0
        shared_pool().launch(staged.address("phases"), context.address, 2)
        os._exit(int(context.numbers[0]))
    assert os.waitpid(child, 0)[1] == 0
stop = True
for w in workers:
    w.join()
assert context.numbers[0] == 0
""")


@pytest.mark.parametrize("pause", [0, 0.1], ids=["awake", "asleep"])
def test_the_process_ends_while_workers_wait(pause: float) -> None:
    run_script(f"check(4)\ntime.sleep({pause})\n")


def test_the_pool_is_made_once() -> None:
    run_script("""
with __import__("concurrent.futures").futures.ThreadPoolExecutor(8) as executor:
    pools = set(executor.map(lambda _: shared_pool(), range(32)))
assert len(pools) == 1
""")
