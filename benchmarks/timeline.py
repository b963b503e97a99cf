"""Records one run of a model launched kernel by kernel and one that is replayed, and draws both.

    python -m benchmarks.timeline --results docs/images              # on a GPU
    python -m benchmarks.timeline --from timeline.json --results .   # draws it again, anywhere

torch's profiler (CUPTI) says when the driver was called and when the device worked. That costs time
itself, so that runs are a little longer than without; the run of median length is drawn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.capture_models import Subject
from benchmarks.needs import need_torch
from benchmarks.timeline_svg import Interval, RunTimeline, as_json, draw, from_json

RUNS = 9
"""Recorded runs of each kind; the first is not counted."""
MARK = "a run of the model"
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_driver", "cuda_runtime")
LAUNCHES = ("launchkernel", "graphlaunch", "memcpy", "memset")
"""Parts of the names of driver calls that start work."""


def runs_in(trace: Mapping[str, Any], title: str) -> list[RunTimeline]:
    """The runs in a Chrome trace of torch's profiler, without the first."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    marks = sorted(
        (e for e in events if e.get("name") == MARK and e.get("cat") == "user_annotation"),
        key=lambda e: float(e["ts"]),
    )
    starts = [float(m["ts"]) for m in marks] + [float("inf")]
    found = []
    for mark, until in zip(marks, starts[1:], strict=True):
        own = [e for e in events if float(mark["ts"]) <= float(e["ts"]) < until]
        found.append(_run(mark, own, title))
    return found[1:]


def _run(mark: Mapping[str, Any], events: Iterable[Mapping[str, Any]], title: str) -> RunTimeline:
    zero = float(mark["ts"])
    end = zero + float(mark["dur"])
    launches, work = [], []
    streams: dict[Any, int] = {}
    for e in sorted(events, key=lambda e: float(e["ts"])):
        if e.get("cat") in WORK:
            stream = (e.get("args") or {}).get("stream", e.get("tid"))
            work.append(_interval(e, zero, streams.setdefault(stream, len(streams))))
        elif e.get("cat") in CALLS and float(e["ts"]) < end and _starts_work(str(e["name"])):
            launches.append(_interval(e, zero))
    return RunTimeline(title, _interval(mark, zero), tuple(launches), tuple(work))


def _starts_work(name: str) -> bool:
    plain = name.lower()
    return any(word in plain for word in LAUNCHES)


def _interval(event: Mapping[str, Any], zero: float, lane: int = 0) -> Interval:
    start = float(event["ts"]) - zero
    return Interval(str(event["name"]), start, start + float(event["dur"]), lane)


def typical(runs: list[RunTimeline]) -> RunTimeline:
    """The run of median length."""
    if not runs:
        raise SystemExit("the profiler saw no run")
    middle = statistics.median_low([run.end for run in runs])
    return next(run for run in runs if run.end == middle)


def record(run: Callable[[], Any], title: str) -> RunTimeline:
    """One run of median length, as the profiler sees it."""
    found = typical(_profiled(run, title, noted=False))
    if found.launches:
        return found
    # Not every version of the profiler shows what is launched through the driver's own interface.
    return typical(_profiled(run, title, noted=True))


def _profiled(run: Callable[[], Any], title: str, noted: bool) -> list[RunTimeline]:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    for _ in range(10):
        run()
    torch.cuda.synchronize()
    seen_here: list[tuple[Interval, ...]] = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(RUNS):
            with noting() if noted else nullcontext([]) as launches, record_function(MARK):
                begun = time.perf_counter_ns()
                made = run()
            torch.cuda.synchronize()
            seen_here.append(tuple(_since(begun, *launch) for launch in launches))
            del made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        runs = runs_in(json.loads(path.read_text()), title)
    if not noted:
        return runs
    return [replace(r, launches=own) for r, own in zip(runs, seen_here[1:], strict=True)]


@contextmanager
def noting() -> Iterator[list[tuple[str, int, int]]]:
    """Notes when launches begin and end by the host's clock, where they are made."""
    from monograph.runtime.gpu.driver.cuda import CudaRecord
    from monograph.runtime.gpu.driver.cuda_graphs import CudaGraphs

    found: list[tuple[str, int, int]] = []

    def timed(name: str, launch: Callable[..., None]) -> Callable[..., None]:
        def noted(*given: Any) -> None:
            begun = time.perf_counter_ns()
            launch(*given)
            found.append((name, begun, time.perf_counter_ns()))

        return noted

    with (
        patch.object(CudaRecord, "launch", timed("launch of a kernel", CudaRecord.launch)),
        patch.object(CudaGraphs, "launch", timed("launch of a graph", CudaGraphs.launch)),
    ):
        yield found


def _since(begun: int, name: str, start: int, end: int) -> Interval:
    return Interval(name, (start - begun) / 1e3, (end - begun) / 1e3)


def recorded(options: argparse.Namespace) -> dict[str, Any]:
    """Both runs on this machine's GPU, and what they were made with."""
    need_torch()
    import torch

    import monograph
    from benchmarks.gpu_contenders import random_feeds

    subject = Subject(options.model)
    runs = []
    for title, capture in (("eager", "off"), ("replay", "require")):
        session = monograph.load(
            subject.path(), "gpu", capture=capture, tune=options.tune, precision=options.precision
        )
        arrays = subject.recorded() or random_feeds(session)
        tensors = {n: torch.from_numpy(x).cuda() for n, x in arrays.items()}
        runs.append(record(lambda s=session, t=tensors: s.run(t), title))  # type: ignore[misc]
    return {
        "model": options.model,
        "precision": options.precision,
        "device": torch.cuda.get_device_name(),
        "runs": as_json(runs),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="towers_b1", help="of the benchmark set")
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--tune", default="off", choices=("off", "fast", "full"))
    parser.add_argument("--from", dest="source", type=Path, help="draws what was recorded before")
    parser.add_argument("--results", type=Path, default=Path("docs") / "images")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    data = json.loads(options.source.read_text()) if options.source else recorded(options)
    runs = from_json(data["runs"])
    caption = f"{data['model']} in {data['precision']} on {data['device']}, one run"
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / "timeline"
    if not options.source:
        stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    stem.with_suffix(".svg").write_text(draw(runs, caption))
    for run in runs:
        print(run.text)
    print(f"written: {stem.with_suffix('.svg')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
