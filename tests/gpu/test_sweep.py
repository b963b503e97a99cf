"""The tests that `make test-gpu` runs: each of them once, and some with the device for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import sweep

CONFTEST = """
from tests.gpu.conftest import pytest_collection_modifyitems
from tests.gpu.faults.conftest import pytest_configure
"""
TESTS = """
import os
import pytest

def note(name):
    with open(LOG, "a") as log:
        print(name, repr(os.environ["MONOGRAPH_TEST_SHARE"]), file=log)

@pytest.mark.parametrize("number", range(5), ids="zero one two three four".split())
def test_shared(number):
    note(f"shared {number}")
    assert number != 3

@pytest.mark.alone
def test_alone():
    note("alone")

@pytest.mark.alone
@pytest.mark.skip
def test_left_out():
    note("left out")
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file in which the tests of a small folder, swept instead, say that they ran."""
    folder, log = tmp_path / "tests", tmp_path / "log"
    folder.mkdir()
    log.touch()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(f"LOG = {str(log)!r}\n{TESTS}")
    monkeypatch.setattr(sweep, "FOLDER", str(folder))
    monkeypatch.setenv("MONOGRAPH_TEST_SHARE", "7/8")  # whoever sweeps may be a share itself
    monkeypatch.chdir(Path(__file__).parents[2])
    return log


def test_each_test_runs_once_and_some_run_alone(log: Path) -> None:
    found = sweep.Found()
    sweep.run_tests(found, "", 2)
    first, *rest = log.read_text().splitlines()
    assert first == "alone ''"
    assert sorted(rest) == [f"shared {i} '{i % 2}/2'" for i in range(5)]
    assert found.counts == {sweep.TESTS: {"right": 5, "wrong": 1, "left out": 1}}
    assert [name.rpartition("::")[2] for _, name, _, _ in found.problems] == ["test_shared[three]"]


def test_only_some_are_asked_for(log: Path) -> None:
    found = sweep.Found()
    sweep.run_tests(found, "test_alone or four", 2)
    assert log.read_text().splitlines() == ["alone ''", "shared 4 '0/2'"]
    assert found.counts == {sweep.TESTS: {"right": 2}}


def test_a_process_that_reports_nothing_is_told(log: Path) -> None:
    (Path(sweep.FOLDER) / "conftest.py").write_text("raise SystemExit(3)")
    found = sweep.Found()
    sweep.run_tests(found, "", 1)
    assert [name for _, name, _, _ in found.problems] == ["those marked alone", "share 0/1"]
