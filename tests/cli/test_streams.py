"""Output that cannot be written: a full disk is one message, a reader that has gone is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report import models

FULL = Path("/dev/full")
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
    stdout: int, *arguments: object, buffered: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    environment.pop("MONOGRAPH_DEBUG", None)
    return subprocess.run(
        [sys.executable, "-m", "monograph", *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
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
    assert complaints(done) == ["error: the output cannot be written: No space left on device"]
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("inspect", "--help")])
def test_so_it_is_where_no_command_runs(
    arguments: tuple[str, ...], full: int, buffered: bool
) -> None:
    done = finished(full, *arguments, buffered=buffered)
    assert complaints(done) == ["error: the output cannot be written: No space left on device"]
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


@pytest.mark.parametrize("json", [("--json",), ()], ids=["json", "tables"])
def test_a_reader_that_has_gone_changes_nothing(
    json: tuple[str, ...], closed: int, buffered: bool, linear: Path, recording: Path
) -> None:
    done = finished(closed, "inspect", linear, *json, buffered=buffered)
    assert (complaints(done), done.returncode) == ([], 0)
    wrong = models.save(models.LINEAR.replace("Add", "Sub"), linear.parent)
    checked = ("verify", wrong, "--target", "reference", "--against", recording)
    done = finished(closed, *checked, *json, buffered=buffered)
    assert (complaints(done), done.returncode) == ([], 1), "a check that failed is still one"
