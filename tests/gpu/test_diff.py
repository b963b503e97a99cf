"""`monograph diff` with a side on a GPU: what a lower precision explains, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monograph.report.commands.execute import RunRequest
from monograph.report.diff import run
from monograph.report.diff.compare import LOWERING, PRECISION, DiffResult
from monograph.report.diff.show import headline
from monograph.report.diff.sides import Observed, Side
from tests.gpu.sweep_worker import target
from tests.report.diff.models import MODELS, save


def in_f16(path: str) -> DiffResult:
    sides = (path, f"@{target()},precision=f16")
    return run.diff_model(*sides, RunRequest(Path(path)), lambda _: None)


def test_the_precision_of_a_side_is_named(tmp_path: Path) -> None:
    found = in_f16(save(MODELS["attention"].build(), tmp_path / "model.onnx"))
    assert not found.ok
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.side) == (PRECISION, 1)
    assert "the precision of this side explains" in headline(found)


def test_a_larger_difference_than_the_precision_explains_is_not_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = run.observe

    def wrong(side: Side, *rest: Any) -> Observed:
        found = right(side, *rest)
        if side.options.get("precision") != "f16":
            return found
        points = {
            n: replace(p, data=p.data * p.data.dtype.type(1.1)) for n, p in found.points.items()
        }
        return replace(found, points=points)

    monkeypatch.setattr(run, "observe", wrong)
    found = in_f16(save(MODELS["attention"].build(), tmp_path / "model.onnx"))
    assert found.culprit is not None
    assert found.culprit.kind == LOWERING
