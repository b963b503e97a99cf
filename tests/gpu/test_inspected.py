"""`inspect` shows the program that runs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import gpu_models
from tests.program import inspected

pytestmark = gpu_models.INTERPRETED


@pytest.mark.parametrize("name", inspected.CASES)
def test_inspect_shows_the_program_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    shown, executable = inspected.both(name, "gpu:interpreter", tmp_path)
    if "if" not in {s.region.kind for s in shown.program.steps}:  # a run takes one side of it
        assert executable.kernels == sum(shown.count(r) for r in shown.regions)
