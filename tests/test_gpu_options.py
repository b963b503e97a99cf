"""Options of the gpu target, and what is said without torch: none of it needs a GPU or torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

import monograph
from monograph.config import Config, make_config
from monograph.errors import ConfigError
from tests.test_donation import cache_model


@pytest.mark.parametrize(
    ("target", "device"),
    [
        ("gpu", ""),
        ("gpu:0", "0"),
        ("gpu:12", "12"),
        ("gpu:sm_90", "sm_90"),
        ("gpu:gfx942", "gfx942"),
        ("gpu:interpreter", "interpreter"),
    ],
)
def test_targets(target: str, device: str) -> None:
    config = Config(target=target)
    assert config.on_gpu
    assert config.device == device


@pytest.mark.parametrize(
    "target", ["gpu:", "gpu:-1", "gpus", "gpu:h200", "cuda", "gpu:0 ", "gpu\n"]
)
def test_no_such_target(target: str) -> None:
    with pytest.raises(ConfigError, match="no such target"):
        Config(target=target)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_others_are_no_gpus(target: str) -> None:
    assert not Config(target=target).on_gpu
    for option in ({"precision": "f16"}, {"tf32": True}):
        with pytest.raises(ConfigError, match="an option of the gpu target"):
            make_config(target=target, **option)


@pytest.mark.parametrize("option", [{"precision": "f64"}, {"tune": "slow"}, {"tf32": "yes"}])
def test_values_that_do_not_exist(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        make_config(target="gpu", **option)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"PRECISION": "bf16", "TF32": "1", "TUNE": "full", "TUNING_CACHE": "mine.json"}
    for name, value in settings.items():
        monkeypatch.setenv(f"MONOGRAPH_{name}", value)
    config = make_config(target="gpu:1")
    found = (config.precision, config.tf32, config.tune, config.tuning_cache)
    assert found == ("bf16", True, "full", "mine.json")
    assert make_config(target="gpu", precision="f32").precision == "f32"
    # A default for GPUs is no wish for other targets.
    assert make_config(target="cpu").precision == "f32"
    monkeypatch.setenv("MONOGRAPH_TARGET", "gpu")
    assert make_config().precision == "bf16"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    for target in ("gpu", "gpu:sm_90", "gpu:interpreter"):
        with pytest.raises(ConfigError, match="torch and triton") as caught:
            monograph.load(cache_model(), target=target)
        assert "pip install 'monograph[gpu]'" in str(caught.value)


def test_the_cpu_target_imports_neither() -> None:
    code = (
        "import sys, monograph\n"
        "from tests.test_donation import cache_model\n"
        "monograph.load(cache_model(), target='cpu', cache_dir='')\n"
        "assert not {'torch', 'triton', 'monograph.runtime.gpu'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
