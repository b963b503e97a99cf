"""`monograph run`: on what it is given, and on what it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper

from monograph.cli.common import reporting
from monograph.errors import ConfigError
from tests.cli.calls import call, call_json, change
from tests.report import models


def test_running_a_model_with_unsupported_ops_names_them(tmp_path: Path):
    result = call("run", models.save(models.UNSUPPORTED, tmp_path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "acme.Frobnicate (opset 1) x2" in result.stderr
    assert "Traceback" not in result.stderr


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
        (["--dim", "N"], "`--dim` must be NAME=SIZE"),
        (["--input", "x"], "`--input` must be NAME=FILE.npy"),
        (["--threads", "100000"], "threads is too large"),
        (["--dim", "N=x"], "`--dim N` must be a size"),
        (["--dim", "N=1", "--dim", "N=1"], "`--dim` must not be given twice"),
        (["--output", "answers"], "`--output` must be an .npz file"),
        (["--dim", "M=3"], "the model has no such dimension"),
        (["--input", "x=absent.npy"], "the file cannot be read"),
        (["--inputs", "absent.npz"], "the file cannot be read"),
        (["--target", "toaster"], "no such target"),
        (["--output", "absent/folder/out.npz"], "the directory of the output file does not exist"),
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
    assert "needs its own key" in result.stderr
    assert not (tmp_path / "saved.npz").exists()


@pytest.mark.parametrize(
    ("text", "options", "advice"),
    [
        (models.SIZED, ("--capture", "require"), "--capture auto runs it all the same"),
        (models.LINEAR, ("--precision", "f16"), "or take --target gpu"),
        (
            models.LINEAR,
            ("--target", "reference", "--capture", "require"),
            "set --target gpu or --target cpu",
        ),
    ],
)
def test_advice_names_options_as_they_are_typed(
    text: str, options: tuple[str, ...], advice: str, tmp_path: Path
):
    result = call("run", models.save(text, tmp_path), *options)
    assert result.exit_code == 2
    assert advice in result.stderr
    assert '="' not in result.stderr


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("load it with target='cpu'", "load it with --target cpu"),
        ("set MONOGRAPH_THREADS or threads= to a smaller number", "or --threads to a smaller"),
        ("fix them with dims={...}", "fix them with --dim NAME=SIZE"),
    ],
)
def test_advice_for_users_of_python_is_translated(
    python: str, typed: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(typer.Exit), reporting(as_json=False, debug=False):
        raise ConfigError("it does not work", hint=python)
    assert typed in capsys.readouterr().err


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
