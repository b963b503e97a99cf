"""Errors where no device can be opened: never another target in its place."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.errors import ConfigError
from monograph.runtime.cpu import native
from monograph.runtime.gpu.driver.device_discovery import architecture, open_device
from monograph.runtime.gpu.driver.torch_driver import TorchDevice
from tests.gpu.gpu_models import linear

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Pretends that torch sees some GPUs."""

    def made(count: int = 1, capability: tuple[int, int] = (9, 0), error: str = "") -> None:
        def init() -> None:
            if error:
                raise RuntimeError(error)

        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "an old card")

    return made


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    plain = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name in names else plain(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_without_torch_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "triton")
    with pytest.raises(ConfigError, match="needs torch and triton") as caught:
        monograph.load(linear(), target="gpu")
    assert "pip install 'monograph[gpu]'" in str(caught.value)


def test_other_targets_need_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "triton")
    session = monograph.load(linear(), target="cpu", cache_dir="")
    assert session.run({"x": np.ones((1, 33), np.float32)})[0].shape == (1, 20)


def test_torch_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match="without support for GPUs"):
        open_device("")


def test_no_gpu(machine: Machine) -> None:
    machine(count=0)
    with pytest.raises(ConfigError, match="there is no GPU") as caught:
        open_device("")
    assert 'target="cpu"' in str(caught.value)


def test_no_such_gpu(machine: Machine) -> None:
    machine(count=2)
    with pytest.raises(ConfigError, match="no such GPU") as caught:
        open_device("3")
    assert "gpu:0 to gpu:1" in str(caught.value)


def test_a_driver_that_is_too_old(machine: Machine) -> None:
    machine(error="The NVIDIA driver on your system is too old (found version 11040).")
    with pytest.raises(ConfigError, match="driver is too old") as caught:
        open_device("0")
    assert "11040" in str(caught.value)
    assert "update the driver" in str(caught.value)


def test_a_driver_that_fails(machine: Machine) -> None:
    machine(error="No CUDA GPUs are available")
    with pytest.raises(ConfigError, match="no GPU can be used") as caught:
        open_device("")
    assert "No CUDA GPUs are available" in str(caught.value)


def test_an_architecture_that_is_too_old(machine: Machine) -> None:
    machine(capability=(7, 5))
    with pytest.raises(ConfigError, match="architecture is too old") as caught:
        open_device("")
    assert "sm_75 (an old card)" in str(caught.value)
    assert "sm_80 or newer" in str(caught.value)


def test_without_cuda_bindings(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    without(monkeypatch, "cuda.bindings")
    with pytest.raises(ConfigError, match=r"needs cuda\.bindings"):
        open_device("")


def test_an_architecture_that_no_code_is_generated_for() -> None:
    with pytest.raises(ConfigError, match="no code is generated") as caught:
        monograph.load(linear(), target="gpu:sm_75")
    assert "sm_90" in str(caught.value.expected)
    assert architecture("gfx942").warp == 64


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"count": 0}, "there is no GPU"),
        ({"capability": (7, 5)}, "architecture is too old"),
        ({"error": "The NVIDIA driver on your system is too old (found 11040)."}, "too old"),
        ({"error": "No CUDA GPUs are available"}, "no GPU can be used"),
        ({"error": "out of memory"}, "no GPU can be used"),
    ],
)
def test_a_model_never_moves_to_another_target(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], said: str
) -> None:
    """Nothing is compiled for another one, and what comes out is an error that says what to do."""
    machine(**state)
    compiled: list[Any] = []
    monkeypatch.setattr(native, "compile_modules", lambda *a, **k: compiled.append(a))
    with pytest.raises(ConfigError, match=said) as caught:
        monograph.load(linear(), target="gpu").run({"x": np.ones((1, 33), np.float32)})
    assert caught.value.hint
    assert not compiled


def amd(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    properties = type("Properties", (), {"gcnArchName": f"{name}:sramecc+:xnack-"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_an_amd_device_that_no_code_is_generated_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    amd(monkeypatch, "gfx906")
    with pytest.raises(ConfigError, match="no code is generated") as caught:
        open_device("")
    assert caught.value.given == "gfx906"
    assert "gfx942" in str(caught.value.expected)


def test_no_amd_device(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(count=0)
    amd(monkeypatch, "gfx942")
    with pytest.raises(ConfigError, match="there is no GPU") as caught:
        open_device("")
    assert "rocm-smi" in str(caught.value)


def test_a_stream_that_is_captured_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    device = object.__new__(TorchDevice)
    device.place = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, place: made.append(stream))
    device.join(5)
    assert not made
