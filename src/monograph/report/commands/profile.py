"""The command `monograph profile` on the CPU: the time of every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from monograph.codegen.llvm.module.assembler import Module, Segment
from monograph.ir import Array
from monograph.program.program import Step
from monograph.program.work import step_work
from monograph.report.commands.bench import TOO_LITTLE_WORK, Peaks, known, measure_peaks
from monograph.report.commands.execute import Notes, RunRequest, advising, compiled_graph
from monograph.report.render.console import table
from monograph.report.render.tables import count_text, made_text, nodes_text, seconds_text
from monograph.rewrite import Work
from monograph.runtime.cpu.instrumented import TimedRun, compile_timed, now
from monograph.runtime.progress import until_ready

HOW = "a profile runs its own native code, which reads a clock around every step"


@dataclass(frozen=True)
class StepTime:
    """The times of one step; medians over runs."""

    number: int
    """The position of the step in the run."""
    step: Step
    native: bool
    seconds: float
    busy: tuple[float, ...]
    """The seconds that each thread computes; it waits for the rest of `seconds`."""
    work: Work

    @property
    def waiting(self) -> float:
        """The share of time in which threads wait."""
        if self.seconds <= 0:
            return 0.0
        return max(0.0, 1.0 - sum(self.busy) / (len(self.busy) * self.seconds))

    @property
    def imbalance(self) -> float:
        """The time of the busiest thread divided by the average; 1 means balanced."""
        average = sum(self.busy) / len(self.busy)
        return max(self.busy) / average if average else 1.0


@dataclass(frozen=True)
class StepRecorder:
    """The begin and end of one run, and of each step on each thread, in ns."""

    begin: int
    end: int
    parts: tuple[TimedRun, ...]
    """The programs of the run; one if data decide no shapes."""

    @property
    def stamps(self) -> Array:
        """Return [thread, step, begin or end] of all programs; unused threads idle."""
        threads = max(p.stamps.shape[0] for p in self.parts)
        found = []
        for part in self.parts:
            own = part.stamps
            idle = np.broadcast_to(own[:1, :, 1:], (threads - own.shape[0], own.shape[1], 2))
            found.append(np.concatenate([own, idle]))
        return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class Timed:
    """The steps of a model with their times, and the peaks of the machine."""

    steps: tuple[StepTime, ...]
    peaks: Peaks

    @property
    def step_seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    def share(self, seconds: float) -> float:
        return seconds / self.step_seconds if self.step_seconds else 0.0

    def floor(self, work: Work) -> float:
        """Return the shortest possible time for some work, in seconds."""
        return max(
            work.flops / self.peaks.flops_per_second, work.bytes / self.peaks.bytes_per_second
        )


@dataclass(frozen=True)
class Profile(Timed):
    """The steps of a model on the CPU, timed."""

    threads: int
    run_seconds: float
    """The median time of a run, from call to return."""
    outside_seconds: float
    """The time outside of steps: Python, the launch, memory for outputs."""
    recordings: tuple[StepRecorder, ...]
    allowed: int = 0
    """The number of allowed threads; a small program uses fewer."""

    @property
    def typical(self) -> StepRecorder:
        """Return the run with the median time."""
        ordered = sorted(self.recordings, key=lambda r: r.end - r.begin)
        return ordered[(len(ordered) - 1) // 2]


@dataclass(frozen=True)
class KindTime:
    """All steps of one kind."""

    kind: str
    steps: int
    seconds: float
    work: Work
    floor: float


def profile_model(
    request: RunRequest,
    note: Notes,
    *,
    runs: int = 30,
    warm_ups: int = 3,
    threads: int | None = None,
) -> Profile:
    """Run a model several times in code that reads a clock around every step."""
    session = request.load(threads=threads)
    made = request.inputs(session, note)
    feeds = made.feeds
    heard: list[TimedRun] = []
    with until_ready(request.progress), advising(made):
        run = compile_timed(compiled_graph(session, feeds), session.compiler(), heard.append)

    def record() -> StepRecorder:
        heard.clear()
        begin = now()
        run(feeds)
        return StepRecorder(begin, now(), tuple(heard))

    for _ in range(warm_ups):
        record()
    recordings = tuple(record() for _ in range(runs))
    stamps = np.stack([r.stamps for r in recordings])
    count = stamps.shape[1]
    parts = recordings[0].parts
    times = step_times(stamps, np.array([f for p in parts for f in _starts(p.module)], bool))
    whole = np.array([r.end - r.begin for r in recordings])
    return Profile(
        _timed(parts, stamps, times),
        measure_peaks(count),
        count,
        float(np.median(whole)) / 1e9,
        float(np.median(whole - times.sum(axis=1))) / 1e9,
        recordings,
        session.threads,
    )


def _timed(parts: Sequence[TimedRun], stamps: Array, times: Array) -> tuple[StepTime, ...]:
    """Return the steps of all programs of a run, from the stamps of several runs."""
    seconds = np.median(times, axis=0) / 1e9
    busy = np.median(stamps[..., 1] - stamps[..., 0], axis=0) / 1e9
    host = {s for p in parts for s in p.module.segments if isinstance(s, Step)}
    steps = [(p.program, s) for p in parts for s in p.program.steps]
    return tuple(
        StepTime(
            number,
            step,
            step not in host,
            float(seconds[number]),
            tuple(map(float, busy[:, number])),
            step_work(program, step),
        )
        for number, (program, step) in enumerate(steps)
    )


def _starts(module: Module) -> list[bool]:
    """Mark the steps that follow a call from Python, not another step."""
    flags: list[bool] = []
    for segment in module.segments:
        count = len(segment.steps) if isinstance(segment, Segment) else 1
        flags += [i == 0 for i in range(count)]
    return flags


def step_times(stamps: Array, starts: Array) -> Array:
    """Return the nanoseconds [run, step] of steps, from stamps [run, thread, step, 2].

    A step lasts from the end of the step before (on the last thread) to its own end; the first step
    of a launch lasts from its begin. So the times add up.
    """
    begins = stamps[..., 0].min(axis=1)
    ends = np.maximum.accumulate(stamps[..., 1].max(axis=1), axis=1)
    before = np.where(starts, begins, np.roll(ends, 1, axis=1))
    times: Array = np.maximum(ends - before, 0)
    return times


def kinds_of(found: Timed) -> list[KindTime]:
    """Return the steps by kind, the slowest kind first."""
    groups: dict[str, list[StepTime]] = {}
    for timed in found.steps:
        groups.setdefault(timed.step.region.kind, []).append(timed)
    made = [
        KindTime(
            kind,
            len(steps),
            sum(s.seconds for s in steps),
            sum((s.work for s in steps), Work(0, 0, 0)),
            sum(found.floor(s.work) for s in steps),
        )
        for kind, steps in groups.items()
    ]
    return sorted(made, key=lambda k: -k.seconds)


def profile_json(path: str, found: Profile) -> dict[str, Any]:
    return {
        "model": path,
        "target": "cpu",
        "threads": found.threads,
        "threads_allowed": found.allowed,
        "runs": len(found.recordings),
        "run_seconds": found.run_seconds,
        "step_seconds": found.step_seconds,
        "outside_seconds": found.outside_seconds,
        "how": HOW,
        "captured": False,
        "peaks": asdict(found.peaks),
        "steps": [_step_json(found, s) for s in found.steps],
        "kinds": kinds_json(found),
    }


def kinds_json(found: Timed) -> list[dict[str, Any]]:
    return [
        {
            "kind": k.kind,
            "steps": k.steps,
            "seconds": k.seconds,
            "share": found.share(k.seconds),
            **rates_json(found, k.work, k.seconds),
            "of_peak": known(_ratio(k.floor, k.seconds)),
        }
        for k in kinds_of(found)
    ]


def _step_json(found: Profile, timed: StepTime) -> dict[str, Any]:
    return {
        "step": timed.number,
        "kind": timed.step.region.kind,
        "nodes": timed.step.nodes,
        "reads": [str(v.type) for v in timed.step.region.inputs],
        "makes": [str(v.type) for v in timed.step.region.outputs],
        "native": timed.native,
        "seconds": timed.seconds,
        "share": found.share(timed.seconds),
        **rates_json(found, timed.work, timed.seconds),
        "busy_seconds": list(timed.busy),
        "waiting": timed.waiting,
        "imbalance": timed.imbalance,
    }


def rates_json(found: Timed, work: Work, seconds: float) -> dict[str, Any]:
    """Return operations and bytes, their rates, and the share of the peak."""
    return {
        "flops": known(work.flops),
        "bytes": work.bytes,
        "gflops_per_second": known(_ratio(work.flops, seconds) / 1e9),
        "gbytes_per_second": _ratio(work.bytes, seconds) / 1e9,
        "of_peak": known(_ratio(found.floor(work), seconds)),
    }


def show_profile(out: Console, found: Profile, top: int) -> None:
    """Print the slowest steps, the kinds and a summary."""
    slowest = sorted(found.steps, key=lambda s: -s.seconds)
    shown = slowest[:top] if top else list(found.steps)
    title = f"{count_text(len(found.steps), 'step')} on {count_text(found.threads, 'thread')}"
    if found.threads < found.allowed:
        title += f" ({TOO_LITTLE_WORK})"
    title += f", the {len(shown)} slowest first" if top else ", in their order"
    columns = ("step", "kind", "ONNX nodes", "makes", "time", "share", "GFLOP/s", "GB/s")
    rows = table(title, *columns, "of peak", "waiting", right=(0, 4, 5, 6, 7, 8, 9))
    for timed in shown:
        rows.add_row(*_row(found, timed))
    if left := [s for s in found.steps if s not in shown]:
        rest = sum(s.seconds for s in left)
        share = f"{found.share(rest):.1%}"
        rows.add_row("", f"{len(left)} more", "", "", seconds_text(rest), share)
    out.print(rows)
    show_kinds(out, found)
    _show_summary(out, found)


def _row(found: Profile, timed: StepTime) -> list[str]:
    step = timed.step
    waiting = f"{timed.waiting:.0%}" if found.threads > 1 and timed.native else "-"
    kind = step.region.kind if timed.native else f"{step.region.kind} (on the host)"
    return [
        str(timed.number),
        escape(kind),
        escape(nodes_text(step.nodes)),
        escape(made_text(step)),
        seconds_text(timed.seconds),
        f"{found.share(timed.seconds):.1%}",
        *rates_text(timed.work, timed.seconds, found.floor(timed.work)),
        waiting,
    ]


def show_kinds(out: Console, found: Timed) -> None:
    columns = ("kind", "steps", "time", "share", "GFLOP/s", "GB/s", "of peak")
    rows = table("by kind", *columns, right=(1, 2, 3, 4, 5, 6))
    for k in kinds_of(found):
        share = f"{found.share(k.seconds):.1%}"
        rates = rates_text(k.work, k.seconds, k.floor)
        rows.add_row(escape(k.kind), str(k.steps), seconds_text(k.seconds), share, *rates)
    out.print(rows)


def _show_summary(out: Console, found: Profile) -> None:
    steps = found.step_seconds
    out.print(HOW)
    out.print(
        f"medians of {len(found.recordings)} runs: {seconds_text(found.run_seconds)} a run,"
        f" {seconds_text(steps)} in steps, {seconds_text(found.outside_seconds)} outside of them"
    )
    busy = sum(sum(s.busy) for s in found.steps)
    if found.threads > 1 and steps:
        waiting = max(0.0, 1 - busy / (found.threads * steps))
        out.print(f"threads wait for each other, or idle, {waiting:.0%} of the time of steps")
    out.print(
        f"peaks measured here: {found.peaks.flops_per_second / 1e9:.1f} GFLOP/s,"
        f" {found.peaks.bytes_per_second / 1e9:.1f} GB/s (from memory; caches give more)"
    )


def rates_text(work: Work, seconds: float, floor: float) -> tuple[str, str, str]:
    """Return operations and bytes per second and the share of the peak; "-" if unknown."""
    if math.isnan(work.flops):
        return "-", f"{_ratio(work.bytes, seconds) / 1e9:.1f}", "-"
    return (
        f"{_ratio(work.flops, seconds) / 1e9:.1f}",
        f"{_ratio(work.bytes, seconds) / 1e9:.1f}",
        f"{_ratio(floor, seconds):.0%}",
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
