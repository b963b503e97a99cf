"""verify --replay, bench, profile and the benchmark of capture, with graphs of a fake driver."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import capture_measure, capture_models

from monograph.report.commands import bench
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.launch_regions import launching_of_model
from monograph.report.commands.replay import ReplayResult, verify_replay
from monograph.runtime.gpu import target
from monograph.runtime.gpu.capture.captured_graph import CapturedGraph
from monograph.session import load
from tests.cli.calls import call, call_json
from tests.gpu import gpu_models
from tests.gpu.capture.test_session_capture import Recording
from tests.gpu.fake_driver import FakeDriver
from tests.report import models

pytestmark = gpu_models.INTERPRETED
TWO = """
<ir_version: 9, opset_import: ["" : 18]>
two (float[N, 3] a, float[N, 3] b) => (float[N, 3] y)
{
    d = Sub(a, b)
    y = Exp(d)
}
"""
ON = ("--target", "gpu:interpreter", "--tune", "off")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    return models.save(TWO, tmp_path)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "open_device", lambda _: Recording(FakeDriver()))


def check(path: Path) -> ReplayResult:
    request = RunRequest(path, "gpu:interpreter", options={"tune": "off"})
    return verify_replay(request, lambda _: None, inputs=3)


@pytest.mark.usefixtures("graphs")
def test_replays_give_the_bits_of_eager_runs(model: Path) -> None:
    found = check(model)
    assert found.ok, found
    assert {c.name: c.runs for c in found.cases} == {
        "arrays of the host": 3,
        "the same arrays again": 2,
        "device tensors, each elsewhere": 3,
        "the same device tensors again": 2,
        "inputs in another order": 2,
        "two shapes in turns": 4,
    }
    assert found.stats["replays"] == found.runs
    assert found.stats["rebinds"] > 0


@pytest.mark.usefixtures("graphs")
def test_a_graph_that_keeps_old_addresses_is_found(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(self: CapturedGraph, addresses: list[int]) -> int:
        self.addresses = list(addresses)
        return 0

    monkeypatch.setattr(CapturedGraph, "rebind", forgets)
    found = check(model)
    assert not found.ok
    assert any("have other bits" in p for c in found.cases for p in c.problems)


def test_without_graphs_nothing_is_verified(model: Path) -> None:
    result = call("verify", model, "--replay", *ON)
    assert result.exit_code == 1
    assert "no run was one launch" in result.stdout
    assert "has no graphs" in result.stdout
    result = call("verify", model, "--replay", *ON, "--capture", "off")
    assert result.exit_code == 1
    assert "nothing is replayed with --capture off" in result.stdout


@pytest.mark.usefixtures("graphs")
def test_every_region_of_the_program_is_one_graph(model: Path) -> None:
    path = models.save(models.SPLIT, model.parent, "split.onnx")
    session = load(path, "gpu:interpreter", tune="off")
    x = np.arange(1, 5, dtype=np.float32)
    expected = load(path, "reference").run({"x": x})
    for _ in range(2):
        np.testing.assert_allclose(session.run({"x": x}), expected, rtol=1e-5)
    found = launching_of_model(RunRequest(path, "gpu"), lambda _: None)
    assert len(found.regions) == 2
    assert session.stats["captures"] == session.stats["launches_per_run"] == 2
    assert session.stats["kernels_per_run"] == sum(map(found.count, found.regions))
    assert session.stats["host_steps"] == sorted(h.name for h in found.host)


@pytest.mark.usefixtures("graphs")
def test_bench_tells_captures_and_launches(model: Path) -> None:
    shown = call("bench", model, *ON, "--seconds", "0.1").stdout
    assert "1 launch, " in shown
    assert "capture auto: 1 capture, " in shown
    found = call_json("bench", model, *ON, "--seconds", "0.1")
    assert found["capture"] == "auto"
    assert found["stats"]["captures"] == 1
    eager = call("bench", model, *ON, "--seconds", "0.1", "--capture", "off").stdout
    assert "capture off: 0 captures, 0 replays" in eager


def test_bench_tells_why_runs_were_not_captured(model: Path) -> None:
    shown = call("bench", model, *ON, "--seconds", "0.1").stdout
    assert "times: Triton's interpreter has no graphs" in shown
    stats = {"captures": 1, "replays": 2, "rebinds": 3, "staged_copies": {"x: strided": 4}}
    lines = bench.launch_lines({**stats, "fallbacks": {"no memory": 5}}, "auto", on_gpu=True)
    assert lines == [
        "capture auto: 1 capture, 2 replays, 3 rebinds",
        "  copied 4 times, x: strided",
        "  not captured 5 times: no memory",
    ]


def test_a_profile_runs_eagerly_and_says_so(model: Path) -> None:
    options = (*ON, "--runs", 1, "--warm-ups", 0)
    assert "runs eagerly, nothing of it is captured" in call("profile", model, *options).stdout
    found = call_json("profile", model, *options)
    assert not found["captured"]
    refused = call("profile", model, *options, "--capture", "require")
    assert refused.exit_code == 2


@pytest.mark.usefixtures("graphs")
def test_the_benchmark_measures_replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    monkeypatch.setattr(capture_models, "BUILT", tmp_path)
    subject = capture_models.Subject(capture_models.FP4, small=True)
    options = argparse.Namespace(
        target="gpu:interpreter", tune="off", tuning=None, tiny=True, inputs=2
    )
    figures: dict[str, Any] = {}
    for part in capture_measure.Measured(subject, options).parts():
        figures |= part
    assert figures["equal_bits"]
    assert figures["copies_when_moved"] == figures["captures_when_moved"] == 0
    assert figures["rebinds_when_moved"] > 0
    assert figures["stats"]["launches_per_run"] == 1
    assert figures["stats"]["fallbacks"] == {}
    assert figures["kernels"] == 2
