"""The models of fault tests for the fake driver."""

from __future__ import annotations

import torch

from monograph.runtime.gpu.running import Running
from monograph.runtime.gpu.slots import ALIGNED
from tests.gpu.fake_driver import FakeDriver, FakeLibrary, FakeRecord
from tests.gpu.replay_models import (
    SIZE,
    arena,
    branch,
    chain,
    counter,
    double,
    loop,
    plus_one,
    port,
    running,
    slot,
)

__all__ = ["branch", "feeds", "library", "loop", "model", "state"]
model, state = chain, counter


def library(driver: FakeDriver) -> Running:
    """y = (x + 1) * 2, the first by a library."""

    def call(words: list[int], stream: int) -> None:
        driver.launch(stream, "library", plus_one, [w.to_bytes(8, "little") for w in words])

    works = [
        (FakeLibrary(call, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "double", double, 2), [arena(), port("output:y")]),
    ]
    return running(driver, [slot("x")], [slot("y")], works)


def feeds(kind: str, seed: int) -> dict[str, torch.Tensor]:
    names = ("x", "past") if kind == "state" else ("x",)
    generator = torch.Generator().manual_seed(seed)
    found = {n: _aligned(torch.randn(SIZE, generator=generator)) for n in names}
    if kind in ("loop", "branch"):  # they end only for numbers above nought
        found["x"].abs_().add_(0.5).mul_(1 if seed % 2 else 60)
    return found


def _aligned(data: torch.Tensor) -> torch.Tensor:
    """A tensor as aligned as a device's are: libraries are asked no less."""
    block = torch.zeros(SIZE + ALIGNED)
    start = -block.data_ptr() % ALIGNED // 4
    return block[start : start + SIZE].copy_(data)
