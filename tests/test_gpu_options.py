"""Options of the gpu target, and what is said without torch: none of it needs a GPU or torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import monograph
from monograph.config import Config, make_config
from monograph.errors import ConfigError
from tests.cli.calls import call
from tests.report import models
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
    of_gpus: list[dict[str, Any]] = [
        {"precision": "f16"},
        {"tf32": True},
        {"tune": "off"},
        {"tune": "fast"},
        {"tuning_cache": "mine.json"},
    ]
    for option in of_gpus:
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
    # A default for GPUs does not apply to other targets.
    assert make_config(target="cpu").precision == "f32"
    monkeypatch.setenv("MONOGRAPH_TARGET", "gpu")
    assert make_config().precision == "bf16"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    for target in ("gpu", "gpu:sm_90", "gpu:interpreter"):
        with pytest.raises(ConfigError, match="torch and triton") as caught:
            monograph.load(cache_model(), target=target)
        assert "pip install 'monograph[gpu]'" in str(caught.value)


@pytest.mark.parametrize("target", ["gpu", "gpu:sm_90", "gpu:interpreter"])
def test_commands_without_torch(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    for module in ("torch", "triton"):
        monkeypatch.setitem(sys.modules, module, None)
    path = models.save(models.LINEAR, tmp_path)
    for command in ("run", "verify", "bench", "profile"):
        result = call(command, path, "--target", target)
        assert result.exit_code == 2, command
        assert "the gpu target needs torch and triton" in result.stderr, command
        assert "pip install" in result.stderr, command


def test_an_architecture_is_looked_at_before_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    path, output = models.save(models.LINEAR, tmp_path), tmp_path / "model.mono"
    result = call("compile", path, "-o", output, "--target", "gpu:sm_75")
    assert result.exit_code == 2
    assert "no code is generated for this architecture" in result.stderr


def test_the_environment_chooses_what_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_TARGET", "reference")
    result = call("profile", models.save(models.LINEAR, tmp_path))
    assert result.exit_code == 2
    assert "`profile` needs a target that compiles" in result.stderr


def test_defaults_for_gpus_are_no_wish_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOGRAPH_TUNE", "full")
    assert make_config(target="cpu", tune=None).tune == Config.tune


def test_the_cpu_target_imports_neither() -> None:
    code = (
        "import sys, monograph\n"
        "from tests.test_donation import cache_model\n"
        "monograph.load(cache_model(), target='cpu', cache_dir='')\n"
        "assert not {'torch', 'triton', 'monograph.runtime.gpu'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_code_that_can_be_checked_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("cpu", "reference", "gpu:interpreter"):
        assert Config(target=target, checked=True).checked
    for target in ("gpu", "gpu:1", "gpu:sm_90"):
        with pytest.raises(ConfigError, match="`checked` needs"):
            Config(target=target, checked=True)
        with pytest.raises(ConfigError, match="`checked` needs"):
            make_config(target=target, checked=True)
    monkeypatch.setenv("MONOGRAPH_CHECKED", "1")
    assert make_config().checked
    assert not make_config(checked=False).checked
    assert not make_config(target="gpu").checked, "a default does not apply to a device"
