"""The command `monograph bench`: time a model and other runtimes in turns."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

from monograph.codegen.llvm.module.features import choose_features
from monograph.errors import MonographError
from monograph.ir import Graph, Input, constant, tensor
from monograph.ir.dtype import f32
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceMax
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.peers import check_peers, peer_run, refusal
from monograph.report.render.console import table
from monograph.report.render.tables import count_text, seconds_text
from monograph.runtime.cpu.executable import compile_graph
from monograph.runtime.cpu.threads import choose_threads

MONOGRAPH = "monograph"
WARM_UPS = 3
SETTLE_SECONDS = 0.06
"""The seconds before a turn: threads of another runtime may spin after its run."""
TURN_SECONDS = 0.1
TURN_RUNS = 4
"""The least runs of a turn back to back."""
PAUSE_SECONDS = 0.01
"""The seconds between requests that are timed after a pause."""
PAUSED_RUNS = 8
"""The runs of a turn with pauses."""
PAUSED_SHARE = 1 / 3
"""The part of the time for runs after pauses."""
BACK_TO_BACK, AFTER_PAUSE = "back to back", f"after {PAUSE_SECONDS * 1e3:.0f} ms"
"""The names of both latencies."""
PEAK_SECONDS = 0.3
"""The seconds to search for each peak; other processes may disturb it."""
TOO_LITTLE_WORK = "too little work for more"
"""The reason why a program runs on one thread although more are allowed."""
OVER_FLOPS = (
    "over 100%: operations are those of the model, of which Winograd convolutions do fewer;"
    " or the machine was busy while the peak was measured"
)
OVER_BYTES = "over 100%: it was read from caches, or memory was busy while it was measured"


@dataclass(frozen=True)
class Times:
    """The statistics of run times in seconds."""

    runs: int
    median: float
    p90: float
    p99: float
    least: float

    @property
    def per_second(self) -> float:
        return 1.0 / self.median

    def as_json(self) -> dict[str, Any]:
        own = {"runs": self.runs, "median": self.median, "min": self.least}
        own |= {"p50": self.median, "p90": self.p90, "p99": self.p99}
        return own | {"per_second": self.per_second}


@dataclass(frozen=True)
class Peaks:
    """The peak rates of this machine, measured with Monograph's kernels."""

    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True)
class Bench:
    """The times of all runtimes, and the rates of the model."""

    target: str
    threads: int
    """The number of threads that every runtime may use."""
    times: dict[str, Times]
    """The latency of consecutive runs, by runtime."""
    stats: dict[str, Any]
    flops: float
    bytes: float
    peaks: Peaks | None
    own_threads: int = 0
    """The number of threads that Monograph used; small programs use fewer."""
    compiled_threads: int = 0
    """The number of threads that the code was compiled for."""
    process_bytes: int = 0
    """The peak memory of the process up to the first run, before other runtimes."""
    capture: str = "auto"
    """The option `capture`."""
    paused: dict[str, Times] = field(default_factory=dict)
    """The latency of runs after a pause, by runtime: threads sleep and caches cool."""

    @property
    def rates(self) -> dict[str, float]:
        """Return operations and bytes per second, and their shares of the peaks."""
        if self.peaks is None:
            return {}
        seconds = self.times[MONOGRAPH].median
        flops, moved = self.flops / seconds, self.bytes / seconds
        return {
            "gflops_per_second": flops / 1e9,
            "gbytes_per_second": moved / 1e9,
            "of_peak_flops": flops / self.peaks.flops_per_second,
            "of_peak_bytes": moved / self.peaks.bytes_per_second,
        }

    @property
    def latencies(self) -> dict[str, dict[str, Times]]:
        """Return both latencies by their names, each by runtime."""
        return {BACK_TO_BACK: self.times} | ({AFTER_PAUSE: self.paused} if self.paused else {})

    def ratio(self, peer: str, latency: str = BACK_TO_BACK) -> float:
        """Return the speed relative to another runtime, in one of both latencies."""
        times = self.latencies[latency]
        return times[peer].median / times[MONOGRAPH].median

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True,
            "target": self.target,
            "threads": self.threads,
            "own_threads": self.own_threads,
            "times": {k: v.as_json() for k, v in self.times.items()},
            "ratios": {p: self.ratio(p) for p in self.times if p != MONOGRAPH},
            "after_pause": {
                "pause": PAUSE_SECONDS,
                "times": {k: v.as_json() for k, v in self.paused.items()},
                "ratios": {p: self.ratio(p, AFTER_PAUSE) for p in self.paused if p != MONOGRAPH},
            },
            "stats": self.stats,
            "kernels_per_run": self.stats["kernels_per_run"],
            "launches_per_run": self.stats["launches_per_run"],
            "capture": self.capture,
            "flops": known(self.flops),
            "bytes": self.bytes,
            **{name: known(rate) for name, rate in self.rates.items()},
            "peaks": asdict(self.peaks) if self.peaks else None,
            "peak_memory": {
                "temporaries": self.stats["peak_bytes"],
                "process": self.process_bytes,
            },
        }


def bench_model(
    request: RunRequest,
    note: Notes,
    *,
    against: Sequence[str] = (),
    seconds: float = 5.0,
    threads: int | None = None,
) -> Bench:
    """Time a model on one target, in turns with other runtimes."""
    check_peers(against)
    session = request.load(threads=threads)
    made = request.inputs(session, note)
    feeds = made.feeds
    # A package may be for fewer threads than its peers should have.
    count = choose_threads(session.config.threads)
    contenders: dict[str, Callable[[], Any]] = {MONOGRAPH: lambda: session.run(feeds)}
    with advising(made):
        contenders[MONOGRAPH]()
    taken = process_peak()
    for peer in against:
        try:
            contenders[peer] = peer_run(peer, request.model, feeds, count)
            contenders[peer]()
        except MonographError:
            raise
        except Exception as e:
            # A peer that refuses the model is no fault of ours, and no reason to stop.
            contenders.pop(peer, None)
            note(f"{peer} does not run this model: {refusal(e)}")
    times = interleave(contenders, (1 - PAUSED_SHARE) * seconds)
    paused = interleave(contenders, PAUSED_SHARE * seconds, _paused_turn)
    flops = moved = 0.0
    peaks, own = None, count
    if session.config.target == "cpu":
        executable = session.executable(feeds)
        own = executable.threads
        flops, moved = executable.flops, executable.moved
        peaks = measure_peaks(count)
    stats, target = session.stats, session.config.target
    compiled = session.threads
    mode = session.config.capture
    work = (flops, moved, peaks, own, compiled)
    return Bench(target, count, times, stats, *work, taken, mode, paused)


def known(figure: float) -> float | None:
    """Return a figure for JSON; None if it is unknown."""
    return None if math.isnan(figure) else figure


def process_peak() -> int:
    """Return the peak memory of this process in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _turn(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of consecutive runs."""
    taken: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end or len(taken) < TURN_RUNS:
        taken.append(_timed(run))
    return taken


def _paused_turn(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of runs after a pause each."""
    taken: list[float] = []
    for _ in range(PAUSED_RUNS):
        time.sleep(PAUSE_SECONDS)
        taken.append(_timed(run))
    return taken


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(
    contenders: Mapping[str, Callable[[], Any]],
    seconds: float,
    turn: Callable[[Callable[[], Any]], list[float]] = _turn,
) -> dict[str, Times]:
    """Run contenders in turns until the time is up, so that noise affects all equally.

    Threads of a runtime may spin for a while after its run, on cores that the next one needs, and
    its data fill the caches, so each turn starts with a pause and runs that are not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not all(taken.values()):
        for name, run in contenders.items():
            time.sleep(SETTLE_SECONDS)
            for _ in range(WARM_UPS):
                run()
            taken[name] += turn(run)
    return {name: summarise(t) for name, t in taken.items()}


def summarise(seconds: Sequence[float]) -> Times:
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99])
    return Times(len(seconds), float(p50), float(p90), float(p99), min(seconds))


def measure_peaks(threads: int) -> Peaks:
    """Measure the peak rates: operations per second and bytes per second."""
    x = Input("x", tensor(f32, 768, 512))()
    weights = constant(np.ones((512, 512), np.float32))
    product = Graph((x,), (("y", Dot()(x, weights)),))
    flops = 2.0 * 768 * 512 * 512 / _best(product, threads)
    return Peaks(flops, measure_bandwidth(threads))


def measure_bandwidth(threads: int, seconds: float = PEAK_SECONDS) -> float:
    """Measure the bytes per second of a kernel that only reads."""
    # Memory for a large result is new in each run, and that is slow by itself.
    long = Input("x", tensor(f32, 1 << 24))()
    stream = Graph((long,), (("y", ReduceMax((0,))(long)),))
    return 4.0 * (1 << 24) / _best(stream, threads, seconds)


def _best(graph: Graph, threads: int, seconds: float = PEAK_SECONDS) -> float:
    executable = compile_graph(graph, choose_features(), threads)
    feeds = {n: np.ones(t.static, np.float32) for n, t in _ports(graph)}
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        executable.run(feeds)
        best = min(best, time.perf_counter() - start)
    return best


def _ports(graph: Graph) -> list[tuple[str, Any]]:
    return list(zip(graph.input_names, graph.input_types, strict=True))


def launch_lines(stats: Mapping[str, Any], mode: str, on_gpu: bool) -> list[str]:
    """Describe captures, replays and copies of a GPU target, and the fallbacks of any target."""
    fallbacks = stats.get("fallbacks", {})
    if not on_gpu:
        return [f"  not one launch {n} times: {why}" for why, n in fallbacks.items()]
    if "captures" not in stats:
        return []
    listed = [
        count_text(stats["captures"], "capture"),
        count_text(stats["replays"], "replay"),
        count_text(stats["rebinds"], "rebind"),
    ]
    lines = [f"capture {mode}: {', '.join(listed)}"]
    lines += [f"  copied {n} times, {why}" for why, n in stats.get("staged_copies", {}).items()]
    lines += [f"  not captured {n} times: {why}" for why, n in fallbacks.items()]
    return lines


def show_bench(out: Console, name: str, bench: Bench) -> None:
    """Print the times, the launches, the memory and the rates."""
    columns = ["", "runs", "median (p50)", "p90", "p99", "fastest", "1 / median"]
    columns += ["Monograph is"] if len(bench.times) > 1 else []
    on_gpu = bench.target.startswith("gpu")
    threads = "" if on_gpu else f", {count_text(bench.threads, 'thread')}"
    rows = table(f"{name} on {bench.target}{threads}", *columns, right=tuple(range(2, 8)))
    for latency, by_name in bench.latencies.items():
        for contender, times in by_name.items():
            figures = (times.median, times.p90, times.p99, times.least)
            own = contender == MONOGRAPH
            ratio = "" if own else f"{bench.ratio(contender, latency):.2f}x as fast"
            row = (*map(seconds_text, figures), f"{times.per_second:.1f}/s", ratio)
            rows.add_row(contender, latency, *row[: len(columns) - 2])
    out.print(rows)
    stats = bench.stats
    fewer = bench.own_threads < bench.threads and not on_gpu
    why = TOO_LITTLE_WORK if bench.own_threads < bench.compiled_threads else "of the package"
    used = f" on {count_text(bench.own_threads, 'thread')} ({why})" if fewer else ""
    beside = f" on {stats['streams']} streams" if stats.get("streams", 1) > 1 else ""
    out.print(
        f"{count_text(stats['launches_per_run'], 'launch')},"
        f" {count_text(stats['kernels_per_run'], 'kernel')} a run{beside}{used};"
        f" on the host: {', '.join(stats['host_steps']) or 'nothing'}"
    )
    for line in launch_lines(stats, bench.capture, on_gpu):
        out.print(line, markup=False, highlight=False)
    out.print(
        f"peak memory: {stats['peak_bytes'] / 1e6:.1f} MB of temporaries;"
        f" {bench.process_bytes / 1e6:.0f} MB the whole process, compiler included"
    )
    if "device_bytes" in stats:
        out.print(
            f"on {stats['device']}: {stats['device_bytes'] / 1e6:.1f} MB of its memory;"
            f" {stats['tuning_used']} problems with measured kernels",
            highlight=False,
        )
    if bench.peaks is not None:
        for line in _rate_lines(bench, bench.peaks):
            out.print(line)


def _rate_lines(bench: Bench, peaks: Peaks) -> Iterator[str]:
    """Yield the rates and the peaks, and explain rates above a peak."""
    rates = bench.rates
    flops, share = f"{rates['gflops_per_second']:.1f}", f"{rates['of_peak_flops']:.0%}"
    if math.isnan(bench.flops):
        flops = share = "-"  # data decide how often loops turn
    yield (
        f"{flops} GFLOP/s of {peaks.flops_per_second / 1e9:.1f} measured here ({share}),"
        f" {rates['gbytes_per_second']:.1f} GB/s of {peaks.bytes_per_second / 1e9:.1f}"
        f" ({rates['of_peak_bytes']:.0%})"
    )
    if rates["of_peak_flops"] > 1:
        yield f"GFLOP/s {OVER_FLOPS}"
    if rates["of_peak_bytes"] > 1:
        yield f"GB/s {OVER_BYTES}"
