"""Threads that were woken on the core of who woke them go to another."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.cpu.pool_code import pool_text
from tests.cpu.launching import HANG, function

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which core it is")
TRIES = 1000


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
