"""The models of fault tests for the fake driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.control import BRANCH, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.capture.pointer_params import ALIGNED
from tests.gpu.capture.replay_models import (
    BYTES,
    SIZE,
    arena,
    below,
    branch,
    chain,
    counter,
    double,
    flag,
    loop,
    plus_one,
    port,
    running,
    slot,
)
from tests.gpu.fake_driver import FakeDriver, FakeLibrary, FakeRecord
from tests.gpu.faults.fakes import Driver

__all__ = ["branch", "decided", "feeds", "library", "loop", "model", "state", "temporaries"]
model, state = chain, counter


def library(driver: FakeDriver) -> GpuProgram:
    """y = (x + 1) * 2 + 1, all but the last by a library."""

    def call(run: Callable[[list[int]], None], words: list[int], stream: int) -> None:
        driver.launch(stream, "library", run, [w.to_bytes(8, "little") for w in words])

    works = [
        (FakeLibrary(partial(call, plus_one), 2), [port("input:x"), arena()]),
        (FakeLibrary(partial(call, double), 2), [arena(), arena(ALIGNED)]),
        (FakeRecord(driver, "more", plus_one, 2), [arena(ALIGNED), port("output:y")]),
    ]
    return running(driver, [slot("x")], [slot("y")], works)


def decided(driver: FakeDriver) -> GpuProgram:
    """y = 2 x or x + 1, as a bool says, by a library."""

    def call(run: Callable[[list[int]], None], words: list[int], stream: int) -> None:
        driver.launch(stream, "library", run, [w.to_bytes(8, "little") for w in words])

    nest = LaunchTree(BRANCH, (1, 1))
    works = [
        (FakeRecord(driver, "below", below, 2), [port("input:x"), flag()]),
        (ConditionalLaunch(nest), [flag()]),
        (FakeLibrary(partial(call, double), 2), [port("input:x"), port("output:y")]),
        (FakeLibrary(partial(call, plus_one), 2), [port("input:x"), port("output:y")]),
    ]
    return running(
        driver, [slot("x")], [slot("y")], works, (LaunchTree(), nest, LaunchTree(), LaunchTree())
    )


def temporaries(driver: Driver) -> GpuProgram:
    """y = (x + 1) * 2 by a library, through memory that it takes for a while."""

    def launch(stream: int, name: str, run: Any, *words: int) -> None:
        driver.launch(stream, name, run, [w.to_bytes(8, "little") for w in words])

    def call(words: list[int], stream: int) -> None:
        with driver.memory.taken(BYTES) as between:
            launch(stream, "there", plus_one, words[0], between)
            launch(stream, "back", double, between, words[1])

    works = [(FakeLibrary(call, 2), [port("input:x"), port("output:y")])]
    return running(driver, [slot("x")], [slot("y")], works)


def feeds(kind: str, seed: int) -> dict[str, torch.Tensor]:
    names = ("x", "past") if kind == "state" else ("x",)
    generator = torch.Generator().manual_seed(seed)
    found = {n: _aligned(torch.randn(SIZE, generator=generator)) for n in names}
    if kind in (
        "loop",
        "branch",
        "decided",
    ):  # above nought, and by turns below a hundred and above
        found["x"].abs_().add_(0.5).mul_(1 if seed % 2 else 250)
    return found


def _aligned(data: torch.Tensor) -> torch.Tensor:
    """A tensor as aligned as a device's are: libraries are asked no less."""
    block = torch.zeros(SIZE + ALIGNED)
    start = -block.data_ptr() % ALIGNED // 4
    return block[start : start + SIZE].copy_(data)
