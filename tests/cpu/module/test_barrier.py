"""Barriers between threads: how long those that wait spin before they sleep."""

from __future__ import annotations

import ctypes
import threading

import pytest

from monograph.codegen.llvm.module.barrier import MOST_SPINS, SHORTER, SLEEP, SPINS, TRIALS
from monograph.runtime.cpu.pool import shared_pool
from tests.cpu.launching import (
    ARRIVE,
    HANG,
    MEET,
    Context,
    function,
    load,
    wait_for,
    workers_sleep,
)

LONG = 1 << 30
"""Turns that take longer than any test."""


def test_a_launch_says_how_long_to_spin_and_a_wait_in_vain_shortens_it() -> None:
    code, context = load(MEET, "meet"), Context(3)
    arguments = (code.address("meet"), context.address, 2)
    late = threading.Thread(target=shared_pool().launch, args=arguments)
    late.start()
    wait_for(lambda: context.numbers[0] == 1, "the thread that comes late")
    wait_for(workers_sleep, "the worker that sleeps at the barrier")
    context.numbers[1] = 1
    late.join(HANG)
    most = ctypes.c_int32.from_address(context.address + MOST_SPINS).value
    assert most > 1 << SHORTER
    # All of it again where the two had to part: they were on one core.
    assert ctypes.c_int32.from_address(context.address + SPINS).value in (most >> SHORTER, most)


@pytest.mark.parametrize(
    ("passed", "spins", "most", "following"),
    [
        (0, 64, 64, 16),
        (1, 16, 64, 4),
        (2, 4, 64, 4),
        (3, 0, 0, 0),
        (4, LONG, LONG + 64, LONG + 64),
        (TRIALS - 2, 4, LONG, LONG >> 4),
        (TRIALS - 1, 4, LONG, LONG),
        (2 * TRIALS - 1, 64, 64, 16),
    ],
)
def test_how_long_the_next_wait_spins(passed: int, spins: int, most: int, following: int) -> None:
    """A quarter, but not less than a sixteenth of the most; all of it when somebody came in time.

    Threads that share a core with each other or with other programs wait in vain at each barrier.
    """
    long = spins >= LONG or following == LONG
    code, context = load(ARRIVE, "arrive", "doze"), Context(1)
    at = context.address
    now = ctypes.c_int32.from_address(at + SPINS)
    now.value = spins
    ctypes.c_int32.from_address(at + MOST_SPINS).value = most
    ctypes.c_void_p.from_address(at + SLEEP).value = code.address("doze")
    arrive = function(code.address("arrive"), None, ctypes.c_void_p, ctypes.c_int64)
    arrivals = ctypes.c_int64.from_address(at)
    arrivals.value = 2 * passed
    first = threading.Thread(target=arrive, args=(at, 2))
    first.start()
    wait_for(lambda: arrivals.value == 2 * passed + 1, "the first of two threads")
    if not long:
        wait_for(lambda: context.numbers[0] == 1, "the first of two threads, asleep")
    arrive(at, 2)
    first.join(HANG)
    assert not first.is_alive()
    assert (context.numbers[0] == 0) == long
    assert now.value == following
