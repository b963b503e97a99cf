"""Small executables for tests of replay: kernels in Python, on a fake driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from monograph.codegen.triton.module.launch import ARENA, KEPT, PORT, BufferRef
from monograph.ir import Graph, Input, TensorType, Value, constant
from monograph.ir.dtype import boolean, f32
from monograph.ops.composite import Silu
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.runtime.gpu.bound_program import DeviceFaultText, DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.capture.control import BRANCH, REPEAT, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.capture.replay import Replay
from tests.gpu.fake_driver import FakeDevice, FakeDriver, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs

SIZE = 8
BYTES = 4 * SIZE


def port(name: str) -> BufferRef:
    return BufferRef(PORT, 0, f32, name)


def arena(offset: int = 0) -> BufferRef:
    return BufferRef(ARENA, offset, f32)


def kept(offset: int = 0) -> BufferRef:
    return BufferRef(KEPT, offset, f32)


def slot(name: str, over: str = "") -> DevicePort:
    return DevicePort(name, f32, (SIZE,), over)


def running(
    driver: FakeDriver,
    inputs: Sequence[DevicePort],
    outputs: Sequence[DevicePort],
    works: Sequence[tuple[Any, Sequence[BufferRef]]],
    nests: tuple[LaunchTree, ...] = (),
    faults: tuple[DeviceFaultText, ...] = (),
) -> GpuProgram:
    layout = GpuLayout(
        tuple(inputs),
        tuple(outputs),
        tuple(tuple(places) for _, places in works),
        1024,
        256,
        (),
        faults,
        nests=nests,
    )
    return GpuProgram(
        layout, lambda: [r for r, _ in works], FakeDevice(driver), np.zeros(1, np.uint8)
    )


def plus_one(words: list[int]) -> None:
    numbers(words[1], SIZE)[:] = numbers(words[0], SIZE) + 1


def double(words: list[int]) -> None:
    numbers(words[1], SIZE)[:] = numbers(words[0], SIZE) * 2


def total(words: list[int]) -> None:
    """Adds the first to the second, and what there is then to the third."""
    numbers(words[1], SIZE)[:] += numbers(words[0], SIZE)
    numbers(words[2], SIZE)[:] = numbers(words[1], SIZE) * 10


def chain(driver: FakeDriver) -> GpuProgram:
    """y = (x + 1) * 2, z = (x + 1) + 1."""
    works = [
        (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "double", double, 2), [arena(), port("output:y")]),
        (FakeRecord(driver, "more", plus_one, 2), [arena(), port("output:z")]),
    ]
    return running(driver, [slot("x")], [slot("y"), slot("z")], works)


def expected(x: Any) -> list[np.ndarray]:
    """Return what `chain` computes."""
    x = np.asarray(x)
    return [(x + 1) * 2, (x + 1) + 1]


def counter(driver: FakeDriver) -> GpuProgram:
    """present = past + x, written over past; y = 10 * present."""
    places = [port("input:x"), port("output:present"), port("output:y")]
    works = [(FakeRecord(driver, "total", total, 3), places)]
    outputs = [slot("present", over="past"), slot("y")]
    return running(driver, [slot("x"), slot("past")], outputs, works)


def below(words: list[int]) -> None:
    """Tell whether the first number is below a hundred."""
    ctypes.c_bool.from_address(words[1]).value = bool(numbers(words[0], SIZE)[0] < 100)


def _copy(words: list[int]) -> None:
    numbers(words[1], SIZE)[:] = numbers(words[0], SIZE)


def flag(offset: int = 512) -> BufferRef:
    return BufferRef(ARENA, offset, boolean)


def loop(driver: FakeDriver) -> GpuProgram:
    """y = x doubled until its first number is not below a hundred."""
    nest = LaunchTree(REPEAT, (2,))
    works = [
        (FakeRecord(driver, "copy", _copy, 2), [port("input:x"), arena()]),
        (FakeRecord(driver, "below", below, 2), [arena(), flag()]),
        (ConditionalLaunch(nest), [flag()]),
        (FakeRecord(driver, "double", double, 2), [arena(), arena()]),
        (FakeRecord(driver, "below", below, 2), [arena(), flag()]),
        (FakeRecord(driver, "copy", _copy, 2), [arena(), port("output:y")]),
    ]
    nests = (LaunchTree(), LaunchTree(), nest, LaunchTree(), LaunchTree(), LaunchTree())
    return running(driver, [slot("x")], [slot("y")], works, nests)


def branch(driver: FakeDriver) -> GpuProgram:
    """y = 2 x if its first number is below a hundred, else x + 1; the branch uses the ports."""
    nest = LaunchTree(BRANCH, (1, 1))
    works = [
        (FakeRecord(driver, "below", below, 2), [port("input:x"), flag()]),
        (ConditionalLaunch(nest), [flag()]),
        (FakeRecord(driver, "double", double, 2), [port("input:x"), port("output:y")]),
        (FakeRecord(driver, "plus", plus_one, 2), [port("input:x"), port("output:y")]),
    ]
    return running(
        driver, [slot("x")], [slot("y")], works, (LaunchTree(), nest, LaunchTree(), LaunchTree())
    )


class Default:
    """True if graphs are built node by node, where a test does not say."""

    builds = False


def replayed(
    make: Any = chain, mode: str = "auto", builds: bool | None = None, **options: Any
) -> tuple[Replay, FakeDriver]:
    """An executable on a driver of its own, whose graphs are recorded from streams or built."""
    driver = FakeDriver()
    builds = Default.builds if builds is None else builds
    return Replay(make(driver), FakeGraphs(driver, builds=builds), mode, **options), driver


def three_towers(rows: int = 4) -> Graph:
    """Three chains of products from one input, and one that joins them."""
    generator = np.random.default_rng(0)

    def weights(*shape: int) -> Value:
        return constant(generator.standard_normal(shape).astype(np.float32))

    x = Input("x", TensorType(f32, (rows, 16)))()
    ends = [Dot()(Silu()(Dot()(x, weights(16, 16))), weights(16, 16)) for _ in range(3)]
    joined = Add()(Add()(ends[0], ends[1]), Dot()(ends[2], weights(16, 16)))
    return Graph((x,), (("y", joined), ("z", ends[0])))


KERNELS = 3
"""Of `chain`."""


def some(seed: int = 0) -> torch.Tensor:
    """An input of `chain`."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def check(replay: Replay, x: torch.Tensor) -> list[torch.Tensor]:
    """A run of `chain` that has to give the right numbers."""
    found = replay.run({"x": x})
    for a, b in zip(found, expected(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    return found
