"""Runs ONNX's own backend suite and prints a table by category.

    python tests/conformance/run.py                     # everything
    python tests/conformance/run.py -k lstm -k gru -v   # cases whose names contain a word
    python tests/conformance/run.py --optimise          # after the whole pipeline of rewrites
    python tests/conformance/run.py --target cpu        # compiled
    python tests/conformance/run.py --open              # compiled, with all input dimensions open

A case passes when ONNX's runner accepts the outputs with its own tolerances. A case that is
skipped by the runner counts as failed unless `left_out.py` gives the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parent))

import open_sizes
from left_out import LEFT_OUT

Result: TypeAlias = tuple[str, str, str, str]
"""(category, name, outcome, detail) of a case; the detail of a case that passed with open sizes
tells what served it."""
OPEN = "MONOGRAPH_CONFORMANCE_OPEN"
"""Set in processes that open the dimensions of inputs."""


def cases() -> list[tuple[str, str]]:
    """(category, name) of every CPU case."""
    return [
        (category, name.removesuffix("_cpu"))
        for category, items in _load()._test_items.items()
        for name in items
        if name.endswith("_cpu")
    ]


def _load():  # type: ignore[no-untyped-def]
    return _runner(OPEN in os.environ)


@cache
def _runner(open_dimensions: bool):  # type: ignore[no-untyped-def]
    from onnx.backend.test.runner import Runner

    from monograph.compat.onnx_backend import Backend

    return Runner(open_sizes.OpenBackend if open_dimensions else Backend, __name__)


def run_case(case: tuple[str, str]) -> Result:
    """Return what came of one case."""
    category, name = case
    function = _load()._test_items[category][f"{name}_cpu"].func
    open_sizes.reasons.clear()
    try:
        function(unittest.TestCase())
    except unittest.SkipTest as e:
        return category, name, "failed", f"skipped: {e}"
    except Exception:
        return category, name, "failed", traceback.format_exc(limit=-6)
    return category, name, "passed", "; ".join(dict.fromkeys(open_sizes.reasons))


def watch(results: Iterable[Result], total: int) -> Iterable[Result]:
    """The results, with a progress bar on stderr where someone watches."""
    from rich.console import Console
    from rich.progress import track

    return track(results, "running", total=total, console=Console(stderr=True), transient=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("-j", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("-v", action="store_true", help="print why cases failed")
    parser.add_argument("--optimise", action="store_true", help="rewrite the graphs first")
    parser.add_argument("--target", default="reference", help="what runs the cases")
    parser.add_argument("--open", action="store_true", help="open all dimensions of inputs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.open:
        options.target = "cpu"
        os.environ[OPEN] = "1"
    chosen = [c for c in cases() if not options.k or any(k in c[1] for k in options.k)]
    started = time.time()
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONNX_HOME"] = home
        os.environ["MONOGRAPH_TARGET"] = options.target
        if options.optimise:
            os.environ["MONOGRAPH_OPTIMISE"] = "1"
        tried = [c for c in chosen if c[1] not in LEFT_OUT]
        if options.j == 1:
            results = list(watch(map(run_case, tried), len(tried)))
        else:
            with ProcessPoolExecutor(options.j) as pool:
                results = list(watch(pool.map(run_case, tried, chunksize=8), len(tried)))
    table = {c: Counter[str]() for c, _ in chosen}
    for category, name in chosen:
        if name in LEFT_OUT:
            table[category]["left out"] += 1
    for category, _, outcome, _ in results:
        table[category][outcome] += 1
    failures = {name: detail for _, name, outcome, detail in results if outcome == "failed"}
    if options.json:
        print(json.dumps({"table": table, "failed": failures, "left_out": LEFT_OUT}))
    else:
        _print(table, failures, options.v, time.time() - started)
        if options.open:
            _print_served(
                Counter(
                    detail for _, _, outcome, detail in results if detail and outcome == "passed"
                )
            )
    return 1 if failures else 0


def _print(
    table: dict[str, Counter[str]], failures: dict[str, str], verbose: bool, seconds: float
) -> None:
    print(f"{'category':24}{'cases':>8}{'passed':>8}{'failed':>8}{'left out':>10}")
    total = sum(table.values(), Counter[str]())
    for category, counts in [*table.items(), ("all", total)]:
        row = [counts[k] for k in ("passed", "failed", "left out")]
        print(f"{category:24}{sum(row):>8}{row[0]:>8}{row[1]:>8}{row[2]:>10}")
    for name, detail in failures.items():
        last = detail.strip().splitlines()[-1] if detail else ""
        print(f"FAILED {name}" + (f"\n{detail}" if verbose else f": {last[:150]}"))
    print(f"{total['passed']} of {sum(total.values())} in {seconds:.0f} s")


def _print_served(served: Counter[str]) -> None:
    """Print how many cases ran with code for any shape, and why others did not."""
    print("served by:")
    for what, count in served.most_common():
        print(f"{count:8} {what[:150]}")


if __name__ == "__main__":
    sys.exit(main())
