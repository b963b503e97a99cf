"""Random models on every side, against the reference and ONNX Runtime.

    python -m tests.campaign single --count 10000 --seed 1 --jobs 2
    python -m tests.campaign dynamic --count 2000 --sides cpu,interpreter
    python -m tests.campaign single --seed 1 --first 1234 --count 1     # one case again

A case comes from its kind, the seed and its number alone. Each finding is saved with its model
and feeds; the first ones of each sort are made small, and written as a script that runs alone.
Exits with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.campaign import nnsmith_cases
from tests.campaign.kinds import KINDS
from tests.campaign.pool import PATIENCE
from tests.campaign.run import Report, campaign, summary
from tests.campaign.sides import SIDES


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS, nargs="+")
    parser.add_argument("--count", type=int, default=1000, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MONOGRAPH_TEST_SEED", "0")))
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--jobs", "-j", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sides", default="cpu,onnxruntime", help=f"of {','.join(SIDES)}")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--seconds", type=float, default=PATIENCE, help="that a case may take")
    parser.add_argument("--minimised", type=int, default=3, help="findings of a sort made small")
    parser.add_argument("--json", type=Path, help="write the counts of every kind to this file")
    options = parser.parse_args()
    sides = options.sides.split(",")
    if unknown := set(sides) - set(SIDES):
        parser.error(f"no such side: {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    if "nnsmith" in options.kind and not nnsmith_cases.files():
        parser.error("there are no models of NNSmith: `make nnsmith` generates them")
    found, records = 0, []
    for kind in options.kind:
        left = max(0, len(nnsmith_cases.files()) - options.first)
        count = min(options.count, left) if kind == "nnsmith" else options.count
        report = campaign(
            kind, count, options.seed, options.jobs, sides, first=options.first,
            folder=options.folder, progress=True, patience=options.seconds,
            minimised=options.minimised,
        )  # fmt: skip
        show(report, count)
        records.append(record(report, count))
        if options.json:
            options.json.write_text(json.dumps(records, indent=1) + "\n")
        found += len(report.findings)
    return 1 if found else 0


def record(report: Report, count: int) -> dict[str, Any]:
    """The report as plain data: counts, the documented differences, and the findings."""
    findings = [
        {"key": list(key), "numbers": numbers, "text": report.texts[key]}
        for key, numbers in sorted(report.findings.items())
    ]
    return {
        "kind": report.kind, "seed": report.seed, "asked": count, "ops": len(report.ops),
        "seconds": round(report.seconds, 1), "counts": dict(report.counts),
        "documented": dict(report.reasons), "findings": findings,
    }  # fmt: skip


def show(report: Report, count: int) -> None:
    """A line, the documented differences, and what was found."""
    print(summary(report, report.seconds, count))
    print(f"  {len(report.ops)} ops")
    for reason, number in report.reasons.most_common():
        print(f"  documented, {number} x: {reason}")
    for key, numbers in sorted(report.findings.items(), key=lambda kv: -len(kv[1])):
        text = " ".join(report.texts[key].split())[:160]
        print(f"  FOUND {len(numbers)} x {' '.join(key)}: {numbers[:6]} {text}")


if __name__ == "__main__":
    sys.exit(main())
