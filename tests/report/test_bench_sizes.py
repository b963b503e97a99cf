"""`monograph bench` at several sizes: what is counted and shown. No time decides anything here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from monograph.cli.main import app
from monograph.errors import ConfigError
from monograph.report.commands.bench import MONOGRAPH
from monograph.report.commands.bench_sizes import bench_sizes
from monograph.report.commands.execute import RunRequest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A pooling that needs a width of at least 4."""
    pool = helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[1, 4])
    graph = helper.make_graph(
        [pool, helper.make_node("Mul", ["p", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3, "H", "W_out"])],
        [onnx.numpy_helper.from_array(np.ones((3, 1, 1), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    return path


def test_one_session_serves_all_sizes(model: Path) -> None:
    notes: list[str] = []
    request = RunRequest(model, "cpu", dims={"H": 5}, options={"specialise": "off"})
    sets = [{"W": 8}, {"W": 33}, {"W": 64}]
    found = bench_sizes(
        request, sets, notes.append, against=["onnxruntime"], seconds=0.1, threads=1
    )
    assert [row.sizes for row in found.rows] == [{"N": 1, "H": 5, **s} for s in sets]
    assert found.stats["variants"] == 1
    assert found.stats["shapes_seen"] == 3
    assert [n for n in notes if "open dimensions" in n] == [
        "open dimensions were set: N=1; change them with --dim NAME=SIZE"
    ]
    content = json.loads(json.dumps(found.as_json()))
    for row in content["sizes"]:
        assert set(row["times"]) == set(row["first_run"]) == {MONOGRAPH, "onnxruntime"}
        assert row["ratios"]["onnxruntime"] > 0
    logs = [np.log(row.ratio("onnxruntime")) for row in found.rows]
    assert found.mean_ratio("onnxruntime") == pytest.approx(np.exp(np.mean(logs)))


def test_exact_code_on_request(model: Path) -> None:
    request = RunRequest(model, "cpu", options={"specialise": "now"})
    found = bench_sizes(request, [{"W": 8}, {"W": 9}], print, seconds=0.1)
    assert found.stats.get("variants", 0) == 0
    assert found.stats["compiled"] == 2


@pytest.mark.parametrize("specialise", ["off", "now"])
def test_unknown_dimensions_are_refused(model: Path, specialise: str) -> None:
    request = RunRequest(model, "cpu", options={"specialise": specialise})
    with pytest.raises(ConfigError, match="no such dimension") as e:
        bench_sizes(request, [{"Wide": 8}], print)
    assert "W" in str(e.value)
    with pytest.raises(ConfigError, match="no such dimension") as e:
        _ = replace(request, dims={"High": 8}).load().inputs
    assert "H" in str(e.value)


def test_the_command_shows_sizes_and_code(model: Path) -> None:
    command = ["bench", str(model), "--seconds", "0.1", "--dim", "W=8..64"]
    shown = CliRunner().invoke(app, [*command, "--sizes", "2", "--dim", "N=1,2"])
    assert shown.exit_code == 0
    listed = [line for line in shown.stdout.splitlines() if "H=1" in line]
    assert ["N=1" in line for line in listed] == [True, True, False, False]
    assert ["W=8 " in line for line in listed] == [True, False, True, False]
    assert "specialise=off" in shown.stdout
    assert "code for any shape: " in shown.stdout
    plain = json.loads(CliRunner().invoke(app, [*command, "--json", "--sizes", "1"]).stdout)
    assert [row["sizes"]["W"] for row in plain["sizes"]] == [64]
    assert plain["specialise"] == "off"


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (["--dim", "W=8..64", "--inputs", "x.npz"], "several sizes does not take --inputs"),
        (["--dim", "W=8", "--sizes", "3"], "one size does not take --sizes"),
        (["--dim", "W=64..8"], "must be LOW..HIGH"),
    ],
)
def test_options_that_do_not_fit_are_refused(model: Path, extra: list[str], problem: str) -> None:
    shown = CliRunner().invoke(app, ["bench", str(model), *extra])
    assert shown.exit_code == 2
    assert problem in " ".join(shown.output.split())


@pytest.mark.parametrize(
    "command", ["run", "verify", "bench --seconds 0.1", "inspect --target cpu"]
)
def test_commands_choose_sizes_that_the_model_takes(model: Path, command: str) -> None:
    name, *options = command.split()
    shown = CliRunner().invoke(app, [name, str(model), *options])
    assert shown.exit_code == 0, shown.output
    assert "N=1, H=1, W=64" in shown.output
