"""Output that cannot be written: a full disk is one message, a reader that has gone is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.decoders import build

from tests.report import models

FULL = Path("/dev/full")
NO_SPACE = "error: standard output (/dev/full) cannot be written: No space left on device"
COMMANDS = [
    ("inspect",),
    ("inspect", "--json"),
    ("explain", "--json"),
    ("explain", "--after", "import", "--json"),
    ("run", "--target", "reference", "--json"),
    ("verify", "--target", "cpu", "--json"),
    ("bench", "--target", "reference", "--seconds", "0.1", "--json"),
]


def finished(
    stdout: int, *arguments: object, buffered: bool = True, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    environment.pop("MONOGRAPH_DEBUG", None)
    return subprocess.run(
        [sys.executable, "-m", "monograph", *map(str, arguments)],
        stdout=stdout,
        stderr=stderr,
        text=True,
        env=environment,
        check=False,
    )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.startswith("note: ")]


@pytest.fixture(params=[True, False], ids=["buffered", "unbuffered"])
def buffered(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def full() -> Iterator[int]:
    if not FULL.exists():
        pytest.skip("this system has no device that is always full")
    device = os.open(FULL, os.O_WRONLY)
    yield device
    os.close(device)


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_message(command: tuple[str, ...], full: int, linear: Path) -> None:
    done = finished(full, command[0], linear, *command[1:])
    assert complaints(done) == [
        "error: standard output (/dev/full) cannot be written: No space left on device"
    ]
    assert done.returncode == 2


def test_a_generation_that_cannot_be_written(full: int, closed: int, tmp_path: Path) -> None:
    folder = build(tmp_path, "tiny-llama")
    wanted = ("generate", folder, "--target", "cpu", "--tokens", "3,14", "--max-new-tokens", 4)
    done = finished(full, *wanted)
    assert complaints(done) == [
        "error: standard output (/dev/full) cannot be written: No space left on device"
    ]
    assert done.returncode == 2
    done = finished(closed, *wanted)
    assert (complaints(done), done.returncode) == ([], 0)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help")])
def test_help_on_a_full_disk_is_one_message(
    arguments: tuple[str, ...], full: int, buffered: bool
) -> None:
    done = finished(full, *arguments, buffered=buffered)
    assert complaints(done) == [
        "error: standard output (/dev/full) cannot be written: No space left on device"
    ]
    assert done.returncode == 2


def test_an_error_keeps_its_own_message_where_the_disk_is_full(
    full: int, buffered: bool, tmp_path: Path
) -> None:
    done = finished(full, "inspect", tmp_path / "absent.onnx", "--json", buffered=buffered)
    assert complaints(done)[0].startswith("error: the model file cannot be read")
    assert len(complaints(done)) == 2
    assert done.returncode == 2
    done = finished(full, "inspect", "--json", buffered=buffered)
    assert complaints(done) == ["error: Missing argument 'MODEL'."]
    assert done.returncode == 2


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_notes_that_nobody_takes_change_nothing(
    command: tuple[str, ...], full: int, buffered: bool, linear: Path
) -> None:
    wanted = (command[0], linear, *command[1:])
    done = finished(subprocess.PIPE, *wanted, buffered=buffered, stderr=full)
    assert done.returncode == 0
    assert done.stdout
    assert "--json" not in command or json.loads(done.stdout)["ok"]
    absent = (command[0], linear.parent / "absent.onnx", *command[1:])
    assert finished(subprocess.PIPE, *absent, buffered=buffered, stderr=full).returncode == 2


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_stderr_changes_nothing(command: tuple[str, ...], linear: Path) -> None:
    wanted = [sys.executable, "-m", "monograph", command[0], str(linear), *command[1:]]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *wanted]
    done = subprocess.run(closed, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "error" not in done.stdout
    assert "--json" not in command or json.loads(done.stdout)["ok"]


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help")])
def test_a_reader_of_help_that_has_gone(
    arguments: tuple[str, ...], closed: int, buffered: bool
) -> None:
    done = finished(closed, *arguments, buffered=buffered)
    assert (complaints(done), done.returncode) == ([], 0)


@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "tables"])
def test_a_reader_that_has_gone_changes_nothing(
    form: tuple[str, ...], closed: int, buffered: bool, linear: Path, recording: Path
) -> None:
    done = finished(closed, "inspect", linear, *form, buffered=buffered)
    assert (complaints(done), done.returncode) == ([], 0)
    wrong = models.save(models.LINEAR.replace("Add", "Sub"), linear.parent)
    checked = ("verify", wrong, "--target", "reference", "--against", recording)
    done = finished(closed, *checked, *form, buffered=buffered)
    assert (complaints(done), done.returncode) == ([], 1), "a check that failed is still one"
