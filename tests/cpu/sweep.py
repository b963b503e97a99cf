"""Everything on the CPU target against the reference, on every instruction set, 1 to 4 threads.

    python -m tests.cpu.sweep                                    # all of it
    python -m tests.cpu.sweep --part samples --part specials     # some of it
    python -m tests.cpu.sweep --features avx2 --threads 2 --only conv -v

Parts: samples of ops; the same with NaN, infinities and numbers at the edge of casts; odd shapes;
random graphs, and with such numbers; ONNX's own backend suite; real models. Exits with 1 where
anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any
from unittest import mock

import numpy as np

from monograph.codegen.llvm.module.features import Features
from monograph.errors import MonographError
from monograph.ir import Graph, evaluate
from monograph.program.legalise.lower_random import random_ops
from monograph.runtime.cpu import executable as runtime
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.dynamic.staged import compile_stages
from monograph.runtime.executable import Executable
from monograph.runtime.numerics.bisect import first_wrong
from tests.cpu import sweep_cases
from tests.cpu.emit.scalar_kernels import instruction_sets
from tests.cpu.sweep_cases import Case
from tests.samples import SEED

THREADS = (1, 2, 4)
GRAPHS = 150
"""Random graphs of a whole sweep."""
Machine = tuple[Features, int]
Found = Iterator[tuple[str, str | None]]
"""Names of what was run, each with what is wrong."""


def machines() -> list[Machine]:
    """Every instruction set that can be forced here, with every number of threads."""
    return [(f, t) for f in instruction_sets() for t in THREADS]


def problem(case: Case, machine: Machine) -> str | None:
    """Return what is wrong with a case on a machine; None where nothing is."""
    return next(problems(case, [machine]))


def problems(case: Case, given: list[Machine]) -> Iterator[str | None]:
    """Return what is wrong with a case, machine by machine; the reference runs once."""
    names, expected = case.graph.output_names, None
    with np.errstate(all="ignore"):
        try:
            _rewind(case.graph)
            expected = dict(zip(names, evaluate(case.graph, case.feeds), strict=True))
        except MonographError as e:
            refused: MonographError = e
        for machine in given:
            try:
                made = _run(case, machine)
            except Exception as e:  # whatever it is, the sweep goes on
                refuses = expected is None and isinstance(e, MonographError)
                yield None if refuses else f"{type(e).__name__}: {e}"
                continue
            if expected is None:
                yield f"ran, where the reference says: {refused}"
                continue
            wrong = first_wrong(case.graph, case.feeds, made, expected)
            where = f"at {wrong.worst} {wrong.given} for {wrong.expected}" if wrong else ""
            yield None if wrong is None else f"{wrong.name}: {wrong.problem} {where}"


def _run(case: Case, machine: Machine) -> dict[str, Any]:
    compiled = _compiled(case.graph, machine)
    _rewind(case.graph)
    made = compiled.run(case.feeds)
    return dict(zip(case.graph.output_names, made, strict=True))


def _rewind(graph: Graph) -> None:
    """Lets random ops draw from their first turn: what the reference draws, a machine draws too."""
    for op in random_ops(graph):
        op.turns.count[0] = 0


@lru_cache(maxsize=16)
def _compiled(graph: Graph, machine: Machine) -> Executable:
    """A graph on a machine; it may come again at once, with other feeds."""
    # Small graphs would run on one thread.
    with mock.patch.object(runtime, "ALONE_SECONDS", 0.0):
        return compile_stages(graph, Compiler(*machine))


def graphs(cases: Callable[[], Iterator[Case]]) -> Callable[[list[Machine], str], Found]:
    """A part of the sweep that runs graphs."""

    def run(given: list[Machine], only: str) -> Found:
        for case in cases():
            if only in case.name:
                for (features, threads), found in zip(given, problems(case, given), strict=True):
                    yield f"{case.name} on {features.name}, {threads} threads", found

    return run


def conformance(given: list[Machine], only: str) -> Found:
    """ONNX's own backend suite."""
    from tests.conformance import run
    from tests.conformance.left_out import LEFT_OUT

    cases = [c for c in run.cases() if c[1] not in LEFT_OUT and only in c[1]]
    for features, threads in given:
        with _settings(features, threads):
            for case in cases:
                _, name, outcome, detail = run.run_case(case)
                wrong = None if outcome == "passed" else detail
                yield f"{name} on {features.name}, {threads} threads", wrong


def models(given: list[Machine], only: str) -> Found:
    """Real models with recorded answers, where they are on this machine."""
    from tests.models.test_cpu_models import RECORDED, SHARED, test_recorded_answers_on_the_cpu

    for name in RECORDED:
        for features, threads in given if only in name and (SHARED / name).is_dir() else ():
            with _settings(features, threads):
                try:
                    test_recorded_answers_on_the_cpu(name)
                except Exception as e:
                    yield (
                        f"{name} on {features.name}, {threads} threads",
                        f"{type(e).__name__}: {e}",
                    )
                else:
                    yield f"{name} on {features.name}, {threads} threads", None


def _settings(features: Features, threads: int) -> Any:
    """Sessions run on this machine by default, small models on all of its threads too."""
    stack = mock.patch.dict(
        os.environ,
        MONOGRAPH_TARGET="cpu",
        MONOGRAPH_CPU_ISA=features.name,
        MONOGRAPH_THREADS=str(threads),
        MONOGRAPH_CACHE_DIR="",
    )
    return _Both(stack, mock.patch.object(runtime, "ALONE_SECONDS", 0.0))


class _Both:
    """Two patches as one."""

    def __init__(self, *patches: Any) -> None:
        self.patches = patches

    def __enter__(self) -> None:
        for patch in self.patches:
            patch.__enter__()

    def __exit__(self, *details: Any) -> None:
        for patch in reversed(self.patches):
            patch.__exit__(*details)


PARTS: dict[str, Callable[[list[Machine], str], Found]] = {
    "samples": graphs(sweep_cases.samples),
    "specials": graphs(sweep_cases.specials),
    "odd": graphs(sweep_cases.odd),
    "random": graphs(lambda: sweep_cases.random(SEED, GRAPHS)),
    "random-specials": graphs(lambda: sweep_cases.random_specials(SEED, GRAPHS)),
    "conformance": conformance,
    "models": models,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part")
    parser.add_argument("--features", action="append", help="only this instruction set")
    parser.add_argument("--threads", action="append", type=int, help="only this many threads")
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("-v", action="store_true", help="print the whole of what is wrong")
    options = parser.parse_args()
    chosen = [
        (f, t)
        for f, t in machines()
        if (not options.features or f.name in options.features)
        and (not options.threads or t in options.threads)
    ]
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONNX_HOME"] = home
        return 1 if _sweep(options.part or list(PARTS), chosen, options.only, options.v) else 0


def _sweep(parts: list[str], chosen: list[Machine], only: str, verbose: bool) -> int:
    """Runs parts and prints what is wrong and a table; how much is wrong."""
    listed = ", ".join(f"{f.name}/{t}" for f, t in chosen)
    print(f"instruction sets and threads: {listed}\n{'part':16}{'runs':>8}{'wrong':>8}{'s':>8}")
    total = 0
    for part in parts:
        started, counts = time.monotonic(), Counter[bool]()
        for name, wrong in PARTS[part](chosen, only):
            counts[wrong is None] += 1
            if wrong is not None:
                text = wrong if verbose else wrong.strip().splitlines()[-1][:200]
                print(f"WRONG {name}: {text}", flush=True)
        seconds = time.monotonic() - started
        print(f"{part:16}{counts.total():>8}{counts[False]:>8}{seconds:>8.0f}", flush=True)
        total += counts[False]
    return total


if __name__ == "__main__":
    sys.exit(main())
