"""Graphs that are launched before their inputs are there, whatever else goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from monograph.ir import constant
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Mul
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.replay import Replay
from monograph.runtime.gpu.host_io import host_io_graphs
from monograph.runtime.gpu.host_io.overlapped_upload import can_narrow
from monograph.runtime.gpu.host_io.transfer_policy import (
    DOWNCAST,
    OVERLAPPED,
    MeasuredTransferModes,
    TransferMode,
)
from tests.gpu.faults.rig import ON_DEVICE, Rig, fault
from tests.gpu.faults.test_threads import allocate, pin, synchronise
from tests.rules.checks import graph_of, value

SIZES = (1 << 18, 3, 40_001) if ON_DEVICE else (1 << 14, 3, 9_001)
"""Elements: of some blocks, of a part of one, and across blocks."""
TURNS = 30 if ON_DEVICE else 10


def free(rig: Rig) -> None:
    """Memory is given back to the driver: it waits for the device, and Python for it."""
    if ON_DEVICE:
        torch.empty(1 << 24, device="cuda")
        torch.cuda.empty_cache()


WORKS = (allocate, synchronise, pin, free)


HALF = f16 if can_narrow(f16) else bf16


@pytest.fixture(params=(*OVERLAPPED, *DOWNCAST), ids=str)
def _early(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(runs: Mapping[TransferMode, Callable[[], None]]) -> dict[TransferMode, float]:
        for run in runs.values():
            run()
        return {mode: 1.0 if mode == request.param else 2.0 for mode in runs}

    monkeypatch.setattr(host_io_graphs, "time_all", timed)


def scaled(rig: Rig) -> Replay:
    """Three inputs, each scaled and moved by itself; the last two are rounded before."""
    two, one = constant(np.float32(2)), constant(np.float32(1))
    inputs = [value(f"f32[{n}]", f"x{i}") for i, n in enumerate(SIZES)]
    used = [inputs[0], *(Cast(f32)(Cast(HALF)(x)) for x in inputs[1:])]
    graph = graph_of(*(Add()(Mul()(x, two), one) for x in used))
    return Replay(
        rig.compiled(graph), rig.graphs, measured=MeasuredTransferModes(TuningCache(None), "here")
    )


def some(seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {f"x{i}": r.standard_normal(n).astype(np.float32) for i, n in enumerate(SIZES)}


def check(found: list[np.ndarray], seed: int) -> None:
    for number, (y, x) in enumerate(zip(found, some(seed).values(), strict=True)):
        if number:
            x = x.astype(HALF.numpy).astype(np.float32)
        np.testing.assert_array_equal(y, x * np.float32(2) + np.float32(1))


@pytest.mark.usefixtures("_early")
@fault
def test_every_run_takes_its_own_arrays(rig: Rig) -> None:
    replay = scaled(rig)
    for seed in range(TURNS):
        check(replay.run(some(seed)), seed)
    assert replay.stats["captures"] == 1
    assert replay.stats["replays"] == TURNS


@pytest.mark.usefixtures("_early")
@fault
def test_arrays_are_the_callers_again_at_once(rig: Rig) -> None:
    """Runs are in flight behind work that takes long, each with a staging buffer of its own."""
    replay = scaled(rig)
    replay.run(some(0))
    with rig.busy():
        runs = []
        for seed in range(5):
            feeds = some(seed)
            runs.append(replay.run_async(feeds))
            for array in feeds.values():
                array[:] = np.nan
    for seed, pending in enumerate(runs):
        check(pending.result(), seed)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.usefixtures("_early")
@fault
def test_threads_that_wait_for_the_device_are_no_hindrance(
    rig: Rig, work: Callable[[Rig], None]
) -> None:
    """One that holds Python's lock while it waits must not wait for what that lock holds up."""
    replay = scaled(rig)
    check(replay.run(some(0)), 0)
    done = threading.Event()
    failures: list[BaseException] = []

    def disturb() -> None:
        try:
            while not done.is_set():
                work(rig)
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for seed in range(TURNS):
            check(replay.run(some(seed)), seed)
    finally:
        done.set()
        thread.join()
    assert not failures
