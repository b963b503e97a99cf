"""A profile as a Chrome trace: a row for each thread, a block for each step.

The format is the one of https://ui.perfetto.dev and chrome://tracing: complete events ("X") with
times in microseconds, and metadata ("M") that names the process and its threads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from monograph.report.commands.profile import Profile, StepTime, rates_json
from monograph.report.render.tables import made_text, nodes_text
from monograph.runtime.atomic_write import replacing_named

PROCESS = 1
NAME_WIDTH = 40


def trace_events(path: str, found: Profile) -> list[dict[str, Any]]:
    """Return the events of the run with the median time, in order; the run begins at 0."""
    run = found.typical
    events = [metadata("process_name", 0, path)]
    for thread in range(found.threads):
        events.append(metadata("thread_name", thread, f"thread {thread}"))
        events.append(metadata("thread_sort_index", thread, thread))
    stamps = run.stamps
    blocks = [block("run", "run", 0, run.begin, run.end, run.begin, {"threads": found.threads})]
    for timed in found.steps:
        name = f"{timed.number} {timed.step.region.kind}"
        if timed.step.nodes:
            name += f": {nodes_text(timed.step.nodes, NAME_WIDTH)}"
        kind = timed.step.region.kind
        for thread in range(found.threads if timed.native else 1):
            begin, end = map(int, stamps[thread, timed.number])
            arguments = _arguments(found, timed)
            blocks.append(block(name, kind, thread, begin, end, run.begin, arguments))
    return events + sorted(blocks, key=lambda e: (e["ts"], -e["dur"]))


def write_trace(target: Path, path: str, found: Profile) -> None:
    """Write the trace as one JSON object."""
    other = {"model": path, "target": "cpu", "threads": found.threads}
    write_events(target, trace_events(path, found), other)


def write_events(target: Path, events: list[dict[str, Any]], other: dict[str, Any]) -> None:
    """Write events and facts about the run as one JSON object."""
    content = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}
    with replacing_named(target) as file:
        file.write(f"{json.dumps(content)}{os.linesep}".encode())


def metadata(name: str, thread: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if name.endswith("sort_index") else "name"
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "args": {key: value}}


def block(
    name: str, kind: str, thread: int, begin: int, end: int, origin: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": PROCESS,
        "tid": thread,
        "ts": (begin - origin) / 1e3,
        "dur": (end - begin) / 1e3,
        "args": args,
    }


def _arguments(found: Profile, timed: StepTime) -> dict[str, Any]:
    return {
        "step": timed.number,
        "onnx_nodes": timed.step.nodes,
        "makes": made_text(timed.step),
        "median_us": timed.seconds * 1e6,
        "waiting": timed.waiting,
        **rates_json(found, timed.work, timed.seconds),
    }
