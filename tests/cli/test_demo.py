"""The commands `demo` and `doctor`, and the completion of shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monograph.config import make_config
from monograph.errors import ConfigError
from monograph.report.commands import doctor
from tests.cli.calls import call, call_json
from tests.report.view.pages import content_of


def test_demo_checks_times_and_writes_a_report(tmp_path: Path):
    folder = tmp_path / "new" / "demo"
    result = call("demo", "--folder", folder, "--seconds", "0.1")
    assert result.exit_code == 0, result.output
    assert "1 of 1 outputs agree" in result.stdout
    report = folder / "report.html"
    assert f"report: {report}" in result.stdout
    page = report.read_text()
    assert "http://" not in page, "the page needs no other files"
    content = json.dumps(content_of(page))
    for part in ("cpu against reference", "median (p50)", "This machine"):
        assert part in content
    assert call("inspect", folder / "detector.onnx").exit_code == 0
    found = call_json("demo", "--folder", folder, "--seconds", "0.1", "--threads", "1")
    assert (found["ok"], found["report"]) == (True, str(report))
    assert found["verification"]["ok"]
    assert found["bench"]["own_threads"] == 1


def test_demo_names_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    found = call_json("demo", "--folder", tmp_path / "file")
    assert found["ok"] is False
    assert str(tmp_path / "file") in found["error"]


def test_doctor_tells_as_json():
    found = call_json("doctor")
    assert found["ok"] is True
    assert found["cpu"]["instruction_set"] in found["cpu"]["usable"]
    assert 1 <= found["cpu"]["threads"] <= found["cpu"]["cores"]
    assert found["versions"]["monograph"]
    assert found["gpu"]["usable"] or any("No GPU is used" in a for a in found["advice"])


def test_doctor_prints_brackets_of_extras(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(doctor.OPTIONAL, "no-such-package", "tests: pip install 'monograph[x]'")
    assert "for tests: pip install 'monograph[x]'" in call("doctor").stdout


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        (ConfigError("there is no GPU", hint="look"), "there is no GPU", "look"),
        (ConfigError("old", given="sm_70"), "old (sm_70)", ""),
        (OSError("broken"), "OSError: broken", "reinstall torch"),
    ],
)
def test_doctor_says_why_a_gpu_is_not_used(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str, remedy: str
):
    def fail(_: str) -> Any:
        raise error

    monkeypatch.setattr(doctor, "open_device", fail)
    found = doctor.find_gpu()
    assert (found.usable, found.problem, found.remedy) == (False, problem, remedy)


def test_doctor_names_the_gpu(monkeypatch: pytest.MonkeyPatch):
    device = SimpleNamespace(name="NVIDIA H200", arch=SimpleNamespace(name="sm_90"))
    monkeypatch.setattr(doctor, "open_device", lambda _: device)
    monkeypatch.setattr(doctor, "_torch_platform", lambda: "CUDA 12.8")
    result = call("doctor")
    assert "NVIDIA H200 (sm_90, CUDA 12.8)" in result.stdout
    assert "No GPU is used" not in result.stdout


def test_doctor_explains_a_quota(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "cgroup_quota", lambda: 0.5)
    found = doctor.diagnose()
    assert found.cpu.quota == 0.5
    assert any("limits this process to 0.5 of" in line for line in found.advice)


def test_doctor_fails_where_the_compiler_fails(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> Any:
        raise RuntimeError("no LLVM")

    monkeypatch.setattr(doctor, "compile_graph", fail)
    result = call("doctor")
    assert result.exit_code == 1
    assert "The CPU target does not work: the compiler failed: RuntimeError: no LLVM" in (
        result.stdout
    )
    assert json.loads(call("doctor", "--json").stdout)["ok"] is False


def test_doctor_finds_problems_of_the_cache(tmp_path: Path):
    off = doctor.find_cache(make_config(cache_dir=""))
    assert not off.usable
    assert "the cache is off" in off.problem
    (tmp_path / "file").write_text("")
    inside = doctor.find_cache(make_config(cache_dir=str(tmp_path / "file" / "inside")))
    assert "cannot be created" in inside.problem
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "other users may write" in doctor.find_cache(make_config(cache_dir=str(shared))).problem


def test_doctor_counts_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entries = tmp_path / "entries" / "ab"
    entries.mkdir(parents=True)
    (entries / "abc").write_bytes(b"12345")
    config = make_config(cache_dir=str(tmp_path))
    found = doctor.find_cache(config)
    assert (found.usable, found.entries, found.bytes) == (True, 1, 5)
    monkeypatch.setattr(doctor, "LOW_DISK", 1 << 62)
    assert "free space on its disk" in doctor.find_cache(config).remedy


def _complete(line: str) -> list[str]:
    """Return what bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "from monograph.cli.main import app; app(prog_name='monograph')"],
        env=os.environ | asked | {"_MONOGRAPH_COMPLETE": "complete_bash"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("monograph in", ["inspect"]),
        ("monograph run model.onnx --target r", ["reference"]),
        ("monograph bench m.onnx --precision b", ["bf16"]),
        ("monograph doctor --j", ["--json"]),
    ],
)
def test_shells_complete_commands_options_and_values(line: str, offered: list[str]):
    assert _complete(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = call("--show-completion", shell)
    assert result.exit_code == 0, result.output
    assert "_MONOGRAPH_COMPLETE" in result.stdout
