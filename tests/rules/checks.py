"""Checks of a rule: before and after as whole graphs, and numbers against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monograph.ir import Graph, Input, TensorType, Value, evaluate, parse_type, verify
from monograph.rewrite import CPU_COST, CostModel, Rule, Trace, apply_rules
from monograph.runtime.feeds import Port
from monograph.runtime.input_ranges import input_ranges
from monograph.runtime.inputs import make_inputs
from monograph.runtime.numerics.bisect import first_difference

EDGES = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.5, -2.25)


def value(text: str = "f32[4, 9]", name: str = "x") -> Value:
    """An input of this type."""
    return Input(name, parse_type(text))()


def graph_of(*outputs: Value, origins: dict[Value, str] | None = None) -> Graph:
    """The graph of these outputs, its inputs found and put in order of their names."""
    named = tuple((f"y{i}", v) for i, v in enumerate(outputs))
    found = [v for v in Graph((), named).values if isinstance(v.op, Input)]
    inputs = tuple(sorted(found, key=lambda v: v.op.label))  # type: ignore[attr-defined]
    return Graph(inputs, named, origins=origins or {})


def random_feeds(graph: Graph, seed: int = 0, edges: bool = False) -> dict[str, np.ndarray]:
    """Arrays for a graph's inputs; with `edges`, floats are drawn from the edge values."""
    ports = [Port(n, t) for n, t in zip(graph.input_names, graph.input_types, strict=True)]
    feeds = dict(make_inputs(ports, {}, seed, analyse=lambda _: input_ranges(graph)).feeds)
    generator = np.random.default_rng(seed)
    for name, type_ in zip(graph.input_names, graph.input_types, strict=True):
        assert isinstance(type_, TensorType)
        if edges and type_.dtype.is_float:
            feeds[name] = generator.choice(EDGES, type_.static).astype(type_.dtype.numpy)
    return feeds


def check_rewrite(
    before: Graph,
    rules: Sequence[Rule],
    expected: Graph | None = None,
    *,
    cost: CostModel = CPU_COST,
) -> Graph:
    """Applies rules that must fire, compares with the expected graph, and checks the numbers.

    Exact rules must give the same bits on edge values. Reassociating ones may differ as roundings
    explain.
    """
    trace = Trace()
    after = verify(apply_rules(before, rules, cost=cost, trace=trace))
    assert trace.fired, "no rule fired; " + "; ".join(
        m.reason for r in rules for m in trace.nearest(r.name)
    )
    if expected is not None:
        assert after == expected, f"got\n{after}\nexpected\n{expected}"
    fired = {f.rule for f in trace.fired}
    exact = all(r.exact for r in rules if r.name in fired)
    check_numbers(before, after, exact=exact)
    return after


def check_numbers(before: Graph, after: Graph, *, exact: bool) -> None:
    """Both graphs give the same numbers on random inputs (edge values too, where exact)."""
    for seed, edges in ((0, False), (1, False), (2, True)):
        if edges and not exact:
            continue
        feeds = random_feeds(before, seed, edges)
        if not exact:
            wrong = first_difference(before, after, feeds, exact=False)
            assert wrong is None, wrong
            continue
        for a, b in zip(evaluate(before, feeds), evaluate(after, feeds), strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            same_bits(a, b)


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a, b)
    if a.dtype.kind == "f":
        numbers = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a)[numbers], np.signbit(b)[numbers])


def check_declines(before: Graph, rules: Sequence[Rule], reason: str, **options: object) -> None:
    """No rule fires, and the nearest miss of one of them says this."""
    trace = Trace()
    after = apply_rules(before, rules, trace=trace, **options)  # type: ignore[arg-type]
    assert not trace.fired, f"fired: {trace.fired}"
    assert after == before
    reasons = [m.reason for r in rules for m in trace.nearest(r.name)]
    assert any(reason in r for r in reasons), f"expected {reason!r} among {reasons}"
