"""Saves a finding: the model, its feeds, and a script that shows it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.campaign.case import Case
from tests.campaign.judge import Problem
from tests.campaign.minimise import minimise
from tests.campaign.pool import Worker
from tests.campaign.script import write


def save(
    case: Case, problem: Problem, worker: Worker, folder: Path, turn: int, small: bool
) -> Path:
    """Writes a finding into a folder of its own, made small or as it is; the path of its script."""
    stem = f"{case.kind}-{case.seed}-{case.number}-{'-'.join(problem.key)}"
    home = folder / stem
    home.mkdir(parents=True, exist_ok=True)
    (home / "model.onnx").write_bytes(case.model.SerializeToString())
    for i, feeds in enumerate(case.runs):
        np.savez(home / f"run{i}.npz", **_storable(feeds))
    text = f"{case.name}, {problem.side}: {problem.sort} in run {problem.run}\n{problem.text}\n"
    (home / "problem.txt").write_text(text)
    if small:
        case, problem = shrunk(case, problem, worker, turn)
    script = home / "script.py"
    script.write_text(write(case, problem))
    return script


def shrunk(case: Case, problem: Problem, worker: Worker, turn: int) -> tuple[Case, Problem]:
    """The case made small, and its problem then."""
    last = problem

    def fails(candidate: Case) -> bool:
        nonlocal last
        found = same_problem(worker.ask({"case": candidate, "turn": turn}), problem)
        last = found or last
        return found is not None

    return minimise(case, fails, problem.run), last


def same_problem(reply: dict[str, object], wanted: Problem) -> Problem | None:
    """The finding of a reply that is of the same sort on the same side."""
    if "died" in reply:
        found = Problem(str(reply["side"]), str(reply["died"]), str(reply["why"]))
        return found if found.key == wanted.key else None
    verdict = reply.get("verdict")
    found = [] if verdict is None else verdict.findings  # type: ignore[attr-defined]
    return next((p for p in found if p.key == wanted.key), None)


def _storable(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays that numpy can write without ml_dtypes: the bits of what it does not know."""
    return {
        n: x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "V" else x for n, x in feeds.items()
    }
