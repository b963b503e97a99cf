"""The commands with `--target gpu`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console

from monograph.report.render.progress import ProgressBar
from monograph.runtime.progress import until_ready
from tests.cli.calls import call
from tests.gpu import gpu_models as models
from tests.gpu.gpu_models import FakeDevice, use

pytestmark = models.INTERPRETED
INTERPRETED = ("--target", "gpu:interpreter")


@pytest.fixture
def linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "linear.onnx"
    onnx.save(models.linear(), path)
    return path


def test_run(linear: Path) -> None:
    found = json.loads(call("run", linear, *INTERPRETED, "--dim", "n=2", "--json").stdout)
    assert found["ok"], found
    assert found["target"] == "gpu:interpreter"
    assert found["outputs"][0]["shape"] == [2, 20]


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16"])
def test_verify_in_a_precision(linear: Path, precision: str) -> None:
    result = call("verify", linear, *INTERPRETED, "--precision", precision)
    assert result.exit_code == 0, result.stdout + result.stderr


def test_bench(linear: Path) -> None:
    result = call("bench", linear, *INTERPRETED, "--seconds", "0.1", "--tune", "off")
    assert result.exit_code == 0, result.stderr
    assert "of its memory" in result.stdout
    assert "threads" not in result.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--precision", "f8"), "no such precision"),
        (("--tune", "slow"), "no such tune"),
        (("--target", "cpu", "--precision", "f16"), "an option of the gpu target"),
        (("--target", "cpu", "--tf32"), "an option of the gpu target"),
    ],
)
def test_options_that_do_not_fit(linear: Path, arguments: Any, message: str) -> None:
    result = call("run", linear, *INTERPRETED, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_steps_are_those_of_the_cpu(linear: Path) -> None:
    result = call("verify", linear, *INTERPRETED, "--per-step")
    assert result.exit_code == 2
    assert "--target cpu" in result.stderr


def test_tune(linear: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = FakeDevice()
    device.clock = lambda number: 4.0 if number == 1 else 8.0
    use(device, monkeypatch)
    cache = tmp_path / "kept.json"
    result = call("tune", linear, "--dim", "n=2", "--cache", cache)
    assert result.exit_code == 0, result.stderr
    assert "2.00x as fast" in result.stdout
    assert "1 problems measured" in result.stdout
    assert str(cache) in result.stdout.replace("\n", "")
    again = json.loads(call("tune", linear, "--dim", "n=2", "--cache", cache, "--json").stdout)
    assert again["ok"]
    assert again["measured"] == 0
    (problem,) = again["problems"]
    assert problem["us"] == 4.0
    assert problem["default_us"] == 8.0
    assert problem["saved_us"] == 4.0


def test_tune_needs_a_gpu(linear: Path) -> None:
    for target in ("cpu", "gpu:interpreter"):
        result = call("tune", linear, "--target", target)
        assert result.exit_code == 2
        assert "gpu | gpu:N" in result.stderr
    assert call("tune", linear, "--tune", "off").exit_code == 2


def test_compile_for_an_architecture(linear: Path, tmp_path: Path) -> None:
    package = tmp_path / "linear.mono"
    target = ("--target", "gpu:gfx942")
    result = call("compile", linear, "-o", package, *target, "--dim", "n=2", "--json")
    found = json.loads(result.stdout)
    assert found["ok"], found
    assert found["arch"] == "gfx942"
    assert found["kernels"] == 1
    assert package.stat().st_size == found["bytes"]
    text = call("compile", linear, "-o", package, *target, "--dim", "n=2").stdout
    assert "1 kernels for x [2, 33] on gfx942" in text


def test_the_bar_shows_stages_and_what_is_measured() -> None:
    out = io.StringIO()
    bar = ProgressBar(Console(file=out, force_terminal=True, width=120), delay=0)
    with until_ready(bar):
        bar("compile", 0, 8)
        assert bar._timer is not None
        bar._timer.join(30)
        bar("compile", 8, 8)
        bar("measure dot(f32[3, 33]) -> f32[3, 20]", 1, 2)
    assert "dot(f32" in out.getvalue()
    assert "1/2" in out.getvalue()
