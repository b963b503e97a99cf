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
    assert "both are 'reference'" in result.stderr
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
    x = np.array([1, 2], np.float32)
    np.savez(recorded, **{"in:x": x, "out:y": np.log(x)})
    assert call_json("verify", path, "--against", recorded)["outputs"][0]["warning"] is None


LENGTHS = """
<ir_version: 9, opset_import: ["" : 18]>
masked (float[B, T] x, int64[B] lens, int64[B] ids) => (float[B, T] y, float[B, 2] z)
<float[5, 2] table = {0,1,2,3,4,5,6,7,8,9}, int64 zero = {0}, int64 one = {1}, float no = {0}>
{
    shape = Shape(x)
    size = Gather(shape, one)
    places = Range(zero, size, one)
    more = Constant <value_ints = [1]> ()
    column = Unsqueeze(lens, more)
    seen = Less(places, column)
    y = Where(seen, x, no)
    z = Gather(table, ids)
}
"""
SIZES = ("--dim", "B=3", "--dim", "T=9")


def test_verify_draws_integers_that_mean_something_and_says_which(tmp_path: Path):
    path = models.save(LENGTHS, tmp_path)
    result = call("verify", path, *SIZES)
    assert result.exit_code == 0
    assert "lens 1..9, compared with 0..8; ids 0..4, an index of 5 rows" in result.stdout
    assert "x, lens (1..9, compared with 0..8), ids (0..4, an index of 5 rows)" in result.stderr
    found = call_json("verify", path, *SIZES)
    assert found["drawn_inputs"]["lens"] == "1..9, compared with 0..8"
    assert found["drawn_inputs"]["x"] == "normal"
    assert [d["warning"] for d in found["outputs"]] == [None, None]


def test_verify_warns_of_outputs_that_show_nothing(tmp_path: Path):
    path = models.save(LENGTHS, tmp_path)
    result = call("verify", path, *SIZES, "--value", "lens=0")
    assert result.exit_code == 0
    assert "every element is 0 on both sides: that shows nothing" in result.stdout
    assert "1 of 2 outputs show nothing: y" in result.stdout
    empty = call_json("verify", path, "--dim", "B=0", "--dim", "T=9")
    assert {d["warning"] for d in empty["outputs"]} == {"empty on both sides: nothing was compared"}
    assert empty["ok"] is True


def test_ranges_and_values_are_chosen_on_the_command_line(tmp_path: Path):
    path = models.save(LENGTHS, tmp_path)
    output = tmp_path / "out.npz"
    options = (*SIZES, "--input-range", "lens=2:3", "--value", "ids=4", "--value", "x=0.5")
    assert call("run", path, *options, "--output", output).exit_code == 0
    with np.load(output) as arrays:
        assert set(arrays["in:lens"].tolist()) <= {2, 3}
        assert set(arrays["in:ids"].tolist()) == {4}
        assert set(arrays["in:x"].ravel().tolist()) == {0.5}
    for mode in ((), ("--per-step",), ("--bisect",), ("--replay",)):
        assert call("verify", path, *options, *mode).exit_code == 0, mode


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--input-range", "lens=3"), "must be LOW:HIGH"),
        (("--input-range", "lens=a:3"), "must be a number"),
        (("--input-range", "lens=0.5:3"), "holds whole numbers (i64)"),
        (("--input-range", "lens=5:3"), "is empty"),
        (("--input-range", "lenz=0:3"), "did you mean lens"),
        (("--value", "lens"), "must be NAME=NUMBER"),
        (("--value", "lens=nan"), "must be a number"),
        (("--value", "ids=1", "--value", "ids=2"), "given twice"),
        (("--value", "ids=1", "--input-range", "ids=1:2"), "more than one way"),
    ],
)
def test_ranges_and_values_that_are_refused(tmp_path: Path, options: tuple[str, ...], words: str):
    path = models.save(LENGTHS, tmp_path)
    for command in ("verify", "run", "bench", "profile", "explain"):
        result = call(command, path, *options)
        assert result.exit_code == 2
        assert words in result.stderr


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
    assert "must hold their inputs too" in result.stderr
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
