"""Threads leave the core of the thread that woke them; workers are kept off their launcher's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.cpu.pool_code import SLOT_BYTES, pool_text
from monograph.runtime.cpu.pool_cores import THREAD
from tests.cpu.launching import HANG, function

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which core it is")
TRIES = 1000
ROOT = Path(__file__).parents[3]


def step_aside() -> Callable[[int], bool]:
    text = pool_text(host_features())
    code = NativeCode([compile_module(text, host_features())], ("step_aside",))
    code.keep()
    made: Callable[[int], bool] = function(
        code.address("step_aside"), ctypes.c_bool, ctypes.c_int32
    )
    return made


def core() -> int:
    return int(ctypes.CDLL(None).sched_getcpu())


def in_a_thread(work: Callable[[], None]) -> None:
    """In one of its own: the cores of the others stay as they are."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(HANG)


def test_it_leaves_and_may_come_back() -> None:
    leave = step_aside()
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")

    def work() -> None:
        left = 0
        for _ in range(TRIES):  # the system may move it at any time, too
            here = core()
            if leave(here):
                left += core() != here
            assert os.sched_getaffinity(0) == allowed
            if left == 3:
                return
        pytest.fail(f"it has left {left} times")

    in_a_thread(work)


def test_nobody_else_s_core_is_left() -> None:
    leave = step_aside()

    def work() -> None:
        assert not leave(-1)
        assert not leave(1023)
        assert not leave(1 << 20)

    in_a_thread(work)


def test_the_only_core_is_not_left() -> None:
    leave = step_aside()

    def work() -> None:
        only = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {only})
        assert not leave(only)
        assert core() == only
        assert os.sched_getaffinity(0) == {only}

    in_a_thread(work)


def keep_off() -> Callable[[int, int], None]:
    text = pool_text(host_features())
    code = NativeCode([compile_module(text, host_features())], ("keep_off",))
    code.keep()
    made: Callable[[int, int], None] = function(
        code.address("keep_off"), None, ctypes.c_void_p, ctypes.c_int32
    )
    return made


class Slot:
    """The slot of the calling thread, as if it were a worker."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(SLOT_BYTES + 64)
        self.address = -(-ctypes.addressof(self.memory) // 64) * 64
        own = ctypes.CDLL(None).pthread_self
        own.restype = ctypes.c_uint64
        ctypes.c_uint64.from_address(self.address + THREAD).value = own()


def test_a_worker_is_kept_off_one_core_at_a_time() -> None:
    off = keep_off()
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")

    def work() -> None:
        slot = Slot()
        for core_ in sorted(allowed) * 2:
            for _ in range(2):
                off(slot.address, core_)
                assert os.sched_getaffinity(0) == allowed - {core_}
        for unknown in (-1, 1024, 1 << 20):
            off(slot.address, unknown)
            assert os.sched_getaffinity(0) == allowed - {max(allowed)}

    in_a_thread(work)


def test_a_mask_that_somebody_else_has_set_is_respected() -> None:
    off = keep_off()
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("there is one core")

    def work() -> None:
        slot = Slot()
        first, last = allowed[0], allowed[-1]
        off(slot.address, last)
        os.sched_setaffinity(0, {last})
        off(slot.address, first)
        assert os.sched_getaffinity(0) == {last}
        off(slot.address, last)
        assert os.sched_getaffinity(0) == {last}, "a worker with one core stays on it"

    in_a_thread(work)


def test_a_launch_keeps_workers_off_its_core() -> None:
    """In a process of its own, whose pool has had one launch."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    script = """
import os
from tests.cpu.launching import COUNT, Context, load
from monograph.runtime.cpu.pool import shared_pool
allowed = os.sched_getaffinity(0)
main = min(allowed)
before = set(os.listdir("/proc/self/task"))
os.sched_setaffinity(0, {main})
code, context = load(COUNT, "count"), Context(16)
os.sched_setaffinity(0, allowed)
shared_pool().reserve(2)
os.sched_setaffinity(0, {main})
shared_pool().launch(code.address("count"), context.address, 2)
workers = set(os.listdir("/proc/self/task")) - before
assert [os.sched_getaffinity(int(t)) for t in workers] == [allowed - {main}], workers
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, timeout=HANG, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
