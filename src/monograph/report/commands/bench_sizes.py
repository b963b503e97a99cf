"""The command `monograph bench` for several sizes: one session serves them all, as its peers do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from monograph.errors import MonographError
from monograph.model import check_dims
from monograph.report.commands.bench import MONOGRAPH, Times, interleave
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.input_files import draw_inputs
from monograph.report.commands.peers import PeerModel, check_peers, open_peer, refusal
from monograph.report.render.console import table
from monograph.report.render.tables import count_text, seconds_text
from monograph.runtime.cpu.threads import choose_threads
from monograph.runtime.inputs import Inputs
from monograph.session import Session


@dataclass(frozen=True)
class SizeTimes:
    """The times of one set of sizes."""

    sizes: Mapping[str, int]
    first: Mapping[str, float]
    """The seconds of the first run with these sizes, by runtime."""
    times: Mapping[str, Times]
    """The latency of further runs, by runtime."""

    def ratio(self, peer: str) -> float:
        return self.times[peer].median / self.times[MONOGRAPH].median

    def as_json(self) -> dict[str, Any]:
        return {
            "sizes": dict(self.sizes),
            "first_run": dict(self.first),
            "times": {k: v.as_json() for k, v in self.times.items()},
            "ratios": {p: self.ratio(p) for p in self.times if p != MONOGRAPH},
        }


@dataclass(frozen=True)
class SizesBench:
    """The times of a model at several sizes."""

    target: str
    threads: int
    specialise: str
    rows: list[SizeTimes]
    stats: dict[str, Any]

    @property
    def peers(self) -> list[str]:
        return [name for name in self.rows[0].times if name != MONOGRAPH]

    def mean_ratio(self, peer: str) -> float:
        """Return the geometric mean over all sizes of the speed relative to another runtime."""
        return math.exp(float(np.mean([math.log(row.ratio(peer)) for row in self.rows])))

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True,
            "target": self.target,
            "threads": self.threads,
            "specialise": self.specialise,
            "sizes": [row.as_json() for row in self.rows],
            "mean_ratios": {p: self.mean_ratio(p) for p in self.peers},
            "stats": self.stats,
        }


def bench_sizes(
    request: RunRequest,
    sets: Sequence[Mapping[str, int]],
    note: Notes,
    *,
    against: Sequence[str] = (),
    seconds: float = 5.0,
    threads: int | None = None,
) -> SizesBench:
    """Time a model at several sizes with one session, in turns with other runtimes."""
    check_peers(against)
    session = request.load(threads=threads)
    check_dims(sets[0], session.inputs)
    count = choose_threads(session.config.threads)
    peers = _open_peers(request, against, count, note)
    rows: list[SizeTimes] = []
    kept = request.dims if request.any_shape else None
    for sizes in ({**(kept or {}), **chosen} for chosen in sets):
        made = _inputs(request, session, sizes, note if not rows else _unheard)
        rows.append(_time(session, peers, made, {**made.assumed, **sizes}, seconds / len(sets)))
    config = session.config
    return SizesBench(config.target, count, config.specialise, rows, session.stats)


def _unheard(line: str) -> None:
    """Drop a note that the first set of sizes has given already."""


def _inputs(request: RunRequest, session: Session, sizes: Mapping[str, int], note: Notes) -> Inputs:
    made = draw_inputs(session, request.given, request.seed, chosen=request.chosen, sizes=sizes)
    if others := {k: v for k, v in made.assumed.items() if k not in sizes}:
        listed = ", ".join(f"{k}={v}" for k, v in others.items())
        note(f"open dimensions were set: {listed}; change them with --dim NAME=SIZE")
    return made


def _open_peers(
    request: RunRequest, names: Sequence[str], threads: int, note: Notes
) -> dict[str, PeerModel]:
    """Open the model in other runtimes; leave out, with a note, those that refuse it."""
    opened = {}
    for name in names:
        try:
            opened[name] = open_peer(name, request.model, threads)
        except MonographError:
            raise
        except Exception as e:
            note(f"{name} does not run this model: {refusal(e)}")
    return opened


def _time(
    session: Session,
    peers: Mapping[str, PeerModel],
    made: Inputs,
    sizes: Mapping[str, int],
    seconds: float,
) -> SizeTimes:
    """Time the first run with some sizes, then further runs in turns."""
    runs: dict[str, Callable[[], Any]] = {MONOGRAPH: partial(session.run, made.feeds)}
    runs |= {name: partial(peer, made.feeds) for name, peer in peers.items()}
    first = {}
    with advising(made):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            first[name] = time.perf_counter() - start
    return SizeTimes(sizes, first, interleave(runs, seconds))


def show_sizes(out: Console, name: str, found: SizesBench) -> None:
    """Print the times of each set of sizes, and what was compiled for them."""
    on_gpu = found.target.startswith("gpu")
    where = found.target if on_gpu else f"{found.target}, {count_text(found.threads, 'thread')}"
    columns = ["sizes", "first run", "median", "p99"]
    for peer in found.peers:
        columns += [f"{peer}: first run", f"{peer}: median", "Monograph is"]
    rows = table(f"{name} on {where}", *columns, right=tuple(range(1, len(columns))))
    for row in found.rows:
        own = row.times[MONOGRAPH]
        cells = [seconds_text(t) for t in (row.first[MONOGRAPH], own.median, own.p99)]
        for peer in found.peers:
            cells += [seconds_text(row.first[peer]), seconds_text(row.times[peer].median)]
            cells.append(f"{row.ratio(peer):.2f}x as fast")
        rows.add_row(escape(" ".join(f"{k}={v}" for k, v in row.sizes.items())), *cells)
    out.print(rows)
    for peer in found.peers:
        out.print(f"geometric mean: {found.mean_ratio(peer):.2f}x as fast as {peer}")
    for line in _code_lines(found):
        out.print(line, markup=False, highlight=False)


def _code_lines(found: SizesBench) -> list[str]:
    """Tell what code ran, and the conditions on sizes that it was compiled under."""
    stats = found.stats
    spent = sum(stats.get("compile_seconds", {}).values())
    lines = [
        f"{count_text(len(found.rows), 'set')} of sizes, specialise={found.specialise}:"
        f" {_code_text(stats)}" + (f" in {seconds_text(spent)}" if spent else "")
    ]
    if stats.get("exact_reason"):
        lines.append(f"exact code is compiled: {stats['exact_reason']}")
    for guards in stats.get("guards", ()):
        lines.append(f"code for any shape: {'; '.join(guards) or 'no guard'}")
    return lines


def _code_text(stats: Mapping[str, Any]) -> str:
    """Return how many compiled programs serve the sizes."""
    if stats.get("variants"):
        return count_text(stats["variants"], "variant")
    return count_text(stats["compiled"], "exact program")
