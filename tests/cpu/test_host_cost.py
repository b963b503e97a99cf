"""The measured cost model of the host: rounding, caching, and what it falls back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from monograph.codegen.llvm.module.features import choose_features
from monograph.config import make_config
from monograph.errors import CodegenError
from monograph.pipeline import target_cost
from monograph.rewrite.cost import CPU_COST
from monograph.runtime.cpu import host_cost
from monograph.runtime.cpu.host_cost import REACHED, Measured, measure, rounded

USUAL = Measured(
    CPU_COST.bytes_per_second / REACHED, CPU_COST.flops_per_second / REACHED / 2, 0.3e-6
)


def test_every_figure_of_a_host_is_measured() -> None:
    found = measure(choose_features(), 1)
    assert 1e8 < found.bytes_per_second < 1e13
    assert 1e8 < found.flops_per_second < 1e13
    assert found.barrier_seconds is None
    several = measure(choose_features(), 2).barrier_seconds
    assert several is None or 1e-9 < several < 1e-3


@pytest.mark.parametrize("noise", [0.75, 1.0, 1.35])
def test_noise_does_not_change_the_cost(noise: float) -> None:
    noisy = Measured(noise * USUAL.bytes_per_second, noise * USUAL.flops_per_second, noise * 0.3e-6)
    assert rounded(noisy, 2) == CPU_COST


def test_rates_follow_the_host_in_powers_of_two_within_bounds() -> None:
    assert rounded(USUAL, 1).flops_per_second == CPU_COST.flops_per_second / 2
    fast = Measured(4.1 * USUAL.bytes_per_second, 1e6 * USUAL.flops_per_second, 1.0e-6)
    cost = rounded(fast, 2)
    assert cost.bytes_per_second == 4 * CPU_COST.bytes_per_second
    assert cost.flops_per_second == 8 * CPU_COST.flops_per_second
    assert cost.launch_seconds == 2 * CPU_COST.launch_seconds
    assert rounded(Measured(1e11, 1e11, None), 2).launch_seconds == CPU_COST.launch_seconds


def test_one_measurement_serves_all_that_share_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(cache_dir=str(tmp_path), threads=2)
    fast = Measured(4 * USUAL.bytes_per_second, USUAL.flops_per_second, 0.3e-6)
    monkeypatch.setattr(host_cost, "_measured", lambda *_: fast)
    first = target_cost(config)
    assert first == rounded(fast, 2) != CPU_COST
    monkeypatch.setattr(host_cost, "_measured", lambda *_: USUAL)
    assert target_cost(config) == first
    other = make_config(cache_dir=str(tmp_path / "other"), threads=2)
    assert target_cost(other) == CPU_COST


def test_what_cannot_be_measured_has_the_default_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Measured:
        raise CodegenError("no code")

    monkeypatch.setattr(host_cost, "_measured", host_cost._measured_now)
    monkeypatch.setattr(host_cost, "measure", fail)
    assert target_cost(make_config(cache_dir=str(tmp_path))) is CPU_COST
    assert target_cost(make_config(cache_dir="")) is CPU_COST
    assert target_cost(make_config(target="reference")) is CPU_COST
