"""Benchmarks that need what is not installed: one message that says what to install."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import capture, needs, timeline
from benchmarks.needs import result_path

from monograph.errors import ConfigError

RESULTS = Path(needs.__file__).parent / "results"


@pytest.mark.parametrize("main", [capture.main, timeline.main])
def test_without_torch_the_extra_is_named(
    main: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def absent(*modules: str) -> None:
        raise ConfigError(f"there is no {modules}")

    monkeypatch.setattr(needs, "need", absent)
    monkeypatch.setattr("sys.argv", ["benchmark", "--results", str(tmp_path / "made")])
    with pytest.raises(SystemExit, match=r"needs torch and triton: pip install 'monograph\[gpu\]'"):
        main()
    assert capsys.readouterr().out == "", "nothing is said of single models"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("NVIDIA H200, 580.159.04", "capture-h200"),
        ("NVIDIA A100-SXM4-80GB", "capture-a100-sxm4-80gb"),
        ("x86_64", "capture-x86-64"),
        ("Triton's interpreter", "capture-triton-s-interpreter"),
    ],
)
def test_a_new_run_replaces_the_results_of_its_machine(
    machine: str, name: str, tmp_path: Path
) -> None:
    assert result_path(tmp_path / "made", "capture", machine) == tmp_path / "made" / name
    assert (tmp_path / "made").is_dir()


def test_results_are_one_file_per_benchmark_and_machine() -> None:
    names = [p.name for p in RESULTS.iterdir()]
    assert names
    assert not [n for n in names if re.search(r"20\d\d|again|last|later", n)]
