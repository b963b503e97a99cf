"""Random graphs through the whole pipeline: structure and numbers stay right.

    python -m tests.fuzz.test_rewrites --seconds 300 --seed 1000

checks graph after graph, each from its own seed; a failure is shrunk and printed as text.
`MONOGRAPH_TEST_SEED=N pytest tests/fuzz/test_rewrites.py` starts at the graph of seed N.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, MonographError
from monograph.ir import Graph, verify
from monograph.passes.base import Environment, RulePass
from monograph.pipeline import PassOptions, all_passes, optimise
from monograph.rewrite import CPU_COST, GPU_COST, apply_rules
from monograph.runtime.numerics.bisect import NumericCheck, first_difference, run
from tests.fuzz.graphs import random_graph
from tests.fuzz.shrink import show, shrink
from tests.rules.checks import EDGES
from tests.samples import SEED

GRAPHS, SECONDS = 200, 6.0
"""The number of graphs a test checks; fewer on a slow machine."""
fired: Counter[str] = Counter()
CHANNELS_LAST = PassOptions({"choose_layout": {"layout": "channels_last"}})


def check_pipeline(graph: Graph, feeds: dict[str, Any]) -> None:
    """Every pass keeps the numbers, with either cost model."""
    numbers = NumericCheck(graph, feeds)
    for cost, options in ((CPU_COST, PassOptions()), (GPU_COST, CHANNELS_LAST)):
        environment = Environment(cost)
        optimise(graph, environment=environment, options=options, numbers=numbers)
        fired.update(environment.trace.counts())


def check_exact_rewrites(graph: Graph, feeds: dict[str, Any]) -> None:
    """Exact rewrites keep every bit, on edge values too."""
    edges = {n: _edges(np.asarray(x), i) for i, (n, x) in enumerate(feeds.items())}
    try:
        expected = run(graph, edges)
    except ExecutionError:
        return  # An op refuses such values.
    for _, step in all_passes():
        if isinstance(step, RulePass):
            after = apply_rules(graph, [r for r in step.rules if r.exact])
        elif step.exact:
            after = step.run(graph, Environment())
        else:
            continue
        verify(after)
        found = first_difference(graph, after, edges, exact=True, expected=expected)
        if found is not None:
            raise MonographError(f"pass {step.name}: {found}")
        graph = after


def _edges(data: np.ndarray, seed: int) -> np.ndarray:
    if data.dtype.kind not in "fV" or not data.size:
        return data
    generator = np.random.default_rng(seed)
    return generator.choice(EDGES, data.shape).astype(data.dtype)


CHECKS = {"pipeline": check_pipeline, "exact rewrites": check_exact_rewrites}


def problem_of(check: Any, graph: Graph, feeds: dict[str, Any]) -> str | None:
    try:
        check(graph, feeds)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def report(name: str, seed: int) -> str | None:
    """Return what is wrong with the graph of a seed, shrunk and as text; None where nothing is."""
    graph, feeds = random_graph(seed)
    check = CHECKS[name]
    problem = problem_of(check, graph, feeds)
    if problem is None:
        return None
    head = problem.split("\n")[0].split(": output")[0][:80]

    def fails(g: Graph, f: dict[str, Any]) -> bool:
        again = problem_of(check, g, f)
        return again is not None and again.startswith(head)

    small, arrays = shrink(graph, feeds, fails)
    final = problem_of(check, small, arrays)
    return f"{name}, MONOGRAPH_TEST_SEED={seed}\n{final}\n{show(small, arrays)}"


@pytest.mark.parametrize("name", CHECKS)
def test_random_graphs_stay_right(name: str) -> None:
    started = time.monotonic()
    for seed in range(SEED, SEED + GRAPHS):
        found = report(name, seed)
        assert found is None, found
        if time.monotonic() - started > SECONDS:
            break


def test_a_broken_graph_shrinks() -> None:
    """The shrunk graph keeps only what the failure needs."""
    graph, feeds = next(
        (g, f)
        for g, f in map(random_graph, range(1000))
        if _has(g, "sigmoid") and len(g.values) > 20
    )
    small, arrays = shrink(graph, feeds, lambda g, f: _has(g, "sigmoid"))
    assert _has(small, "sigmoid")
    assert len(small.values) == 2
    assert run(small, arrays)
    assert "sigmoid" in show(small, arrays)


def _has(graph: Graph, name: str) -> bool:
    return any(v.op.name == name for v in graph.values)


def known_rewrites() -> set[str]:
    """Rules, and passes without rules."""
    steps = [step for _, step in all_passes()]
    rules = {r.name for step in steps if isinstance(step, RulePass) for r in step.rules}
    return rules | {step.name for step in steps if not isinstance(step, RulePass)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--failures", type=int, default=5, help="stop after this many")
    options = parser.parse_args()
    started, seed, failures = time.monotonic(), options.seed, 0
    while time.monotonic() - started < options.seconds and failures < options.failures:
        for name in CHECKS:
            found = report(name, seed)
            if found is not None:
                failures += 1
                print(found, end="\n\n", flush=True)
        seed += 1
    print(f"{seed - options.seed} graphs from seed {options.seed}, {failures} failures")
    print("fired:", dict(fired.most_common()))
    print("never fired:", ", ".join(sorted(known_rewrites() - set(fired))))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
