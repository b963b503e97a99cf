"""Runs a campaign: shares cases among workers, counts, saves and minimises findings."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.campaign.case import Case
from tests.campaign.differences import explain
from tests.campaign.judge import Problem, Verdict
from tests.campaign.kinds import KINDS
from tests.campaign.pool import PATIENCE, Worker, share
from tests.campaign.sides import Outcome

SAID = 20.0
"""Seconds between two lines of progress."""
SHOWN = 300


@dataclass
class Report:
    """The results of the cases so far."""

    kind: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    """Numbers of cases under the side, the sort of problem and the ops."""
    texts: dict[tuple[str, ...], str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return self.counts["cases"]

    def add(self, number: int, verdict: Verdict, ops: Sequence[str]) -> list[Problem]:
        """Counts a case; the findings that are the first of their sort."""
        self.counts["cases"] += 1
        self.counts.update(verdict.counts)
        self.ops.update(set(ops))
        for problem in verdict.problems:
            if problem.reason:
                self.reasons[problem.reason] += 1
        fresh = []
        for problem in verdict.findings:
            key = (*problem.key, ops[0] if len(ops) == 1 else f"{len(ops)} ops")
            self.findings.setdefault(key, []).append(number)
            self.texts.setdefault(key, problem.text)
            fresh.append(problem)
        return fresh


def requests(kind: str, seed: int, first: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield {"kind": kind, "seed": seed, "number": number, "turn": number}


def campaign(
    kind: str,
    count: int,
    seed: int,
    jobs: int = 1,
    sides: Sequence[str] = ("cpu", "onnxruntime"),
    *,
    first: int = 0,
    folder: Path | None = None,
    progress: bool = False,
    patience: float = PATIENCE,
    minimised: int = 3,
) -> Report:
    """Runs `count` cases of a kind; findings go to a folder, the first of each sort minimised."""
    report, lock = Report(kind, seed), threading.Lock()
    began = said = time.monotonic()

    def take(request: dict[str, Any], reply: dict[str, Any], worker: Worker) -> None:
        nonlocal said
        number = request["number"]
        verdict, ops = _read(reply)
        case: Case | None = reply.get("case")
        if "died" in reply:
            case, verdict = _dead(kind, seed, number, reply)
            ops = case.ops if case is not None else ops
            rest = [s for s in sides if s != reply["side"]]
            if case is not None and rest != list(sides):
                # What the other sides gave went with the process.
                verdict = both(verdict, _read(worker.ask({**request, "sides": rest}))[0])
        with lock:
            fresh = report.add(number, verdict, ops)
            for problem in fresh:
                _tell(report, number, ops, problem)
            if progress and time.monotonic() - said > SAID:
                said = time.monotonic()
                print(summary(report, said - began, count), flush=True)
        if fresh and folder is not None and case is not None:
            _save(case, fresh, worker, folder, request["turn"], report, minimised)

    share(jobs, sides, requests(kind, seed, first, count), take, patience)
    report.seconds = time.monotonic() - began
    return report


def _read(reply: dict[str, Any]) -> tuple[Verdict, list[str]]:
    """The verdict of a reply, and the ops of its case; a dead worker is a verdict too."""
    if "died" in reply:
        return Verdict({}, (died(reply),)), ["?"]
    if "generator" in reply:
        return Verdict({}, (Problem("generator", "fault", reply["generator"]),)), ["?"]
    return reply["verdict"], reply["ops"]


def died(reply: dict[str, Any]) -> Problem:
    """Return what a dead worker's reply tells."""
    return Problem(reply["side"], reply["died"], reply["why"])


def _dead(kind: str, seed: int, number: int, reply: dict[str, Any]) -> tuple[Case | None, Verdict]:
    """The case over which a worker died, and the verdict: a crash may be documented too."""
    problem = died(reply)
    if problem.side == "generator":
        return None, Verdict({}, (problem,))
    case = KINDS[kind](seed, number)
    reason = explain(case, problem, Outcome(), Outcome())
    return case, Verdict({"documented": 1} if reason else {}, (replace(problem, reason=reason),))


def both(a: Verdict, b: Verdict) -> Verdict:
    """The verdicts of one case on different sides as one."""
    return Verdict(a.counts | b.counts, (*a.problems, *b.problems))


def _tell(report: Report, number: int, ops: Sequence[str], problem: Problem) -> None:
    text = " ".join(problem.text.split())
    print(
        f"FINDING {report.kind} seed {report.seed} number {number} [{','.join(ops)}]"
        f" {problem.side} {problem.sort} in run {problem.run}: {text[:SHOWN]}",
        flush=True,
    )


def _save(
    case: Case,
    problems: Sequence[Problem],
    worker: Worker,
    folder: Path,
    turn: int,
    report: Report,
    minimised: int,
) -> None:
    from tests.campaign.findings import save

    for problem in problems:
        key = (*problem.key, case.ops[0] if len(case.ops) == 1 else f"{len(case.ops)} ops")
        small = len(report.findings[key]) <= minimised
        path = save(case, problem, worker, folder, turn, small)
        print(f"  saved {path}", flush=True)


def summary(report: Report, seconds: float, count: int) -> str:
    """One line: how far it is, how fast, and what came of it."""
    rate = report.done / max(seconds, 1e-9)
    counted = ", ".join(f"{v} {k}" for k, v in sorted(report.counts.items()) if k != "cases")
    found = sum(map(len, report.findings.values()))
    return (
        f"{report.kind} seed {report.seed}: {report.done}/{count} in {seconds:.0f} s"
        f" ({rate:.1f}/s): {counted}; {found} findings"
    )
