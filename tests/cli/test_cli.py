"""The command line as a user meets it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

import monograph
from monograph.cli import app
from monograph.report.execute import Request
from tests.report import models


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def call_json(*arguments: object) -> dict[str, Any]:
    """The one JSON object on stdout."""
    result = call(*arguments, "--json")
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return models.save(models.LINEAR, tmp_path, "linear.onnx")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Inputs and right outputs of the linear model, worked out by hand."""
    x = np.array([[1, 0, 0], [0, 1, 1]], np.float32)
    y = np.array([[1.5, 1.5], [8.5, 9.5]], np.float32)
    path = tmp_path / "io.npz"
    np.savez(path, **{"in:x": x, "out:y": y, "out:best": np.array([1])})
    return path


def change(recording: Path, **replaced: Any) -> Path:
    with np.load(recording) as archive:
        arrays = dict(archive)
    arrays.update({k.replace("_", ":"): v for k, v in replaced.items()})
    np.savez(recording, **arrays)
    return recording


def test_version_and_help():
    assert call("--version").stdout == f"monograph {monograph.__version__}\n"
    for command in ("inspect", "run", "verify", "profile"):
        assert command in call("--help").stdout
        result = call(command, "--help")
        assert result.exit_code == 0
        assert f"monograph {command} model.onnx" in result.stdout, "help shows an example"


def test_no_command_is_bad_usage():
    assert call().exit_code == 2
    assert call("frobnicate").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "m.onnx", "--frobnicate"], "No such option"),
        (["run", "m.onnx", "--repeat", "0"], "'--repeat'"),
    ],
)
def test_usage_errors_are_json_where_that_is_asked_for(arguments: list[str], message: str):
    result = call(*arguments, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert message in found["error"]
    assert message in result.stderr
    assert call(*arguments).stdout == ""


def test_help_and_version_do_not_load_the_compiler():
    for option in ("--help", "--version"):
        text = f"import sys; sys.argv[1:] = [{option!r}]; from monograph.cli import main\n"
        text += (
            "try: main()\nfinally: print(sorted({'numpy', 'onnx', 'llvmlite'} & {*sys.modules}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        )
        assert done.stdout.endswith("[]\n")


def test_names_are_whole_where_the_output_goes_to_a_file(tmp_path: Path):
    name = "a_long_name_" * 20
    path = models.save(models.LINEAR.replace("best", name), tmp_path)
    assert name in call("inspect", path).stdout
    assert name in call("run", path).stdout


def test_inspect(linear: Path):
    result = call("inspect", linear)
    assert result.exit_code == 0
    assert "MatMul" in result.stdout
    assert "Every op is supported." in result.stdout
    found = call_json("inspect", linear)
    assert found["supported"] is True
    assert found["inputs"] == [{"name": "x", "dtype": "f32", "shape": ["N", 3]}]
    assert found["open_dimensions"] == {"N": ["x[0]"]}
    assert (found["parameters"], found["bytes"]) == (8, 32)


def test_inspect_a_model_with_unsupported_ops(tmp_path: Path):
    path = models.save(models.UNSUPPORTED, tmp_path)
    result = call("inspect", path)
    assert result.exit_code == 0
    assert "acme.Frobnicate" in result.stdout
    found = call_json("inspect", path)
    assert found["supported"] is False
    assert [(u["op"], u["count"]) for u in found["unsupported"]] == [
        ("Frobnicate", 2),
        ("Twist", 1),
    ]


def test_running_a_model_with_unsupported_ops_names_them(tmp_path: Path):
    result = call("run", models.save(models.UNSUPPORTED, tmp_path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "acme.Frobnicate (opset 1) x2" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["inspect", "run", "verify"])
def test_bad_files(tmp_path: Path, command: str):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"\x08\x09not a model")
    for path in (garbage, tmp_path / "absent.onnx", tmp_path):
        result = call(command, path)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert "Traceback" not in result.stderr
        assert call_json(command, path)["ok"] is False


def test_a_contradictory_model(tmp_path: Path):
    path = models.save(models.CONTRADICTORY, tmp_path)
    result = call("inspect", path)
    assert result.exit_code == 2
    assert "cannot be imported" in result.stdout
    assert call("run", path).exit_code == 2


def test_run_on_random_inputs(linear: Path):
    result = call("run", linear)
    assert result.exit_code == 0
    assert "random inputs (seed 0): x" in result.stderr
    assert "N=1" in result.stderr
    first, again = (call_json("run", linear, "--dim", "N=4")["outputs"] for _ in range(2))
    assert first == again
    assert first[0]["shape"] == [4, 2]
    found = call_json("run", linear, "--seed", "7")
    assert (found["ok"], found["seed"]) == (True, 7)
    assert (found["random_inputs"], found["assumed_dims"]) == (["x"], {"N": 1})
    assert first != call_json("run", linear, "--dim", "N=4", "--seed", "1")["outputs"]


def test_run_on_given_inputs(linear: Path, tmp_path: Path, recording: Path):
    x = tmp_path / "x.npy"
    np.save(x, np.array([[1, 0, 0]], np.float32))
    saved = tmp_path / "saved.npz"
    found = call_json("run", linear, "--input", f"x={x}", "--output", saved, "--repeat", "3")
    y = found["outputs"][0]
    assert (y["min"], y["max"], y["mean"], y["non_finite"]) == (1.5, 1.5, 1.5, 0)
    assert len(found["run_seconds"]) == 3
    with np.load(saved) as archive:
        assert archive["out:y"].tolist() == [[1.5, 1.5]]
        assert archive["in:x"].tolist() == [[1, 0, 0]]
    assert call("verify", linear, "--against", saved).exit_code == 0
    found = call_json("run", linear, "--inputs", recording)
    assert found["outputs"][0]["max"] == 9.5


def test_numbers_that_json_lacks(tmp_path: Path):
    path = models.save(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Log(x) }',
        tmp_path,
    )
    np.save(tmp_path / "x.npy", np.array([-1, 0], np.float32))
    (y,) = call_json("run", path, "--input", f"x={tmp_path / 'x.npy'}")["outputs"]
    assert y["non_finite"] == 2
    assert y["min"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "N"], "--dim takes NAME=SIZE"),
        (["--input", "x"], "--input takes NAME=FILE.npy"),
        (["--threads", "100000"], "threads is too large"),
        (["--dim", "N=x"], "--dim N takes a size"),
        (["--dim", "N=1", "--dim", "N=1"], "--dim is given twice"),
        (["--output", "answers"], "--output is an .npz file"),
        (["--dim", "M=3"], "the model has no such dimension"),
        (["--input", "x=absent.npy"], "the file cannot be read"),
        (["--inputs", "absent.npz"], "the file cannot be read"),
        (["--target", "toaster"], "no such target"),
        (["--output", "absent/folder/out.npz"], "no such directory to write to"),
    ],
)
def test_bad_arguments(linear: Path, arguments: list[str], message: str):
    result = call("run", linear, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_inputs_that_do_not_fit(linear: Path, tmp_path: Path):
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((2, 4), np.float32))
    result = call("run", linear, "--input", f"x={x}")
    assert result.exit_code == 2
    assert "expected f32[N, 3], given f32[2, 4]" in result.stderr
    assert "random" not in result.stderr, "what was given is at fault"
    result = call("run", linear, "--input", f"z={x}")
    assert "the model has no such input" in result.stderr


def test_an_archive_without_inputs(linear: Path, tmp_path: Path):
    np.savez(tmp_path / "other.npz", y=np.zeros(1))
    result = call("run", linear, "--inputs", tmp_path / "other.npz")
    assert result.exit_code == 2
    assert "the file holds no input of the model" in result.stderr


@pytest.mark.parametrize("option", ["run --inputs", "verify --against"])
def test_an_archive_with_misspelt_keys(linear: Path, recording: Path, option: str):
    change(recording, out_bets=np.array([1]), z=np.zeros(1))
    command, flag = option.split()
    result = call(command, linear, flag, recording)
    assert result.exit_code == 2
    assert "neither inputs nor outputs of the model" in result.stderr
    assert "expected: in:x, out:y, out:best" in result.stderr
    assert "given: out:bets, z" in result.stderr
    assert "did you mean out:best?" in result.stderr


def test_arrays_given_one_by_one_win(linear: Path, recording: Path, tmp_path: Path):
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((1, 3), np.float32))
    found = call_json("run", linear, "--inputs", recording, "--input", f"x={x}")
    assert found["outputs"][0]["max"] == 0.5


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


def test_arrays_that_would_share_a_key_are_not_saved(tmp_path: Path):
    """Output s is a sequence, and another one is called like its first element."""
    graph = helper.make_graph(
        [
            helper.make_node("SequenceConstruct", ["x"], ["s"]),
            helper.make_node("Neg", ["x"], ["s[0]"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("s[0]", TensorProto.FLOAT, [1]),
        ],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    assert call("run", path).exit_code == 0
    result = call("run", path, "--output", tmp_path / "saved.npz")
    assert result.exit_code != 0
    assert "one key" in result.stderr
    assert not (tmp_path / "saved.npz").exists()


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


@pytest.mark.parametrize(
    "command", [("run", "--output", "out.npz"), ("profile", "--trace", "run.json")]
)
def test_a_folder_is_looked_for_before_the_work(
    command: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def works(*_: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr(Request, "load", works)
    name, option, file = command
    path = models.save(models.LINEAR, tmp_path)
    result = call(name, path, option, tmp_path / "absent" / file)
    assert result.exit_code == 2
    assert "no such directory to write to" in result.stderr


def test_a_failed_run_on_random_inputs_says_what_to_do(tmp_path: Path):
    path = models.save(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N] x) => (float[2, 3] y) <int64[2] shape = {2, 3}> { y = Reshape(x, shape) }""",
        tmp_path,
    )
    result = call("run", path)
    assert result.exit_code == 2
    assert "choose sizes with --dim NAME=SIZE" in result.stderr
    assert "--inputs FILE.npz" in result.stderr
    assert call("run", path, "--dim", "N=6").exit_code == 0


@pytest.mark.parametrize("debug", [False, True])
def test_the_installed_command(tmp_path: Path, debug: bool):
    environment = {**os.environ, "MONOGRAPH_DEBUG": "1" if debug else "0"}
    command = [sys.executable, "-m", "monograph", "inspect", str(tmp_path / "absent.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert ("Traceback" in done.stderr) == debug
    assert "cannot be read" in done.stderr


def test_an_internal_error_is_called_that(linear: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("monograph.report.inspect.inspect_model", broken)
    result = call("inspect", linear)
    assert result.exit_code == 2
    assert "internal error: RuntimeError: boom" in result.stderr
