"""Benchmarks: what is counted and shown. No time decides anything here."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console
from typer.testing import CliRunner

from monograph.cli.main import app
from monograph.errors import ConfigError
from monograph.report.commands import bench
from monograph.report.commands.bench import MONOGRAPH, Peaks, bench_model, interleave, summarise
from monograph.report.commands.execute import RunRequest
from tests.report import models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    return path


def test_a_bench_counts_work_and_names_its_peers(model: Path) -> None:
    notes: list[str] = []
    request = RunRequest(model, "cpu", dims={"N": 3})
    found = bench_model(request, notes.append, against=["onnxruntime"], seconds=0.1, threads=1)
    assert set(found.times) == {MONOGRAPH, "onnxruntime"}
    assert found.ratio("onnxruntime") > 0
    assert found.flops == 2 * 3 * 8 * 4 + 3 * 4
    assert found.stats["kernels_per_run"] == 1
    assert found.stats["host_steps"] == []
    assert found.peaks is not None
    content = json.loads(json.dumps(found.as_json()))
    times = content["times"][MONOGRAPH]
    assert {"median", "p50", "p90", "p99", "min", "per_second", "runs"} <= set(times)
    assert times["min"] <= times["p50"] <= times["p90"] <= times["p99"]
    assert content["gflops_per_second"] == pytest.approx(found.flops / times["median"] / 1e9)
    assert content["gbytes_per_second"] == pytest.approx(found.bytes / times["median"] / 1e9)
    assert 0 < content["of_peak_flops"] < content["gflops_per_second"] + 1
    assert (content["kernels_per_run"], content["launches_per_run"]) == (1, 1)
    assert content["capture"] == "auto"
    memory = content["peak_memory"]
    assert memory["process"] > memory["temporaries"] > 0


def test_a_bench_tells_why_runs_are_not_one_launch(tmp_path: Path) -> None:
    path = models.save(models.WORDS, tmp_path)
    shown = CliRunner().invoke(app, ["bench", str(path), "--seconds", "0.1"]).stdout
    assert "not one launch" in shown
    assert "the host takes part in a run: string_concat" in shown


def test_both_latencies_are_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = bench.time.sleep
    monkeypatch.setattr(bench.time, "sleep", lambda s: (pauses.append(s), sleep(s)))
    request = RunRequest(model, "cpu")
    found = bench_model(request, print, against=["onnxruntime"], seconds=0.1, threads=1)
    content = json.loads(json.dumps(found.as_json()))["after_pause"]
    assert content["pause"] == bench.PAUSE_SECONDS
    assert set(content["times"]) == {MONOGRAPH, "onnxruntime"}
    assert content["ratios"]["onnxruntime"] > 0
    counted = sum(t["runs"] for t in content["times"].values())
    assert pauses.count(bench.PAUSE_SECONDS) == counted, "a pause before each run that counts"
    out = Console(width=160, record=True, file=io.StringIO())
    bench.show_bench(out, "m", found)
    text = out.export_text()
    assert "back to back" in text
    assert "after 10 ms" in text
    assert text.count("x as fast") == 2


def test_a_turn_back_to_back_has_several_runs() -> None:
    assert len(bench._turn(lambda: bench.time.sleep(bench.TURN_SECONDS))) == bench.TURN_RUNS


def test_every_contender_takes_its_turns() -> None:
    calls = {"a": 0, "b": 0}

    def run(name: str) -> None:
        calls[name] += 1

    times = interleave({n: lambda n=n: run(n) for n in calls}, 0.01)
    assert set(times) == {"a", "b"}
    assert all(calls[n] > times[n].runs for n in calls)


def test_a_summary() -> None:
    times = summarise([3.0, 1.0, 2.0])
    assert (times.runs, times.median, times.least) == (3, 2.0, 1.0)
    assert times.per_second == 0.5


def test_unknown_peers_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="no such peer"):
        bench_model(RunRequest(model, "cpu"), print, against=["nothing"])


def test_threads_come_from_the_environment_too(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_THREADS", "3")
    shown = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--json"])
    found = json.loads(shown.stdout[shown.stdout.index("{") :])
    assert (found["threads"], found["own_threads"]) == (3, 1), "one small kernel is worth one"
    monkeypatch.setenv("MONOGRAPH_TARGET", "reference")
    shown = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--json"])
    assert json.loads(shown.stdout[shown.stdout.index("{") :])["target"] == "reference"


def test_why_fewer_threads_are_used(model: Path) -> None:
    shown = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--threads", "2"])
    assert "on 1 thread (too little work for more)" in shown.output


def test_work_that_only_data_tell_is_not_shown_as_none(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (int64 n, bool c, float[2] x) => (float[2] y)
    { y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] s) => (bool go2, float[2] t)
      { go2 = Identity(go)  t = Add(s, s) }> }"""
    path = models.save(text, tmp_path)
    command = ["bench", str(path), "--seconds", "0.1"]
    assert "- GFLOP/s of" in CliRunner().invoke(app, command).output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["flops"] is found["gflops_per_second"] is None
    assert found["bytes"] > 0
    shown = CliRunner().invoke(app, ["profile", str(path), "--runs", "1", "--json"])
    assert json.loads(shown.stdout)["kinds"][0]["of_peak"] is None


@pytest.mark.parametrize(("peak", "explained"), [(1e-3, True), (1e30, False)])
def test_more_than_the_peak_is_explained(
    peak: float, explained: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure_peaks", lambda _: Peaks(peak, peak))
    shown = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert ("GFLOP/s over 100%: operations are those of the model" in shown.output) == explained
    assert ("GB/s over 100%: it was read from caches" in shown.output) == explained


def test_the_command(model: Path) -> None:
    shown = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert "1 launch, 1 kernel a run" in shown.output
    assert "GFLOP/s" in shown.output
    assert "peak memory:" in shown.output
    found = CliRunner().invoke(app, ["bench", str(model), "--seconds", "0.1", "--json"])
    start = found.stdout.index("{")
    assert json.loads(found.stdout[start:])["ok"] is True
    wrong = CliRunner().invoke(app, ["bench", str(model), "--against", "nothing"])
    assert wrong.exit_code == 2
