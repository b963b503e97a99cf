"""The command `monograph explain`: the rewrites of a model, and the nearest misses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from monograph.errors import ConfigError, MonographError, did_you_mean
from monograph.ir import Graph
from monograph.ir.graph import all_values
from monograph.ir.op import STRUCTURE
from monograph.passes.base import ORIGINS_BETWEEN, Environment, Pass, RulePass
from monograph.pipeline import (
    PassOptions,
    chosen_passes,
    optimise,
    target_cost,
    target_options,
)
from monograph.report.commands.bisection import bound_inputs, config_of
from monograph.report.commands.execute import Notes, RunRequest, about_sizes
from monograph.report.commands.launch_regions import Launching, launching_of
from monograph.rewrite import CostModel, Fired, Missed, Trace

IMPORT = "import"
"""The name of the state before all passes."""


@dataclass(frozen=True)
class PassRecord:
    """One pass as it ran. A pass that runs again is labelled NAME:2."""

    stage: str
    name: str
    label: str
    purpose: str
    seconds: float
    fired: tuple[Fired, ...]
    graph: Graph
    """The graph after the pass."""


@dataclass
class RuleRecord:
    """One rule, or one pass without rules: its rewrites and nearest misses."""

    name: str
    equation: str
    exact: bool
    passes: list[str] = field(default_factory=list)
    fired: list[tuple[str, Fired]] = field(default_factory=list)
    """(label of the pass, rewrite)."""
    misses: list[Missed] = field(default_factory=list)
    """The nearest misses of all passes that tried the rule, nearest first."""


@dataclass(frozen=True)
class Explanation:
    """A model before, between and after the passes."""

    target: str
    before: Graph
    passes: tuple[PassRecord, ...]
    rules: dict[str, RuleRecord]
    launching: Launching | None = None
    """The launches of the final graph, if they were asked for and are known."""

    @property
    def after(self) -> Graph:
        return self.passes[-1].graph if self.passes else self.before

    @property
    def stages(self) -> dict[str, Graph]:
        """Return the graph after the import and after each stage."""
        return {IMPORT: self.before} | {p.stage: p.graph for p in self.passes}

    def graph_after(self, label: str) -> Graph:
        """Return the graph after a pass or a stage."""
        found = {p.label: p.graph for p in self.passes} | self.stages
        if label not in found:
            raise _unknown("no such pass", label, found)
        return found[label]

    def rules_of(self, name: str) -> list[RuleRecord]:
        """Return the rule of this name, or the rules of the pass of this name."""
        if name in self.rules:
            return [self.rules[name]]
        labels = {p.label for p in self.passes if name in (p.name, p.label)}
        if found := [r for r in self.rules.values() if labels.intersection(r.passes)]:
            return found
        raise _unknown("no such rule or pass", name, {*self.rules, *(p.name for p in self.passes)})


def check_names(options: PassOptions, rule: str | None = None, after: str | None = None) -> None:
    """Refuse unknown rules and passes before anything runs."""
    rules: dict[str, RuleRecord] = {}
    labels: dict[str, None] = {}
    count: Counter[str] = Counter()
    stages = {IMPORT: None}
    for stage, step in chosen_passes(options):
        _register(rules, step)
        labels[_label(step, count)] = stages[stage] = None
    names = {*rules, *labels}
    if rule is not None and rule not in names:
        raise _unknown("no such rule or pass", rule, names)
    if after is not None and after not in labels | stages:
        raise _unknown("no such pass", after, labels | stages)


def _unknown(problem: str, given: str, known: Collection[str]) -> ConfigError:
    """Suggest a name that looks like the given one, or list all names."""
    guess = did_you_mean([given], known)
    if guess is not None:
        return ConfigError(f"{problem}: {guess}", given=given)
    listed = known if isinstance(known, dict) else sorted(known)
    return ConfigError(problem, expected=", ".join(listed), given=given)


def _label(step: Pass, count: Counter[str]) -> str:
    """Return the name of a pass, with a number if it has run before."""
    count[step.name] += 1
    return step.name if count[step.name] == 1 else f"{step.name}:{count[step.name]}"


def explain_model(
    request: RunRequest, options: PassOptions, note: Notes, *, launches: bool = False
) -> Explanation:
    """Optimise a model and record every pass and rule.

    launches: tells too how what comes out is launched, which takes a while for large models.
    """
    config = config_of(request)
    target = config.target
    _, graph, _ = bound_inputs(request, about_sizes(note))
    found = explain_graph(graph, target, target_cost(config), target_options(config, options))
    if not launches:
        return found
    try:
        return replace(found, launching=launching_of(found.after, target))
    except MonographError as e:  # without some passes there may be nothing to launch
        note(f"how it is launched cannot be told: {e.message}")
        return found


def explain_graph(graph: Graph, target: str, cost: CostModel, options: PassOptions) -> Explanation:
    """Optimise a graph and record every pass and rule."""
    environment = Environment(cost, Trace())
    rules: dict[str, RuleRecord] = {}
    records: list[PassRecord] = []
    count: Counter[str] = Counter()
    for _, step in chosen_passes(options):
        _register(rules, step)
    started = time.perf_counter()

    def observe(stage: str, step: Pass, after: Graph) -> None:
        nonlocal started
        taken = time.perf_counter() - started
        label = _label(step, count)
        trace, environment.trace = environment.trace, Trace()
        records.append(
            PassRecord(stage, step.name, label, _purpose(step), taken, tuple(trace.fired), after)
        )
        _collect(rules, step, label, trace)
        started = time.perf_counter()

    optimise(graph, environment=environment, options=options, observe=observe)
    return Explanation(target, graph, tuple(records), rules)


def _register(rules: dict[str, RuleRecord], step: Pass) -> None:
    """Add a record for every rule of a pass."""
    if isinstance(step, RulePass):
        for rule in step.rules:
            rules.setdefault(rule.name, RuleRecord(rule.name, rule.equation, rule.exact))
    else:
        rules.setdefault(step.name, RuleRecord(step.name, _purpose(step), step.exact))


def _collect(rules: dict[str, RuleRecord], step: Pass, label: str, trace: Trace) -> None:
    names = {r.name for r in step.rules} if isinstance(step, RulePass) else {step.name}
    for name in names:
        rules[name].passes.append(label)
        rules[name].misses = _nearest(name, rules[name].misses, trace)
    for done in trace.fired:
        # A pass may note its work under a name of its own.
        record = rules.setdefault(done.rule, RuleRecord(done.rule, _purpose(step), step.exact))
        record.fired.append((label, done))


def _nearest(name: str, earlier: list[Missed], trace: Trace) -> list[Missed]:
    """Return the misses of one more pass with those of earlier ones, nearest first.

    An earlier miss goes where the rule has fired since, or declined again.
    """
    found = trace.nearest(name)
    done = {n for f in trace.fired if f.rule == name for n in f.origin.split(ORIGINS_BETWEEN)}
    again = {m.origin for m in found}
    kept = [
        m
        for m in earlier
        if m.origin not in again and not done.issuperset(m.origin.split(ORIGINS_BETWEEN))
    ]
    return sorted(found + kept, key=lambda m: -m.score)


def _purpose(step: Pass) -> str:
    return (type(step).__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()


def op_counts(graph: Graph) -> Counter[str]:
    """Count the values that compute something by op, with sub-graphs."""
    return Counter(v.op.name for v in all_values(graph) if not isinstance(v.op, STRUCTURE))
