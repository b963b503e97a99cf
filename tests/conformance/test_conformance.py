"""ONNX's own backend suite: every case passes but those that `left_out.py` gives a reason for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import run
from tests.conformance.left_out import LEFT_OUT

CASES = run.cases()


@pytest.fixture(autouse=True)
def onnx_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the suite are written to a folder of the test's own, and run on the reference."""
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    monkeypatch.setenv("MONOGRAPH_TARGET", "reference")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c[1] not in LEFT_OUT], ids=lambda c: c[1].removeprefix("test_")
)
def test_case(case: tuple[str, str]) -> None:
    _, _, outcome, detail = run.run_case(case)
    assert outcome == "passed", detail


@pytest.mark.parametrize(
    "case",
    [c for c in CASES[::8] if c[1] not in LEFT_OUT],
    ids=lambda c: c[1].removeprefix("test_"),
)
def test_case_after_the_pipeline(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One case in eight; `run.py --optimise` runs them all."""
    monkeypatch.setenv("MONOGRAPH_OPTIMISE", "1")
    _, _, outcome, detail = run.run_case(case)
    assert outcome == "passed", detail


@pytest.mark.parametrize(
    "case",
    [c for c in CASES[3::8] if c[1] not in LEFT_OUT],
    ids=lambda c: c[1].removeprefix("test_"),
)
def test_case_on_the_cpu(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One case in eight; `run.py --target cpu` runs them all."""
    monkeypatch.setenv("MONOGRAPH_TARGET", "cpu")
    _, _, outcome, detail = run.run_case(case)
    assert outcome == "passed", detail


@pytest.mark.parametrize(
    "case",
    [c for c in CASES[5::48] if c[1] not in LEFT_OUT],
    ids=lambda c: c[1].removeprefix("test_"),
)
def test_case_with_open_dimensions(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One case in 48; `run.py --open` runs them all."""
    monkeypatch.setenv("MONOGRAPH_TARGET", "cpu")
    monkeypatch.setenv(run.OPEN, "1")
    _, _, outcome, detail = run.run_case(case)
    assert outcome == "passed", detail
    assert detail  # code for any shape, or the reason for exact code


def test_every_case_left_out_exists_and_has_a_reason() -> None:
    names = {name for _, name in CASES}
    assert set(LEFT_OUT) <= names
    assert all(reason.strip() for reason in LEFT_OUT.values())


def test_the_suite_is_whole() -> None:
    assert len(CASES) == 1827
