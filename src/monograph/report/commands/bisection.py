"""The command `monograph verify --bisect`: find the wrong pass, rule or step.

`verify --bisect` begins with the passes, `verify --per-step` with the steps of compiled code. Each
goes on with the other where its own part is right and outputs differ, so that both name one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monograph.config import Config, make_config
from monograph.errors import ConfigError
from monograph.ir import Graph
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise, target_cost, target_options
from monograph.report.commands.execute import (
    Notes,
    RunRequest,
    VerifyResult,
    advising,
    compiled_graph,
    verify_model,
)
from monograph.runtime.cpu.instrumented import OpenGraph, compile_stepped
from monograph.runtime.dynamic.staged import compile_stages
from monograph.runtime.executable import EXACT, Outputs
from monograph.runtime.inputs import Chosen
from monograph.runtime.numerics.bisect import NumericCheck, PassError
from monograph.runtime.numerics.compare import Difference, compare_outputs
from monograph.runtime.numerics.stepwise import StepCheck, StepChecker
from monograph.session import Session

COSTS = ("cpu", "gpu")
"""The targets that have a cost model."""
NOT_RUN = "code for a GPU was not run: compare it with `monograph verify --target gpu`"
OWN_PASSES = "compiled code was not compared: it is made by all passes, with their own options"


@dataclass(frozen=True)
class PassesChecked:
    """The result of comparing the numbers after every pass."""

    verified: tuple[str, ...]
    """The passes that keep the numbers, in order."""
    skipped: Sequence[str]
    """The random ops; with them only the structure is checked."""
    fault: PassError | None


@dataclass(frozen=True)
class StepsChecked:
    """The result of comparing every step of compiled code."""

    checks: tuple[StepCheck, ...]
    stages: int
    """The number of programs of the run; more than one if data decide shapes."""
    launches: tuple[Difference, ...]
    """The outputs of one launch per step, compared with those of one launch for all.

    Both are exact code, or both code for any shape: these may add in another order.
    """

    @property
    def first_wrong(self) -> StepCheck | None:
        return next((c for c in self.checks if not c.ok), None)

    @property
    def first_drift(self) -> StepCheck | None:
        return next((c for c in self.checks if c.drifted), None)


@dataclass(frozen=True)
class BisectResult:
    """The result of checking all passes, then the compiled code."""

    target: str
    passes: PassesChecked
    steps: StepsChecked | None = None
    """The steps of compiled code, if all passes are right and outputs differ."""
    outputs: VerifyResult | None = None
    """The outputs compared with the reference, if all passes are right."""
    left_out: str | None = None
    """The reason why compiled code was not compared."""

    @property
    def ok(self) -> bool:
        return self.passes.fault is None and (self.outputs is None or self.outputs.ok)


def config_of(request: RunRequest) -> Config:
    """Return the configuration of a session of a request; the default target is the CPU."""
    name = request.target or "cpu"
    if name.partition(":")[0] not in COSTS:
        raise ConfigError("no cost model for this target", expected=" | ".join(COSTS), given=name)
    return make_config(target=name, **request.options)


def bound_inputs(request: RunRequest, note: Notes) -> tuple[Session, Graph, Mapping[str, Any]]:
    """Return a session, its graph with all dimensions bound, and inputs of these sizes."""
    session = replace(request, target=None).load()
    made = request.inputs(session, note)
    with advising(made):
        return session, session.bound_graph(made.feeds), made.feeds


def check_passes(
    graph: Graph,
    feeds: Mapping[str, Any],
    config: Config,
    options: PassOptions | None = None,
    any_order: Collection[str] = (),
) -> PassesChecked:
    """Compare the numbers after every pass, with the pass options of a session.

    `options` override those of the session.
    """
    numbers = NumericCheck(graph, feeds, any_order=any_order)
    verified: list[str] = []
    fault: PassError | None = None
    try:
        optimise(
            graph,
            environment=Environment(target_cost(config)),
            options=target_options(config, options),
            numbers=numbers,
            observe=lambda stage, step, after: verified.append(step.name),
        )
    except PassError as e:
        fault = e
    return PassesChecked(tuple(verified), numbers.drawn, fault)


def check_steps(session: Session, feeds: Mapping[str, Any]) -> StepsChecked:
    """Run a model step by step on the CPU, and every step by the reference."""
    checker, compiler = StepChecker(), session.compiler()
    graph = compiled_graph(session, feeds)
    stepped = compile_stepped(graph, compiler, checker.observe)
    own = isinstance(graph, OpenGraph) or session.executable(feeds).tier == EXACT
    run: Callable[[Mapping[str, Any]], Outputs] = session.run
    if not own:
        run = compile_stages(session.optimised_graph(feeds), compiler).run
    names = [p.name for p in session.outputs]
    apart = dict(zip(names, stepped(feeds), strict=True))
    whole = dict(zip(names, run(feeds), strict=True))
    launches = tuple(compare_outputs(apart, whole, {}))
    return StepsChecked(tuple(checker.checks), checker.stages, launches)


def bisect_model(
    request: RunRequest, options: PassOptions, note: Notes, any_order: Collection[str] = ()
) -> BisectResult:
    """Compare the numbers after every pass, then the outputs, then the steps."""
    config = config_of(request)
    target = config.target
    _, graph, feeds = bound_inputs(request, note)
    passes = check_passes(graph, feeds, config, options, any_order)
    if passes.skipped:
        drawn = ", ".join(passes.skipped)
        note(f"the model draws random numbers ({drawn}): only its structure is checked")
    if passes.fault is not None or passes.skipped:
        return BisectResult(target, passes)
    if target != "cpu" or options != PassOptions():
        return BisectResult(target, passes, left_out=NOT_RUN if target != "cpu" else OWN_PASSES)
    again = replace(request, target=target, given=dict(feeds), archive=None, chosen=Chosen())
    outputs = verify_model(again, None, _silent, any_order=any_order)
    if outputs.ok:
        return BisectResult(target, passes, outputs=outputs)
    return BisectResult(target, passes, check_steps(again.load(), feeds), outputs)


def check_passes_of(
    session: Session, outputs: VerifyResult, any_order: Collection[str] = ()
) -> PassesChecked:
    """Compare the numbers after the passes of a session, on the inputs of a comparison."""
    feeds = outputs.inputs.feeds
    return check_passes(session.bound_graph(feeds), feeds, session.config, any_order=any_order)


def _silent(_: str) -> None:
    """Ignore a note that was printed before."""
