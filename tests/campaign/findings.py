"""Saves a finding: the model, its feeds, and a script that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.campaign.case import Case
from tests.campaign.judge import Problem
from tests.campaign.pool import Worker


def save(
    case: Case, problem: Problem, worker: Worker, folder: Path, turn: int, small: bool
) -> Path:
    """Writes a finding into a folder of its own; the path of that."""
    stem = f"{case.kind}-{case.seed}-{case.number}-{'-'.join(problem.key)}"
    home = folder / stem
    home.mkdir(parents=True, exist_ok=True)
    (home / "model.onnx").write_bytes(case.model.SerializeToString())
    for i, feeds in enumerate(case.runs):
        np.savez(home / f"run{i}.npz", **feeds)
    (home / "problem.txt").write_text(
        f"{case.name}, {problem.side}: {problem.sort}\n{problem.text}\n"
    )
    return home
