"""Addresses that move, memory that goes, outputs that stay; models that come and go."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.host_io.pinned_staging import free_finished
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, alone, equal, fault

MANY = 1000


@pytest.mark.parametrize("kind", ["model", "library"])
@fault
def test_a_new_address_on_every_call(rig: Rig, kind: str) -> None:
    case = rig.case(kind)
    turns = MANY if kind == "model" else 100
    some = case.feeds()["x"]
    # Rows of 256 bytes from an address so aligned: no library is asked for less.
    pitch = -(-some.numel() // 64) * 64
    whole = torch.empty(turns * pitch + 64, device=PLACE)
    start = -whole.data_ptr() % 256 // 4
    rows = whole[start : start + turns * pitch].view(turns, pitch)[:, : some.numel()]
    block = [row.view(some.shape) for row in rows]
    generator = torch.Generator().manual_seed(1)
    rows.copy_(torch.randn(rows.shape, generator=generator))
    held = [case.replay.run({"x": x}) for x in block]
    for x, found in zip(block, held, strict=True):
        equal(found, case.right({"x": x}))
    assert case.stats["captures"] == 1
    assert case.stats["replays"] == turns
    if kind == "model" or not ON_DEVICE:  # how a device's library launches is not ours to choose
        assert case.stats["staged_copies"] == {}
        assert case.stats["rebinds"] >= turns - 1


@fault
def test_freed_temporaries_are_poisoned(rig: Rig) -> None:
    """Memory that a capture has allocated and freed is nobody else's to write to, or to lose."""
    case = rig.case("temporaries")
    case.check()
    poison: list[torch.Tensor] = []
    for seed in range(4):
        feeds = case.feeds(seed)
        right = case.right(feeds)
        rig.synchronise()
        if ON_DEVICE:
            torch.cuda.empty_cache()  # what torch holds for nobody becomes others' as well
        poison += rig.poison()
        found = [case.replay.run(feeds) for _ in range(2)]
        rig.synchronise()
        for one in found:
            equal(one, right)
        assert all(bool(t.isnan().all()) for t in poison), "a replay has written to it"
    assert case.stats["captures"] == 1
    assert case.stats["fallbacks"] == {}


@fault
def test_the_caller_frees_a_bound_input(rig: Rig) -> None:
    case = rig.case()
    case.check()
    for seed in range(5):
        feeds = case.feeds(seed)
        right = case.right(feeds)
        rig.synchronise()
        with rig.busy():
            found = case.replay.run(feeds)
            if ON_DEVICE:  # the fake driver has no allocator that knows of streams
                del feeds
            poison = rig.poison()
            rig.synchronise()
        equal(found, right)
        assert poison
    case.check(6)


@pytest.mark.skipif(not ON_DEVICE, reason="streams are torch's")
@fault
def test_the_caller_frees_an_input_of_another_stream(rig: Rig) -> None:
    case = rig.case()
    case.check()
    feeds = case.feeds(3)
    right = case.right(feeds)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    rig.synchronise()
    with rig.busy(stream):
        pending = case.replay.run_async(feeds, stream=stream)
        del feeds
        poison = rig.poison()
        rig.synchronise()
    equal(pending.result(), right)
    assert poison


@fault
def test_an_output_is_held_while_the_next_run_goes_on(rig: Rig) -> None:
    case = rig.case()
    inputs = [case.feeds(seed) for seed in range(6)]
    right = [case.right(feeds) for feeds in inputs]
    case.check()
    with rig.busy():
        held = [case.replay.run(feeds) for feeds in inputs]
        rig.synchronise()
    for found, wanted in zip(held, right, strict=True):
        equal(found, wanted)
    places = {t.data_ptr() for found in held for t in found}
    assert len(places) == sum(map(len, held))


@fault
def test_an_output_is_fed_again(rig: Rig) -> None:
    """f(f(x)), f(f(f(x))): once the output of a run, once of the one before."""
    case = rig.case()
    x = case.feeds()["x"]
    steps = [x]
    for _ in range(3):
        steps.append(case.right({"x": steps[-1]})[0])
    rig.synchronise()
    with rig.busy():
        found = [case.replay.run({"x": x})]
        for _ in range(2):
            found.append(case.replay.run({"x": found[-1][0]}))
        rig.synchronise()
    equal([f[0] for f in found], steps[1:])
    assert case.stats["staged_copies"] == {}


@fault
def test_an_output_is_written_over_its_own_input(rig: Rig) -> None:
    case = rig.case("library")
    x = case.feeds()["x"]
    right = case.right({"x": x})
    case.check(1)
    found = case.replay.run({"x": x}, {"y": x})
    assert found[0] is x
    equal(found, right)
    assert case.stats["staged_copies"]["y: it overlaps another"] == 1


@fault
def test_deleted_in_the_middle_of_a_replay(rig: Rig) -> None:
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    case.check()
    queued = [] if ON_DEVICE else _memory_of(case.replay)
    with rig.busy():
        found = case.replay.run(feeds)
        del case
        gc.collect()
        poison = rig.poison()
        rig.synchronise()
    equal(found, right)
    assert poison
    assert ON_DEVICE or queued


@fault
def test_a_pending_run_outlives_what_ran_it(rig: Rig) -> None:
    case = rig.case()
    feeds = case.feeds()
    right = [t.cpu() for t in case.right(feeds)]
    arrays = {n: t.cpu().numpy() for n, t in feeds.items()}
    case.replay.run(arrays)
    queued = [] if ON_DEVICE else _memory_of(case.replay)
    with rig.busy():
        pending = case.replay.run_async(arrays)
        del case
        gc.collect()
    equal([torch.from_numpy(x) for x in pending.result()], right)
    assert ON_DEVICE or queued


@pytest.mark.parametrize("lost", [False, True], ids=["in flight", "interrupted"])
@fault
def test_pinned_memory_outlives_the_run_that_uses_it(
    rig: Rig, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a run whose session goes: nobody else gets its memory before it is done."""
    case = rig.case()
    arrays = {n: t.cpu().numpy() for n, t in case.feeds().items()}
    blocks = pinned_blocks(rig, monkeypatch)
    case.replay.run(arrays)
    rig.synchronise()
    queued = [] if ON_DEVICE else _memory_of(case.replay)
    with rig.busy():
        pending = None
        if lost:
            with pytest.raises(KeyboardInterrupt):
                interrupted_run(case.replay, arrays)
        else:
            pending = case.replay.run_async(arrays)
        staging = (case.replay._ring._buffers + case.replay._ring._lost)[0]
        first, last = staging.address, staging.address + staging.block.numel()
        del pending, case, staging
        gc.collect()
        assert all(block() is not None for block in blocks)
        others = [rig.graphs.pinned(last - first) for _ in range(4)]
        assert not [o for o in others if first - o.numel() < o.data_ptr() < last]
        rig.synchronise()
    free_finished(rig.graphs)
    assert not any(block() is not None for block in blocks[:1]), "it is kept for ever"
    assert ON_DEVICE or queued


def pinned_blocks(rig: Rig, patch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Refers to what is pinned from now on."""
    plain = rig.graphs.inner.pinned
    found: list[weakref.ref[Any]] = []

    def pinned(nbytes: int) -> torch.Tensor:
        if ON_DEVICE:
            made: torch.Tensor = plain(nbytes)
            owner: Any = made
        else:
            owner = np.empty(nbytes, np.uint8)  # alive as long as any view of the tensor's is
            made = torch.from_numpy(owner)
        found.append(weakref.ref(owner))
        return made

    patch.setattr(rig.graphs.inner, "pinned", pinned)
    return found


def interrupted_run(replay: Replay, arrays: dict[str, Any]) -> None:
    """A run whose launch has been made when an interrupt comes."""
    launch = replay._launches.launch

    def interrupted(*arguments: Any) -> None:
        launch(*arguments)
        raise KeyboardInterrupt

    replay._launches.launch = interrupted  # type: ignore[method-assign]
    replay.run_async(arrays)


def _memory_of(replay: Replay) -> list[Any]:
    """Return the memory of a launch, which the fake driver's queue does not keep alive."""
    return [replay.executable, *(t for r in replay._launches.made.values() for t in r.memory)]


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
@fault
def test_many_come_and_go(rig: Rig, closes: bool) -> None:
    """Made, replayed and destroyed a thousand times: as much is held as after a hundred."""
    executable = rig.running("model")
    case = rig.case()
    feeds = case.feeds()
    right = case.right(feeds)
    held: list[Any] = []
    for turn in range(MANY):
        one = Replay(executable, rig.graphs)
        found = one.run(feeds)
        equal(found, right)
        if closes:
            one.close()
        del one, found
        if turn in (100, MANY - 1):
            held.append(rig.held())
    assert held[0] == held[1]


@alone
@fault
def test_driver_memory_does_not_grow(rig: Rig) -> None:
    """The memory that the driver itself holds for graphs, which torch does not see."""
    executables = [rig.running(kind) for kind in ("model", "library", "loop")]
    feeds = [rig.feeds(kind) for kind in ("model", "library", "loop")]
    free = []
    for turn in range(300):
        for executable, given in zip(executables, feeds, strict=True):
            Replay(executable, rig.graphs).run(given)
        if turn in (99, 299):
            rig.held()
            free.append(torch.cuda.mem_get_info()[0])
    assert free[0] - free[1] <= 4 << 20


def test_an_event_that_is_garbage_is_not_used_again(rig: Rig) -> None:
    """Collected together with what marks it, an event is destroyed first: then it is gone."""
    launches = rig.case().replay._launches
    mark = launches.marked(rig.graphs.current())
    mark._event.itself = [mark, mark._event]  # type: ignore[attr-defined]
    del mark
    gc.collect()
    assert not any(event.closed for event in launches._events)
    launches.marked(rig.graphs.current()).wait()
