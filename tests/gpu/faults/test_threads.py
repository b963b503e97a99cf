"""Other threads allocate, wait, pin memory or run models while one captures; several run one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.faults.misbehaving import hook
from tests.gpu.faults.rig import (
    ON_DEVICE,
    PLACE,
    Aside,
    Rig,
    equal,
    fault,
    in_thread,
    side_by_side,
)


def allocate(rig: Rig) -> None:
    tensors = [torch.empty(1 << 22, device=PLACE).fill_(i) for i in range(4)]
    assert float(tensors[3][0]) == 3


def synchronise(rig: Rig) -> None:
    if ON_DEVICE:
        torch.cuda.synchronize()
    else:
        rig.driver.synchronise(0)


def wait_for_a_stream(rig: Rig) -> None:
    if not ON_DEVICE:
        rig.driver.synchronise(7)
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = torch.ones(1 << 16, device=PLACE).sum()
    stream.synchronize()
    assert float(found) == 1 << 16


def pin(rig: Rig) -> None:
    pinned = rig.graphs.pinned(1 << 22)
    pinned.fill_(3)
    assert int(pinned.to(PLACE, non_blocking=True)[5]) == 3


def replay_another(rig: Rig) -> None:
    rig.case().check(5)


WORKS = (allocate, synchronise, wait_for_a_stream, pin, replay_another)
PLACES = {"model": 1, "library": 1, "loop": 2, "branch": 1, "decided": 1}
"""Kinds of models, and one of the kernels of each: of a loop or a branch one that is inside."""
FOREIGN = ("library", "decided")
"""Those that libraries take part in, so that streams record them."""


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("work", WORKS)
@fault
def test_another_thread_works_during_a_capture(
    rig: Rig, work: Callable[[Rig], None], kind: str
) -> None:
    case = rig.case(kind)
    other = Aside(lambda: work(rig))
    recorded = not rig.builds or kind in FOREIGN
    # Captures take turns: one that begins during another may end after it.
    waits = work is not replay_another or not recorded
    hook(case.replay, PLACES[kind], other.run if waits else other.start)
    case.check()
    failures = other.ended()
    # No driver lets anybody wait for a whole device while a stream of it records, or goes on with
    # the recording; nothing else that others do is in its way.
    refused = ON_DEVICE and recorded and work is synchronise
    assert failures == [] or refused
    assert sum(case.stats["fallbacks"].values()) <= refused
    case.check(1)
    case.check(2)
    assert case.stats["captures"] == 1


@pytest.mark.parametrize("kind", ["model", "library"])
@fault
def test_a_collection_destroys_graphs_during_a_capture(rig: Rig, kind: str) -> None:
    case = rig.case(kind)
    others = [rig.case(k) for k in ("model", "library", "loop")]
    for other in others:
        other.check()

    def destroy() -> None:
        others.clear()
        gc.collect()

    del other
    hook(case.replay, 1, destroy)
    case.check()
    assert not others
    case.check(1)
    assert case.stats["captures"] == 1
    assert case.stats["fallbacks"] == {}


@pytest.mark.skipif(not ON_DEVICE, reason="pools of memory are torch's")
@fault
def test_graphs_are_destroyed_while_a_caller_allocates_to_a_pool(rig: Rig) -> None:
    """torch frees no pool then, and ends the process if it is asked to."""
    cases = [rig.case("library") for _ in range(12)]
    for case in cases:
        case.check()
    del case
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(1 << 16, device=PLACE)
        assert in_thread(cases.clear) == []
        gc.collect()
    later = rig.case("library")
    for seed in range(3):
        later.check(seed)
    assert float(kept.sum()) == 1 << 16
    del kept, pool


@fault
def test_nothing_is_collected_while_a_stream_records(rig: Rig) -> None:
    case = rig.case("library")
    seen: list[bool] = []
    case.check()
    assert gc.isenabled()
    case = rig.case("library")
    hook(case.replay, 0, lambda: seen.append(gc.isenabled()))
    case.check()
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("kind", ["model", "library", "loop"])
@fault
def test_two_threads_make_the_first_call(rig: Rig, kind: str) -> None:
    case = rig.case(kind)
    inputs = [case.feeds(seed) for seed in range(4)]
    right = [case.right(feeds) for feeds in inputs]
    rig.synchronise()

    def work(part: int) -> None:
        for turn in range(10):
            number = (part + turn) % len(inputs)
            found = case.replay.run(inputs[number])
            equal(found, right[number])

    side_by_side(4, work)
    assert case.stats["captures"] == 1
    assert case.stats["replays"] == 40
    assert case.stats["fallbacks"] == {}


@fault
def test_several_models_are_first_called_at_once(rig: Rig) -> None:
    kinds = ("model", "library", "loop", "library")
    cases = [rig.case(kind) for kind in kinds]
    right = [case.right(case.feeds(1)) for case in cases]
    rig.synchronise()

    def work(part: int) -> None:
        for _ in range(5):
            equal(cases[part].replay.run(cases[part].feeds(1)), right[part])

    side_by_side(len(cases), work)
    assert [case.stats["captures"] for case in cases] == [1] * len(cases)


@fault
def test_threads_replay_on_streams_of_their_own(rig: Rig) -> None:
    case = rig.case()
    inputs = [case.feeds(seed) for seed in range(20)]
    right = [case.right(feeds) for feeds in inputs]
    rig.synchronise()

    def work(part: int) -> None:
        stream: Any = torch.cuda.Stream() if ON_DEVICE else 10 + part
        with rig.graphs.using(int(getattr(stream, "cuda_stream", stream))):
            for turn in range(100):
                number = (7 * turn + part) % len(inputs)
                found = case.replay.run(inputs[number])
                if ON_DEVICE:
                    stream.synchronize()
                equal(found, right[number])

    side_by_side(4, work)
    assert case.stats["captures"] == 1


@fault
def test_a_capture_fails_in_one_thread_while_another_waits_for_it(rig: Rig) -> None:
    case = rig.case()

    def fail() -> None:
        raise RuntimeError("a kernel raises")

    hook(case.replay, 1, fail)
    right = case.right(case.feeds())
    rig.synchronise()
    side_by_side(2, lambda _: equal(case.replay.run(case.feeds()), right))
    assert case.stats["fallbacks"] == {"a kernel raises": 1}
    assert case.stats["captures"] == 1
