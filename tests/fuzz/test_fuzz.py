"""A bounded number of mutants; `python -m tests.fuzz.harness` tries as many as one likes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

import monograph
from monograph.errors import ExecutionError, InferError, unforeseen
from tests.fuzz import harness
from tests.fuzz.harness import fuzz, make_mutant, try_mutant
from tests.fuzz.mutate import mutate_bytes, mutate_structure
from tests.fuzz.seeds import seeds
from tests.samples import SEED

COUNT = 300


def test_only_our_errors_come_out(tmp_path: Path):
    print(f"seed {SEED}: set MONOGRAPH_TEST_SEED to repeat or to vary")
    report = fuzz(SEED, COUNT, jobs=2, folder=tmp_path, progress=False)
    assert sum(report.outcomes.values()) == COUNT
    assert not report.findings, f"seed {SEED}: {report.findings}"
    # Mutants that are all refused at once would test nothing but the parser.
    assert report.outcomes["ran"] > COUNT / 20
    assert report.outcomes["refused"] > COUNT / 20


@pytest.mark.parametrize(
    "error", [KeyError("x"), MemoryError(), RecursionError(), AssertionError()]
)
def test_any_other_error_is_a_finding(error, monkeypatch: pytest.MonkeyPatch):
    def fail(raw: bytes, target: str) -> None:
        raise error

    monkeypatch.setattr(monograph, "load", fail)
    outcome, detail = try_mutant(seeds()[0], random.Random(0))
    assert outcome == "finding"
    assert type(error).__name__ in detail


@pytest.mark.parametrize(
    "error",
    [
        InferError("the node cannot be converted", **unforeseen(KeyError("x"))),
        ExecutionError("out of memory for the outputs"),
    ],
)
def test_an_error_that_stands_for_a_fault_is_a_finding(error, monkeypatch: pytest.MonkeyPatch):
    """An error that was converted only to show users one kind of error is still a fault."""

    def fail(raw: bytes, target: str) -> None:
        raise error

    monkeypatch.setattr(monograph, "load", fail)
    outcome, detail = try_mutant(seeds()[0], random.Random(0))
    assert outcome == "finding"
    assert error.message in detail


def test_a_judgement_is_no_finding(monkeypatch: pytest.MonkeyPatch):
    def fail(raw: bytes, target: str) -> None:
        raise InferError("ranks differ")

    monkeypatch.setattr(monograph, "load", fail)
    assert try_mutant(seeds()[0], random.Random(0)) == ("refused", "ranks differ")


def test_a_hang_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(harness, "SECONDS", 0.05)
    monkeypatch.setattr(monograph, "load", lambda raw, target: time.sleep(5))
    outcome, detail = try_mutant(seeds()[0], random.Random(0))
    assert outcome == "finding"
    assert "hangs" in detail


def test_a_dead_worker_is_a_finding():
    """A worker that dies in the middle of a mutant is started again after it."""
    for _ in range(50):
        report, worker = harness.Report(0), harness.Worker(0, 0, 10**9, 1)
        while worker.current is None or worker.current < 3:
            assert worker.listen(report)
        worker.stop()
        try:
            while worker.listen(report):
                pass
        except RuntimeError:  # it was between two mutants when it was stopped
            continue
        assert report.outcomes["finding"] == 1
        assert worker.next >= 4
        return
    pytest.fail("no worker was stopped in the middle of a mutant")


def test_findings_are_saved_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = harness.Report(5, tmp_path)
    report.add(7, "finding", "Traceback\n  File 'x', line 1\nKeyError: 'y'")
    assert (tmp_path / "5-7.onnx").read_bytes() == make_mutant(5, 7)
    assert "FINDING seed 5 number 7" in capsys.readouterr().out
    command = [sys.executable, "-m", "tests.fuzz.harness", "--replay", str(tmp_path / "5-7.onnx")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutants_repeat():
    assert [make_mutant(3, i) for i in range(20)] == [make_mutant(3, i) for i in range(20)]
    assert len({make_mutant(3, i) for i in range(20)}) > 15


def test_seeds_are_valid_and_many():
    kinds = {node.op_type for raw in seeds() for node in onnx.ModelProto.FromString(raw).graph.node}
    assert len(seeds()) > 1000
    assert len(kinds) > 150


def test_mutations_change_things():
    raw, donor = seeds()[0], seeds()[-1]
    changed = sum(mutate_bytes(raw, donor, random.Random(i)) != raw for i in range(50))
    assert changed > 40
    changed = 0
    for i in range(50):
        model = onnx.ModelProto.FromString(raw)
        mutate_structure(model, onnx.ModelProto.FromString(donor), random.Random(i))
        changed += model.SerializeToString() != raw
    assert changed > 35
