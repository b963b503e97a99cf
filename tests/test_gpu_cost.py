"""The cost model of a GPU from what its driver tells; the driver is a fake."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from monograph.config import make_config
from monograph.pipeline import target_cost
from monograph.rewrite.cost import GPU_COST
from monograph.runtime.gpu.driver import device_cost
from monograph.runtime.gpu.driver.device_cost import USUAL, DeviceRates, rounded

H200 = {16: 132, 13: 1_980_000, 36: 3_201_000, 37: 6144}
SMALL = {16: 46, 13: 2_475_000, 36: 10_501_000, 37: 192}
"""An RTX 4070: a third of the processors, a tenth of the bandwidth."""


@dataclass
class FakeDriver:
    """The calls of libcuda that describe a device."""

    attributes: Mapping[int, int]
    devices: int = 1

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0 if self.devices else 100

    def cuDeviceGet(self, device: object, index: int) -> int:  # noqa: N802
        return 0 if index < self.devices else 101

    def cuDeviceGetAttribute(self, number: object, attribute: int, device: object) -> int:  # noqa: N802
        if attribute not in self.attributes:
            return 1
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = self.attributes[attribute]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    def use(*given: object, **more: object) -> None:
        device_cost._described.cache_clear()
        monkeypatch.setattr(device_cost.ctypes, "CDLL", lambda _: FakeDriver(*given, **more))

    yield use
    device_cost._described.cache_clear()


def test_the_device_of_the_default_has_its_cost(driver: Callable[..., None]) -> None:
    driver(H200)
    assert target_cost(make_config(target="gpu")) == GPU_COST


def test_a_smaller_device_computes_and_reads_slower(driver: Callable[..., None]) -> None:
    driver(SMALL)
    cost = target_cost(make_config(target="gpu"))
    assert cost.flops_per_second == GPU_COST.flops_per_second / 2
    assert cost.bytes_per_second == GPU_COST.bytes_per_second / 8
    assert (cost.launch_seconds, cost.decodes) == (GPU_COST.launch_seconds, GPU_COST.decodes)


def test_figures_stay_within_bounds() -> None:
    cost = rounded(DeviceRates(1e3 * USUAL.cycles_per_second, 1e-3 * USUAL.bytes_per_second))
    assert cost.flops_per_second == 8 * GPU_COST.flops_per_second
    assert cost.bytes_per_second == GPU_COST.bytes_per_second / 8


@pytest.mark.parametrize("target", ["gpu:1", "gpu:interpreter", "gpu:sm_80"])
def test_what_no_driver_describes_has_the_default_cost(
    target: str, driver: Callable[..., None]
) -> None:
    driver(SMALL)
    assert target_cost(make_config(target=target)) is GPU_COST


@pytest.mark.parametrize("missing", [*H200, None])
def test_a_driver_that_does_not_tell_all(missing: int | None, driver: Callable[..., None]) -> None:
    known = {k: v for k, v in SMALL.items() if k != missing}
    driver(known | ({13: 0} if missing is None else {}))
    assert target_cost(make_config(target="gpu")) is GPU_COST


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("no such library")

    device_cost._described.cache_clear()
    monkeypatch.setattr(device_cost.ctypes, "CDLL", fail)
    assert target_cost(make_config(target="gpu")) is GPU_COST
    device_cost._described.cache_clear()
