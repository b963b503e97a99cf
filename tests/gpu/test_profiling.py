"""Profiles of the GPU target, by the interpreter or on a device. No time decides anything here."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from monograph.report.commands.execute import RunRequest
from monograph.report.commands.gpu_profile import (
    GpuProfile,
    profile_json,
    profile_on_gpu,
    trace_events,
)
from monograph.report.commands.profile import kinds_of
from monograph.report.view.charts import roofline, timeline
from monograph.report.view.collect import Wanted, collect
from monograph.report.view.data import view_json
from monograph.runtime.gpu.profiling import median_gaps
from tests.cli.calls import call
from tests.gpu.sweep_worker import target
from tests.report import models


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return models.save_weighted(models.LAYERS.replace("64", "4"), tmp_path)


@pytest.fixture
def found(layers: Path) -> GpuProfile:
    request = RunRequest(layers, target(), options={"tune": "off"})
    return profile_on_gpu(request, lambda _: None, runs=3, warm_ups=1)


def test_gaps_are_what_lies_between_launches():
    stamps = np.array([[[5, 10], [12, 20]], [[5, 10], [14, 20]], [[7, 10], [16, 20]]])
    assert median_gaps(stamps) == pytest.approx([5e-9, 4e-9])


def test_steps_carry_nodes_work_and_kernels(found: GpuProfile):
    assert [s.step.nodes for s in found.steps] == [["first"], ["between"], ["second", "last"]]
    assert found.steps[0].work.flops == 2 * 4 * 32 * 32
    assert all(found.kernels(s.number) for s in found.steps)
    assert found.kernels(1)[0].startswith("softmax_")
    assert all(s.seconds > 0 for s in found.steps)
    assert sum(found.share(s.seconds) for s in found.steps) == pytest.approx(1)
    assert len(found.gaps) == 3
    assert sum(k.seconds for k in kinds_of(found)) == pytest.approx(found.step_seconds)
    assert found.peaks.flops_per_second > 0
    assert found.peaks.bytes_per_second > 0


def test_launches_follow_each_other(found: GpuProfile):
    assert found.stamps.shape == (3, len(found.launches), 2)
    for run in found.stamps:
        for (begin, end), (following, _) in pairwise(run):
            assert begin <= end <= following


def test_the_trace_and_json_name_kernels_and_nodes(found: GpuProfile):
    blocks = [e for e in trace_events("m.onnx", found) if e["ph"] == "X"]
    assert len(blocks) == len(found.launches)
    assert blocks[-1]["args"]["onnx_nodes"] == ["second", "last"]
    assert blocks[-1]["args"]["kernel"] == found.launches[-1][1]
    content = json.loads(json.dumps(profile_json("m.onnx", "gpu", found)))
    assert content["steps"][2]["nodes"] == ["second", "last"]
    assert content["launches"] == len(found.launches)
    assert (content["graph_seconds"] is None) == (target() != "gpu")


def test_the_command(layers: Path, tmp_path: Path):
    trace = tmp_path / "run.json"
    options = ("--target", target(), "--tune", "off", "--runs", 1, "--warm-ups", 0)
    shown = call("profile", layers, *options, "--top", 1, "--trace", trace)
    assert shown.exit_code == 0, shown.output
    assert "the 1 slowest first" in shown.stdout
    assert "between events" in shown.stdout
    assert json.loads(trace.read_text())["otherData"]["target"] == target()


def test_a_report_shows_steps_their_code_and_streams(layers: Path):
    request = RunRequest(layers, target(), options={"tune": "off"})
    view = collect(request, Wanted(), lambda _: None)
    assert view.notes == ()
    told = view_json(view)
    assert [s["origin"] for s in told["steps"]] == [["first"], ["between"], ["second", "last"]]
    assert all(s["seconds"] > 0 for s in told["steps"])
    assert told["facts"]["run_seconds"] > 0
    assert told["facts"]["streams"] >= 1
    assert "@triton.jit" in (view.code or {})[1]
    assert isinstance(view.profile, GpuProfile)
    two = tuple(i % 2 for i in range(len(view.profile.streams)))
    picture = timeline(replace(view, profile=replace(view.profile, streams=two)))
    bars = [x for x in ElementTree.fromstring(picture).iter() if x.get("data-step")]
    assert "stream 1" in picture
    assert len({x.get("y") for x in bars}) == 2
    assert roofline(view)


def test_what_cannot_be_profiled_is_refused(layers: Path):
    shown = call("profile", layers, "--target", "reference")
    assert shown.exit_code == 2
    assert "`profile` needs a target that compiles" in shown.stderr
    compiled = call("profile", layers, "--target", "gpu:sm_90")
    assert compiled.exit_code == 2
    assert "needs a device" in compiled.stderr
