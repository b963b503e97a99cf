"""The command line as a user meets it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import monograph
from monograph.cli.main import app
from monograph.report.commands.execute import RunRequest
from tests.cli.calls import call, call_json
from tests.report import models


def test_version_and_help():
    assert call("--version").stdout == f"monograph {monograph.__version__}\n"
    for command in ("inspect", "run", "verify", "profile"):
        assert command in call("--help").stdout
        result = call(command, "--help")
        assert result.exit_code == 0
        assert f"monograph {command} model.onnx" in result.stdout, "help shows an example"


def test_help_reads_well_without_emphasis():
    """A pipe takes none, nor do some terminals: no sentence may need it to be understood."""
    for command in app.registered_commands:
        assert command.callback is not None
        text = command.callback.__doc__ or ""
        assert not re.search(r"(?<!\w)[*_]\w[^*_]*[*_](?!\w)", text), command.callback.__name__


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
        text = f"import sys; sys.argv[1:] = [{option!r}]; from monograph.cli.main import main\n"
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


@pytest.mark.parametrize(
    "command", [("run", "--output", "out.npz"), ("profile", "--trace", "run.json")]
)
def test_a_folder_is_looked_for_before_the_work(
    command: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def works(*_: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr(RunRequest, "load", works)
    name, option, file = command
    path = models.save(models.LINEAR, tmp_path)
    result = call(name, path, option, tmp_path / "absent" / file)
    assert result.exit_code == 2
    assert "the directory of the output file does not exist" in result.stderr


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

    monkeypatch.setattr("monograph.report.commands.inspect.inspect_model", broken)
    result = call("inspect", linear)
    assert result.exit_code == 2
    assert "internal error: RuntimeError: boom" in result.stderr
