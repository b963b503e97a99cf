"""The command `monograph verify --replay`: compare replayed runs with others, bit for bit.

On a GPU one session replays graphs and another launches every kernel on its own (`capture="off"`).
On the CPU a native function that has run before is compared with that of a fresh session. Results
are compared after the last run, which also finds a run that overwrites earlier results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from monograph.errors import ConfigError, MonographError
from monograph.ir.graph import all_values
from monograph.ops.random import Random
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.input_files import draw_inputs
from monograph.report.render.console import table
from monograph.report.render.tables import count_text
from monograph.runtime.counts import OFF
from monograph.runtime.numerics.compare import flatten
from monograph.session import Session

RANDOM_INPUTS = 8
OTHER_SIZE = 2
"""The size of open dimensions in the runs with other shapes."""
Feeds = dict[str, Any]


@dataclass
class Case:
    """A group of runs with the same kind of inputs."""

    name: str
    runs: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReplayResult:
    """The compared runs, and the counters of the session that replays."""

    target: str
    against: str
    cases: tuple[Case, ...]
    stats: Mapping[str, Any]
    problems: tuple[str, ...]
    """The reasons why runs were not replayed."""
    left_out: tuple[str, ...] = ()
    """The cases without runs, with the reason."""

    @property
    def ok(self) -> bool:
        return not self.problems and not any(c.problems for c in self.cases)

    @property
    def runs(self) -> int:
        return sum(c.runs for c in self.cases)


@dataclass(frozen=True)
class _Run:
    case: Case
    label: str
    given: Mapping[str, Any]
    expected: Mapping[str, Any]


def verify_replay(request: RunRequest, note: Notes, inputs: int = RANDOM_INPUTS) -> ReplayResult:
    """Run a model on several inputs, with and without replay, and compare all bits."""
    session = request.load()
    config = session.config
    if config.target == "reference":
        raise ConfigError(
            "the reference has nothing to replay", expected="cpu | gpu", given=config.target
        )
    if config.capture == OFF:
        problem = "nothing is replayed with --capture off"
        return ReplayResult(config.target, "nothing", (), session.stats, (problem,))
    made = request.inputs(session, note)
    with advising(made):
        drawn = _random_ops(session, made.feeds)
    if config.on_gpu:
        eager = request.load(capture="off")
        against, other = 'capture="off"', lambda: eager
    elif drawn:  # which numbers come next is counted in a session
        beside = request.load()
        against, other = "a session beside it", lambda: beside
    else:
        against, other = "fresh sessions", request.load
    left_out: list[str] = []
    with advising(made):
        runs = list(_runs(request, session, other, left_out, inputs))
    for run in runs:
        run.case.runs += 1
        run.case.problems += [f"{run.label}: {p}" for p in differing(run.given, run.expected)]
    cases = tuple({id(r.case): r.case for r in runs}.values())
    stats = session.stats
    problems = tuple(_not_replayed(stats, len(runs)))
    return ReplayResult(config.target, against, cases, stats, problems, tuple(left_out))


def _random_ops(session: Session, feeds: Feeds) -> bool:
    """Tell whether a model draws random numbers; refuse one whose sessions draw different ones."""
    drawn = [v.op for v in all_values(session.graph_for(feeds)) if isinstance(v.op, Random)]
    if any(op.seed is None for op in drawn):
        raise ConfigError(
            "the model draws random numbers without a seed: no two runs of it agree",
            given=", ".join(sorted({op.name for op in drawn})),
            hint="give its random nodes a seed",
        )
    return bool(drawn)


def _not_replayed(stats: Mapping[str, Any], runs: int) -> Iterator[str]:
    """Yield the reasons why the comparison tested no replay: runs of more than one launch."""
    fallbacks = stats.get("fallbacks", {})
    for reason, count in fallbacks.items():
        yield f"{count_text(count, 'run')} took more than one launch: {reason}"
    if not stats.get("replays") or sum(fallbacks.values()) >= runs:
        yield "no run was one launch"


def _runs(
    request: RunRequest,
    session: Session,
    other: Callable[[], Session],
    left_out: list[str],
    inputs: int,
) -> Iterator[_Run]:
    """Yield all runs in order; all feeds are kept, so that addresses differ.

    left_out: receives the cases without runs, with the reason.
    """
    every = [_varied(request, session, seed) for seed in range(inputs)]
    place = None if session.gpu is None else session.gpu.place
    on_device = [] if place is None else [_on_device(f, place) for f in every]

    def run(case: Case, label: str, feeds: Feeds) -> _Run:
        return _Run(case, label, _outputs(session, feeds), _outputs(other(), feeds))

    host = Case("arrays of the host")
    for number, feeds in enumerate(every):
        yield run(host, f"input {number}", feeds)
    same = Case("the same arrays again")
    for number in range(2):
        yield run(same, f"run {number}", every[0])
    moved, again = Case("device tensors, each elsewhere"), Case("the same device tensors again")
    for number, feeds in enumerate(on_device):
        yield run(moved, f"input {number}", feeds)
    for number, feeds in enumerate(on_device[:1] * 2):
        yield run(again, f"run {number}", feeds)
    if len(session.inputs) > 1:
        turned = Case("inputs in another order")
        for number, feeds in enumerate((on_device or every)[:2]):
            yield run(turned, f"input {number}", dict(reversed(feeds.items())))
    else:
        left_out.append("inputs in another order: the model has fewer than two")
    sizes = Case("two shapes in turns")
    resized = _resized(request, session)
    if isinstance(resized, str):
        left_out.append(f"{sizes.name}: {resized}")
        return
    try:
        _outputs(other(), resized)
    except MonographError as e:
        left_out.append(f"{sizes.name}: the model does not take other sizes ({e.message})")
        return
    for number in range(4):
        yield run(sizes, f"run {number}", every[0] if number % 2 else resized)


def _varied(request: RunRequest, session: Session, seed: int) -> Feeds:
    """Return inputs for a seed: given floats are scaled, given integers are kept."""
    feeds = replace(request, seed=request.seed + seed).inputs(session, lambda _: None).feeds
    if seed == 0:
        return feeds
    given = request.inputs(session, lambda _: None)
    rng = np.random.default_rng(seed)
    for name, x in feeds.items():
        if name in given.random or not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            continue
        feeds[name] = (x * rng.uniform(0.5, 1.5, x.shape)).astype(x.dtype)
    return feeds


def _resized(request: RunRequest, session: Session) -> Feeds | str:
    """Return inputs with other sizes of open dimensions, or the reason why there are none."""
    made = request.inputs(session, lambda _: None)
    if session.packaged_sizes:
        return "a package has code for its own sizes only"
    if not made.assumed:
        return "no open dimension is left to size (--inputs, --input and --dim fix theirs)"
    given = {n: x for n, x in made.feeds.items() if n not in made.drawn}
    return draw_inputs(session, given, request.seed, OTHER_SIZE, request.chosen).feeds


def _on_device(feeds: Feeds, place: Any) -> Feeds:
    """Return feeds as tensors on the device; values that no tensor can hold stay as they are."""
    from monograph.ir import from_numpy as type_of
    from monograph.runtime.gpu.tensors import from_numpy, torch_type

    found = {}
    for name, x in feeds.items():
        if isinstance(x, np.ndarray) and x.dtype != object:
            flat = from_numpy(x).clone().to(place)
            x = flat.view(torch_type(type_of(x.dtype))).reshape(x.shape)
        found[name] = x
    return found


def _outputs(session: Session, feeds: Feeds) -> dict[str, Any]:
    return dict(zip((p.name for p in session.outputs), session.run(feeds), strict=True))


def differing(given: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the outputs with different bits, and the number of different elements."""
    left, right = flatten(given), flatten(expected)
    found = [f"{place} is on one side only" for place in left.keys() ^ right.keys()]
    for place in [p for p in left if p in right]:
        a, b = _array(left[place]), _array(right[place])
        if a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"{place}: {a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}")
        elif count := _different(a, b):
            found.append(f"{place}: {count:,} of {a.size:,} elements have other bits")
    return found


def _array(x: Any) -> Any:
    if hasattr(x, "data_ptr"):
        from monograph.runtime.gpu.ports import to_host

        return to_host(x)
    return np.asarray(x)


def _different(a: Any, b: Any) -> int:
    if a.dtype.kind in "OUST":
        return int((a != b).sum())
    rows = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    left, right = (r.reshape(a.size, -1) if a.size else r.reshape(0, 1) for r in rows)
    return int((left != right).any(axis=1).sum())


def replay_json(path: str, result: ReplayResult) -> dict[str, Any]:
    return {
        "model": path,
        "target": result.target,
        "against": result.against,
        "ok": result.ok,
        "runs": result.runs,
        "cases": [{"name": c.name, "runs": c.runs, "problems": c.problems} for c in result.cases],
        "problems": list(result.problems),
        "left_out": list(result.left_out),
        "stats": result.stats,
    }


COUNTED = ("captures", "replays", "rebinds", "staged_copies", "launches_per_run")


def show_replay(out: Console, result: ReplayResult) -> None:
    """Print the cases and the verdict."""
    on_gpu = result.target.startswith("gpu")
    what = "replay" if on_gpu else "native code that has run before"
    rows = table(
        f"{what} on {result.target} against {result.against}", "on", "runs", "result", right=(1,)
    )
    for case in result.cases:
        bad = case.problems
        verdict = f"[red]{escape(bad[0])}[/red]" if bad else "[green]the same bits[/green]"
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        rows.add_row(case.name, str(case.runs), verdict + more)
    out.print(rows)
    if on_gpu:
        listed = ", ".join(f"{name} {result.stats.get(name, 0)}" for name in COUNTED)
        out.print(escape(listed), highlight=False)
    else:
        made = count_text(result.stats.get("captures", 0), "native function")
        launches = count_text(result.stats.get("replays", 0), "launch")
        out.print(f"{launches} of {made}", highlight=False)
    for left in result.left_out:
        out.print(escape(f"left out, {left}"), highlight=False)
    for problem in result.problems:
        out.print(f"[red]{escape(problem)}[/red]")
    if result.ok:
        out.print(f"[green]{count_text(result.runs, 'run')} gave the same bits[/green]")
    else:
        wrong = sum(len(c.problems) for c in result.cases)
        out.print(f"[red]{wrong} outputs differ[/red]" if wrong else "[red]not verified[/red]")
