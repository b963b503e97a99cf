"""Profiles: what is counted, named, added up and written. No time decides anything here."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from monograph.report.commands.execute import RunRequest
from monograph.report.commands.profile import (
    Profile,
    kinds_of,
    profile_json,
    profile_model,
    step_times,
)
from monograph.report.render.tables import nodes_text
from monograph.report.render.trace import trace_events
from monograph.runtime.cpu import executable as runtime
from tests.cli.calls import call
from tests.report import models


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return models.save_weighted(models.LAYERS, tmp_path)


@pytest.fixture
def found(layers: Path) -> Profile:
    # Such a small model would run on one thread.
    with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
        return profile_model(RunRequest(layers, "cpu"), lambda _: None, runs=4, threads=2)


def test_a_small_model_says_why_it_has_one_thread(layers: Path):
    with mock.patch.object(runtime, "ALONE_SECONDS", 1.0):
        shown = call("profile", layers, "--threads", "2", "--runs", "1")
    assert "on 1 thread (too little work for more)" in shown.output


def test_times_of_steps_add_up_to_the_run():
    """Two threads, three steps in one launch: a step lasts until the last thread is done."""
    begins = [[0, 12, 35], [1, 11, 35]]
    ends = [[10, 20, 40], [8, 30, 38]]
    stamps = np.stack([begins, ends], axis=-1)[None]
    assert stamps.shape == (1, 2, 3, 2)
    times = step_times(stamps, np.array([True, False, False]))
    assert times.tolist() == [[10, 20, 10]]


def test_time_between_launches_belongs_to_no_step():
    stamps = np.array([[[[0, 10], [50, 60]]]])
    assert step_times(stamps, np.array([True, True])).tolist() == [[10, 10]]
    assert step_times(stamps, np.array([True, False])).tolist() == [[10, 50]]


def test_steps_carry_nodes_work_and_threads(found: Profile):
    assert found.threads == 2
    kinds = [s.step.region.kind for s in found.steps]
    assert kinds == ["dot", "softmax", "dot"]
    assert [s.step.nodes for s in found.steps] == [["first"], ["between"], ["second", "last"]]
    assert found.steps[0].work.flops == 2 * 64 * 32 * 32
    assert all(len(s.busy) == 2 and s.seconds > 0 and 0 <= s.waiting <= 1 for s in found.steps)
    assert sum(found.share(s.seconds) for s in found.steps) == pytest.approx(1)
    by_kind = {k.kind: k for k in kinds_of(found)}
    assert by_kind["dot"].steps == 2
    assert by_kind["dot"].work.flops == 2 * 2 * 64 * 32 * 32 + 64 * 32
    assert sum(k.seconds for k in by_kind.values()) == pytest.approx(found.step_seconds)


def test_every_stamp_lies_within_its_run_and_behind_the_step_before(found: Profile):
    assert len(found.recordings) == 4
    for run in found.recordings:
        begins, ends = run.stamps[..., 0], run.stamps[..., 1]
        assert run.begin <= begins.min()
        assert ends.max() <= run.end
        assert (begins <= ends).all()
        # No thread goes on before all are done: that is what the barrier is for.
        assert (begins[:, 1:].min(axis=0) >= ends[:, :-1].max(axis=0)).all()


def test_the_trace_is_one_that_viewers_read(found: Profile):
    events = json.loads(json.dumps(trace_events("m.onnx", found)))
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == {0: "thread 0", 1: "thread 1"}
    blocks = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 1 for e in blocks)
    run = blocks[0]
    assert run["name"] == "run"
    for thread in (0, 1):
        row = [e for e in blocks[1:] if e["tid"] == thread]
        assert [e["args"]["step"] for e in row] == [0, 1, 2]
        assert row[2]["args"]["onnx_nodes"] == ["second", "last"]
        assert row[1]["name"] == "1 softmax: between"
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
        assert row[-1]["ts"] + row[-1]["dur"] <= run["dur"] + 1e-6


def test_json_holds_everything(found: Profile):
    content = json.loads(json.dumps(profile_json("m.onnx", found)))
    step = content["steps"][2]
    assert step["nodes"] == ["second", "last"]
    assert step["makes"] == ["f32[64, 32]"]
    assert step["native"] is True
    assert len(step["busy_seconds"]) == 2
    assert step["imbalance"] >= 1
    assert step["gflops_per_second"] == pytest.approx(step["flops"] / step["seconds"] / 1e9)
    assert {k["kind"] for k in content["kinds"]} == {"dot", "softmax"}


def test_a_step_on_the_host_is_timed_and_called_that(tmp_path: Path):
    path = models.save(models.WORDS, tmp_path)
    found = profile_model(RunRequest(path, "cpu"), lambda _: None, runs=2)
    by_node = {s.step.nodes[0]: s for s in found.steps}
    assert by_node["native"].native
    assert not by_node["written"].native
    assert by_node["written"].seconds > 0
    shown = call("profile", path, "--runs", 2)
    assert "(on the host)" in shown.stdout


def test_where_data_decide_shapes_every_program_is_timed(tmp_path: Path):
    path = models.save(models.CHOSEN, tmp_path)
    found = profile_model(RunRequest(path, "cpu"), lambda _: None, runs=2)
    assert len(found.typical.parts) == 2
    assert [s.number for s in found.steps] == [*range(len(found.steps))]
    assert {n for s in found.steps for n in s.step.nodes} >= {"early", "late"}
    assert found.typical.stamps.shape == (found.threads, len(found.steps), 2)


def test_the_command(layers: Path, tmp_path: Path):
    trace = tmp_path / "run.json"
    shown = call("profile", layers, "--top", 1, "--runs", 3, "--threads", 1, "--trace", trace)
    assert shown.exit_code == 0, shown.output
    assert "3 steps on 1 thread, the 1 slowest first" in shown.stdout
    assert "2 more" in shown.stdout
    assert "by kind" in shown.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(e["args"].get("onnx_nodes") == ["first"] for e in events)
    every = call("profile", layers, "--top", 0, "--runs", 3)
    for node in ("first", "between", "second, last"):
        assert node in every.stdout
    found = json.loads(call("profile", layers, "--runs", 3, "--json").stdout)
    assert found["ok"] is True
    assert found["runs"] == 3


def test_a_trace_that_cannot_be_written_is_an_error(layers: Path, tmp_path: Path):
    shown = call("profile", layers, "--runs", 1, "--trace", tmp_path / "no" / "run.json")
    assert shown.exit_code == 2
    assert "the directory of the output file does not exist" in shown.stderr
    shown = call("profile", layers, "--runs", 1, "--trace", tmp_path)
    assert shown.exit_code == 2
    assert "cannot be written" in shown.stderr


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([], "-"),
        (["a"], "a"),
        (["/m/conv/Conv", "/m/act/Mul"], "/m/conv/Conv, …/act/Mul"),
        (["/m/Conv", "/n/Mul"], "/m/Conv, /n/Mul"),
        (["Conv#1", "Mul#2", "x" * 20], "Conv#1, Mul#2 and 1 more"),
        (["/" + "x" * 30 + "/Conv"], "…" + "x" * 14 + "/Conv"),
    ],
)
def test_nodes_are_shortened(nodes: list[str], text: str):
    assert nodes_text(nodes, 20 if "more" in text or "xx" in text else 60) == text
