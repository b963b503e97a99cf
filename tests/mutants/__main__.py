"""Draws mutants of the source by a seed, and has CI's tests kill them.

    python -m tests.mutants --count 40 --seed 1 --jobs 14
    python -m tests.mutants --list --count 40 --seed 1       # show them, run nothing
    python -m tests.mutants --only 1a2b3c4d5e                # one of them again

Mutants are drawn evenly over the groups (rules and passes, index maps, capture). Each is applied in
a copy of the tree, and tests run there, the most specific first, until one fails. A survivor is a
gap in the tests, or changes nothing: `equivalent.json` argues the latter under the mutant's id.
Exits with 1 where a survivor is neither.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.mutants.draw import draw, find
from tests.mutants.run import Result, run_all
from tests.mutants.targets import GROUPS

ROOT = Path(__file__).parents[2]
ARGUED = Path(__file__).parent / "equivalent.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MONOGRAPH_TEST_SEED", "0")))
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this group")
    parser.add_argument("--only", action="append", help="the mutant with this id")
    parser.add_argument("--jobs", "-j", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="runs the tests")
    parser.add_argument(
        "--gpu-python", default="", help="runs those of capture: with torch, triton"
    )
    parser.add_argument(
        "--seconds", type=float, default=1800, help="that a stage of tests may take"
    )
    parser.add_argument("--stages", type=int, default=9, help="stages of tests that may run")
    parser.add_argument("--known", type=Path, help="a file of tests that fail without a mutant")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    options = parser.parse_args()
    groups = options.group or list(GROUPS)
    mutants = draw(ROOT, groups, options.count, options.seed)
    if options.only:
        mutants = find(ROOT, groups, options.only)
    if options.list:
        for mutant in mutants:
            print(mutant)
        return 0
    print(f"{len(mutants)} mutants, seed {options.seed}", flush=True)
    began = time.monotonic()
    known = set(options.known.read_text().split()) if options.known else set()
    results = run_all(mutants, options, known)
    return show(results, time.monotonic() - began, options.results)


def show(results: list[Result], seconds: float, path: Path | None) -> int:
    """A table of survivors and a count; the exit status."""
    argued = json.loads(ARGUED.read_text())
    gaps = [r for r in results if not r.killed and r.mutant.id not in argued]
    for r in results:
        if not r.killed:
            why = argued.get(r.mutant.id, "NO TEST NOTICES")
            print(f"SURVIVED {r.mutant}\n    {why}")
    killed = sum(r.killed for r in results)
    equal = len(results) - killed - len(gaps)
    print(f"{killed} of {len(results)} were killed, {equal} are argued to be equivalent,")
    print(f"{len(gaps)} are gaps; {seconds:.0f} s")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([r.as_dict() for r in results], indent=1) + "\n")
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main())
