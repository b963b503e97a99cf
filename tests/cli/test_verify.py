"""`monograph verify`: what it compares, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monograph
from tests.cli.calls import call, call_json, change
from tests.report import models


def test_verify_needs_another_side(linear: Path):
    result = call("verify", linear, "--target", "reference")
    assert result.exit_code == 2
    assert "target and other side are both 'reference'" in result.stderr
    assert "--against onnxruntime" in result.stderr


def test_verify_against_a_recording(linear: Path, recording: Path):
    result = call("verify", linear, "--against", recording)
    assert result.exit_code == 0
    assert "2 of 2 outputs agree" in result.stdout
    found = call_json("verify", linear, "--against", recording)
    assert found["ok"] is True
    assert [o["name"] for o in found["outputs"]] == ["y", "best"]


def test_verify_finds_a_wrong_element(linear: Path, recording: Path):
    change(recording, out_y=np.array([[1.5, 1.5], [8.5, 9.75]], np.float32))
    assert call("verify", linear, "--against", recording).exit_code == 1
    found = call_json("verify", linear, "--against", recording)
    assert found["ok"] is False
    y, best = found["outputs"]
    assert best["ok"] is True
    assert (y["worst"], y["given"], y["expected"]) == ([1, 1], 9.5, 9.75)
    assert y["max_abs"] == 0.25
    assert call("verify", linear, "--against", recording, "--atol", "0.3").exit_code == 0
    assert call("verify", linear, "--against", recording, "--rtol", "0.03").exit_code == 0
    assert call("verify", linear, "--against", recording, "--rtol", "0.02").exit_code == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"out_y": np.zeros((2, 3), np.float32)},
        {"out_y": np.array([[1.5, 1.5], [8.5, 9.5]], np.float64)},
        {"out_y": np.array([[1.5, np.nan], [8.5, 9.5]], np.float32)},
        {"out_best": np.array([0])},
    ],
    ids=["shape", "dtype", "nan", "integer"],
)
def test_verify_finds_every_kind_of_mismatch(linear: Path, recording: Path, wrong: Any):
    change(recording, **wrong)
    assert call("verify", linear, "--against", recording).exit_code == 1


def test_verify_says_when_there_was_nothing_but_nan(tmp_path: Path):
    path = models.save(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Log(x) }',
        tmp_path,
    )
    nan = np.full(2, np.nan, np.float32)
    recorded = tmp_path / "nan.npz"
    np.savez(recorded, **{"in:x": np.full(2, -1, np.float32), "out:y": nan})
    result = call("verify", path, "--against", recorded)
    assert result.exit_code == 0
    assert "every element is NaN" in " ".join(result.stdout.split())
    found = call_json("verify", path, "--against", recorded)
    assert found["outputs"][0]["ok"] is True
    assert "every element is NaN" in found["outputs"][0]["warning"]
    np.savez(recorded, **{"in:x": np.ones(2, np.float32), "out:y": np.zeros(2, np.float32)})
    assert call_json("verify", path, "--against", recorded)["outputs"][0]["warning"] is None


def test_verify_against_a_file_without_outputs(linear: Path, tmp_path: Path):
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.zeros((2, 3), np.float32))
    result = call("verify", linear, "--against", path)
    assert result.exit_code == 2
    assert "the file holds no output of the model" in result.stderr


def test_verify_says_which_outputs_are_not_compared(linear: Path, tmp_path: Path):
    path = tmp_path / "some.npz"
    y = np.array([[1.5, 1.5]], np.float32)
    np.savez(path, x=np.array([[1, 0, 0]], np.float32), y=y)
    result = call("verify", linear, "--against", path)
    assert result.exit_code == 1, "an output that is not compared is not verified"
    assert "some.npz lacks them: best" in result.stdout
    found = call_json("verify", linear, "--against", path)
    assert (found["ok"], found["not_compared"]) == (False, ["best"])


def test_verify_compares_only_what_is_asked_for(linear: Path, recording: Path):
    change(recording, out_best=np.array([0]))
    assert call("verify", linear, "--against", recording).exit_code == 1
    result = call("verify", linear, "--against", recording, "--only", "y")
    assert result.exit_code == 0
    assert "not compared, as asked: best" in result.stdout
    found = call_json("verify", linear, "--against", recording, "--only", "y")
    assert (found["ok"], found["not_compared"]) == (True, ["best"])
    result = call("verify", linear, "--against", recording, "--only", "bets")
    assert result.exit_code == 2
    assert "did you mean best?" in result.stderr


def test_recorded_outputs_need_their_inputs(linear: Path, recording: Path, tmp_path: Path):
    with np.load(recording) as archive:
        arrays = dict(archive)
    x = tmp_path / "x.npy"
    np.save(x, arrays.pop("in:x"))
    np.savez(recording, **arrays)
    result = call("verify", linear, "--against", recording)
    assert result.exit_code == 2
    assert "not the inputs they belong to" in result.stderr
    assert "nothing for x" in result.stderr
    assert call("verify", linear, "--against", recording, "--input", f"x={x}").exit_code == 0


def test_verify_names_the_sides_there_are(linear: Path):
    result = call("verify", linear, "--against", "onxruntime")
    assert result.exit_code == 2
    assert "reference | onnxruntime | FILE.npz" in result.stderr
    assert "did you mean onnxruntime?" in result.stderr
    assert "cannot be read" in call("verify", linear, "--against", "absent.npz").stderr


def test_verify_hints_at_what_to_do(linear: Path, recording: Path):
    change(recording, out_y=np.array([[8.5, 9.5], [1.5, 1.5]], np.float32))
    result = call("verify", linear, "--against", recording)
    assert "the rows of y agree in another order: --any-order y" in result.stdout
    change(recording, out_y=np.array([[1.5, 1.5], [8.5, 9.75]], np.float32))
    (hint,) = call_json("verify", linear, "--against", recording)["hints"]
    assert "--rtol" in hint
    assert "--any-order" not in hint


def test_verify_against_onnxruntime(linear: Path):
    assert call("verify", linear, "--against", "onnxruntime", "--dim", "N=3").exit_code == 0


def test_verify_without_onnxruntime(linear: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = call("verify", linear, "--against", "onnxruntime")
    assert result.exit_code == 2
    assert "onnxruntime is not installed" in result.stderr


def test_verify_says_that_a_model_is_random(tmp_path: Path):
    path = models.save(models.RANDOM, tmp_path)
    result = call("verify", path, "--against", "onnxruntime")
    assert "draws random numbers" in result.stderr
    assert result.exit_code == 1


def test_any_order_names_an_output(linear: Path, recording: Path):
    change(recording, out_y=np.array([[8.5, 9.5], [1.5, 1.5]], np.float32))
    assert call("verify", linear, "--against", recording, "--any-order", "y").exit_code == 0
    result = call("verify", linear, "--against", recording, "--any-order", "z")
    assert result.exit_code == 2
    assert "the model has no such output" in result.stderr


def test_the_model_runs_once_per_side(
    linear: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = []
    run = monograph.Session.run

    def counted(self: monograph.Session, *args: Any, **kwargs: Any) -> list[Any]:
        runs.append(self)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(monograph.Session, "run", counted)
    assert call("verify", linear, "--against", recording).exit_code == 0
    assert len(runs) == 1
