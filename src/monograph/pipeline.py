"""The order of passes, in named stages, one line a pass; and the runner that checks each.

    graph = optimise(graph, environment=Environment(CPU_COST))

`program/lowering.py` states the steps that follow, from the optimised graph to a program.

`target_options` and `target_cost` are the configuration of a session's target. Sessions, `inspect`,
`explain`, `verify` and profiles ask them, so that each reports what runs.

`PassOptions` replace options of passes by name, leave passes out, or stop after one. Each pass is
checked for structure; with `verify_passes` its numbers are compared with the reference too, and
the pass and the rule that broke them are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from monograph.config import Config
from monograph.errors import ConfigError, MonographError, VerifyError, did_you_mean
from monograph.ir import Graph
from monograph.passes.base import Environment, Pass, run_pass
from monograph.passes.choose_layout import ChooseLayout
from monograph.passes.fold_constants import FoldConstants
from monograph.passes.fuse_decoding import FuseDecoding
from monograph.passes.hoist_invariants import HoistInvariants
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.passes.horizontal.fuse_shared_input import FuseEmbeddings, FuseSharedInput
from monograph.passes.horizontal.hoist_slices import HoistRows, HoistSlices
from monograph.passes.precision.convert_precision import ConvertPrecision
from monograph.passes.rule_passes import (
    CollapseViews,
    ComposeConvs,
    FoldNorms,
    FoldScales,
    FoldSizes,
    FoldZeroPoints,
    FuseDotRows,
    HoistConvs,
    RecogniseActivations,
    RecogniseAttention,
    RecogniseLookups,
    RecogniseNorms,
    Simplify,
)
from monograph.rewrite import CPU_COST, CostModel
from monograph.runtime.cpu.host_cost import host_cost
from monograph.runtime.numerics.bisect import NumericCheck, check_pass


@dataclass(frozen=True)
class Stage:
    """Passes that belong together, in order."""

    name: str
    passes: tuple[Pass, ...]


STAGES: tuple[Stage, ...] = (
    Stage(
        "clean",
        (
            FoldZeroPoints(),
            FoldConstants(),
            FoldSizes(),
            Simplify(),
            RecogniseAttention(),
            CollapseViews(),
            HoistInvariants(),
            FoldConstants(),  # constants that loops captured are with their readers now
            RecogniseLookups(),
        ),
    ),
    Stage(
        "absorb",
        (
            FoldScales(),
            ComposeConvs(),
            RecogniseNorms(),
        ),
    ),
    Stage("precision", (ConvertPrecision(),)),
    Stage(
        "join",
        (
            BatchTowers(),
            FuseSharedInput(),
            FuseEmbeddings(),
            HoistSlices(),
            HoistRows(),
            CollapseViews(),
            HoistConvs(),
            ComposeConvs(),  # a join may leave a convolution with one reader
        ),
    ),
    Stage(
        "recognise",
        (
            RecogniseActivations(),
            RecogniseNorms(),
            FoldScales(),
            FoldNorms(),
            FuseDecoding(),
            FuseDotRows(),
        ),
    ),
    Stage("layout", (ChooseLayout(),)),
)


@dataclass(frozen=True)
class PassOptions:
    """The passes that run, and their options."""

    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()
    until: str | None = None

    def __post_init__(self) -> None:
        named = {*self.overrides, *self.disabled, *([self.until] if self.until else [])}
        known = {p.name for _, p in all_passes()}
        if unknown := sorted(named - known):
            raise ConfigError(
                "no such pass",
                expected=", ".join(sorted(known)),
                given=", ".join(unknown),
                hint=did_you_mean(unknown, known),
            )
        for name, options in self.overrides.items():
            _check_options(name, options)


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses options that a pass does not have, and values that are not of their kind."""
    step = Pass.registry[name]
    kinds = get_type_hints(step)
    allowed = [f.name for f in fields(step)]
    if wrong := sorted(set(options) - set(allowed)):
        raise ConfigError(
            f"pass {name} has no such option",
            expected=", ".join(allowed) or "none",
            given=", ".join(wrong),
            hint=did_you_mean(wrong, allowed),
        )
    for option, value in options.items():
        kind = kinds[option]
        # A whole number serves as a float; true is no number.
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ConfigError(
                f"option {option} of pass {name} is not of its kind",
                expected=kind.__name__,
                given=value,
            )


def all_passes() -> list[tuple[str, Pass]]:
    """(stage, pass) in the order they run."""
    return [(stage.name, p) for stage in STAGES for p in stage.passes]


def chosen_passes(options: PassOptions) -> list[tuple[str, Pass]]:
    """The passes that run under these options, with their options filled in."""
    chosen = []
    for stage, step in all_passes():
        if step.name not in options.disabled:
            chosen.append((stage, replace(step, **options.overrides.get(step.name, {}))))
        if step.name == options.until:
            break
    return chosen


def target_options(config: Config, given: PassOptions | None = None) -> PassOptions:
    """Return the pass options of a configuration's target; `given` ones take precedence."""
    own: dict[str, dict[str, Any]] = {}
    if config.target != "reference":
        own["choose_layout"] = {"layout": "channels_last", "planes": config.target == "cpu"}
    if config.on_gpu and config.precision != "f32":
        own["convert_precision"] = {"to": config.precision}
    given = given or PassOptions()
    known = {step.name for _, step in all_passes()}
    overrides = {name: options for name, options in own.items() if name in known}
    for name, options in given.overrides.items():
        overrides[name] = {**overrides.get(name, {}), **options}
    return replace(given, overrides=overrides)


def target_cost(config: Config) -> CostModel:
    """Return the cost model of a configuration's target.

    That of the CPU is measured once, that of a GPU follows its description.
    """
    if config.on_gpu:
        from monograph.runtime.gpu.driver.device_cost import device_cost

        return device_cost(config)
    return host_cost(config) if config.target == "cpu" else CPU_COST


def optimise(
    graph: Graph,
    *,
    environment: Environment | None = None,
    options: PassOptions | None = None,
    observe: Callable[[str, Pass, Graph], None] | None = None,
    verify_passes: bool = False,
    numbers: NumericCheck | None = None,
) -> Graph:
    """The graph after every chosen pass; `observe` sees (stage, pass, graph) after each.

    The structure is checked after every pass. With `verify_passes` the numbers are too, against
    the reference on random inputs (or on those of `numbers`): bit for bit where every rewrite of
    the pass is exact, within a derived tolerance otherwise. What breaks raises PassError, which
    names the pass and the rewrite.
    """
    environment = environment or Environment()
    if verify_passes and numbers is None:
        numbers = NumericCheck(graph)
    for stage, step in chosen_passes(options or PassOptions()):
        already = len(environment.trace.fired)
        try:
            after = run_pass(step, graph, environment)
        except MonographError as e:
            raise e.at(op=f"pass {step.name}") from None
        except Exception as e:
            raise VerifyError(f"pass {step.name} fails: {type(e).__name__}: {e}") from e
        fired = environment.trace.fired[already:]
        check_pass(stage, step, graph, after, fired, environment.cost, numbers)
        graph = after
        if observe is not None:
            observe(stage, step, graph)
    return graph


_OPTION = re.compile(r"([a-z0-9_]+)\{(.*)\}\Z")


def parse_pass_options(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options given as `name{field=value, field=value}`."""
    result: dict[str, dict[str, Any]] = {}
    for text in texts:
        found = _OPTION.match(text.strip())
        if found is None:
            raise ConfigError(
                "not a pass option",
                expected="name{field=value, ...}",
                given=text,
                hint="quote it: shells have a use of their own for braces",
            )
        options = result.setdefault(found[1], {})
        for part in filter(None, (p.strip() for p in found[2].split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                raise ConfigError("not a pass option", expected="field=value", given=part)
            options[name.strip()] = _parse_value(value.strip())
    return result


def _parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
