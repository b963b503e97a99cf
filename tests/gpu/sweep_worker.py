"""A part of the GPU target's sweep, in a process of its own: see `tests.gpu.sweep`.

Prints a line of JSON when a case begins and another when it has ended, so that what a crash or a
limit took with it is known by name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from monograph.errors import MonographError, UnsupportedError
from monograph.ir import Graph, evaluate
from monograph.runtime.numerics.bisect import first_wrong
from tests.cpu import sweep_cases
from tests.cpu.sweep_cases import Case
from tests.rules import checks
from tests.rules.checks import random_feeds
from tests.samples import SEED

GRAPHS = 150
"""Random graphs of a whole sweep."""
BROKEN = ("CUDA", "illegal", "misaligned", "unspecified launch failure")
"""Words of an error after which a device's context is of no use."""
Check = Callable[[], "str | None"]
"""Runs a case; what is wrong, None where nothing is."""


def target() -> str:
    """The target of sessions: a GPU, or the interpreter in its place."""
    on_device = os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda"
    return "gpu" if on_device else "gpu:interpreter"


def graphs(cases: Callable[[], Iterator[Case]]) -> Callable[[], Iterator[tuple[str, Check]]]:
    """A part of the sweep that runs graphs as they are."""

    def listed() -> Iterator[tuple[str, Check]]:
        for case in cases():
            yield case.name, lambda case=case: problem(case)  # type: ignore[misc]

    return listed


def problem(case: Case) -> str | None:
    """Return what is wrong with a graph on the device."""
    from monograph.codegen.triton.module.select import GpuTarget
    from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
    from tests.gpu.against import device, restart_turns
    from tests.program.unsplit import unsplit

    names, expected, refused = case.graph.output_names, None, ""
    restart_turns(case.graph)
    with np.errstate(all="ignore"):
        try:
            expected = dict(zip(names, evaluate(case.graph, case.feeds), strict=True))
        except MonographError as e:
            refused = str(e)
        try:
            with unsplit(GpuTarget):
                module = compile_for_gpu(case.graph, device().arch)
            restart_turns(case.graph)
            given = GpuExecutable(module, device()).run(case.feeds)
        except UnsupportedError:
            raise
        except MonographError:
            if expected is None:
                return None
            raise
        if expected is None:
            return f"ran, where the reference says: {refused}"
        made = dict(zip(names, given, strict=True))
        wrong = first_wrong(case.graph, case.feeds, made, expected)
    if wrong is None:
        return None
    return f"{wrong.name}: {wrong.problem} at {wrong.worst} {wrong.given} for {wrong.expected}"


def rule_cases() -> Iterator[Case]:
    """The graphs that the tests of rules show, before and after."""
    import pytest

    found: dict[str, Graph] = {}

    class Listener:
        name = ""

        def pytest_runtest_call(self, item: Any) -> None:
            self.name = item.name

    listener = Listener()
    plain = checks.check_numbers

    def heard(before: Graph, after: Graph, **options: Any) -> None:
        for which, graph in (("before", before), ("after", after)):
            found[f"{listener.name}, {which}, {len(found)}"] = graph
        plain(before, after, **options)

    with mock.patch.object(checks, "check_numbers", heard), open(os.devnull, "w") as nothing:
        shown, sys.stdout = sys.stdout, nothing
        try:
            pytest.main(["-q", "-p", "no:cacheprovider", "tests/rules"], [listener])
        finally:
            sys.stdout = shown
    for name, graph in found.items():
        if all(hasattr(t, "static") for t in graph.input_types):
            yield Case(name, graph, random_feeds(graph, SEED))


def conformance() -> Iterator[tuple[str, Check]]:
    """ONNX's own backend suite."""
    from tests.conformance import run
    from tests.conformance.left_out import LEFT_OUT

    os.environ |= {"MONOGRAPH_TARGET": target(), "MONOGRAPH_TUNE": "off"}

    def check(case: tuple[str, str]) -> str | None:
        _, _, outcome, detail = run.run_case(case)
        return None if outcome == "passed" else detail

    for case in run.cases():
        if case[1] not in LEFT_OUT:
            yield case[1], lambda case=case: check(case)  # type: ignore[misc]


def models() -> Iterator[tuple[str, Check]]:
    """Real models in f32 and f16, where they are on this machine."""
    from tests.gpu.real_models import FOLDERS, PRECISIONS, problem_of

    for folder in FOLDERS:
        for precision in PRECISIONS:
            yield (
                f"{folder.name} in {precision}",
                lambda folder=folder, precision=precision: problem_of(folder, precision, target()),  # type: ignore[misc]
            )


PARTS: dict[str, Callable[[], Iterator[tuple[str, Check]]]] = {
    "models": models,
    "samples": graphs(sweep_cases.samples),
    "odd": graphs(sweep_cases.odd),
    "rules": graphs(rule_cases),
    "random": graphs(lambda: sweep_cases.random(SEED, GRAPHS)),
    "conformance": conformance,
    "specials": graphs(sweep_cases.specials),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("--share", type=int, default=0, help="which of the shares to do")
    parser.add_argument("--shares", type=int, default=1)
    parser.add_argument("--begin", type=int, default=0, help="the first case of the share")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers

    def tell(**line: Any) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"ONNX_HOME": home, "MONOGRAPH_CACHE_DIR": ""}
        listed = [(p, *case) for p in options.parts for case in PARTS[p]()]
        chosen = [c for c in listed if options.only in c[1]]
        own = chosen[options.share :: options.shares]
        for number, (part, name, check) in enumerate(own[options.begin :], options.begin):
            tell(begins=name, part=part, number=number)
            outcome, why = _outcome(check)
            tell(ends=name, part=part, outcome=outcome, why=why)
            if outcome == "wrong" and any(word in why for word in BROKEN):
                sys.exit(3)


def _outcome(check: Check) -> tuple[str, str]:
    try:
        wrong = check()
    except UnsupportedError as e:
        return "refused", str(e)
    except Exception:  # whatever it is, the sweep goes on
        return "wrong", traceback.format_exc(limit=-6)
    if wrong is not None and "UnsupportedError" in wrong:
        return "refused", wrong
    return ("right", "") if wrong is None else ("wrong", wrong)


if __name__ == "__main__":
    main()
