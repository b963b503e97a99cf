"""Measures capture and replay on a GPU, in sessions as users have them.

    python -m benchmarks.capture                              # every model, some minutes
    python -m benchmarks.capture -k towers --results somewhere
    python -m benchmarks.capture --target gpu:interpreter     # tiny models, to try it out

Two sessions of each model take turns: one with `capture="auto"`, one with `capture="off"`. Figures
are medians over rounds in us; a ratio is that of medians. *same* and *moved* are what a run costs
the host, which does not wait for the device: device tensors at the addresses of the run before,
or inputs and outputs at new ones. *synced*: from the call to the end of the device's work.
*queued*: one of many runs back to back. JSON and a page of Markdown go to --results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.capture_models import subjects
from benchmarks.capture_report import bars, page
from benchmarks.gpu import device_name, installed
from benchmarks.needs import need_torch, result_path

HERE = Path(__file__).parent


def child(names: list[str], options: argparse.Namespace) -> None:
    """Measures models one after the other; prints a line of JSON for all that is known of one."""
    if options.target.endswith("interpreter"):
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.capture_measure import Measured, short

    known = {s.name: s for s in subjects(options.tiny)}
    for name in names:
        _tell({"model": name, "begun": True})
        measured = None
        try:
            measured = Measured(known[name], options)
            for part in measured.parts():
                _tell({"model": name, **part})
        except Exception as error:  # the others are measured
            if options.debug:
                raise
            _tell({"model": name, "failed": short(error)})
        del measured
        _tell({"model": name, "ended": True})


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def measure(names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All models, in processes that are started anew where one breaks or takes too long."""
    end = time.monotonic() + options.limit
    found: dict[str, Any] = {}
    left = list(names)
    while left and (seconds := end - time.monotonic()) > 5:
        said = _one_process(left, options, seconds, found)
        left = [n for n in left if n not in said]
    for name in left:
        found[name] = {"failed": "no time was left"}
    return found


def _one_process(
    names: list[str], options: argparse.Namespace, seconds: float, found: dict[str, Any]
) -> set[str]:
    """Measures models until the process ends; the names of those that it has begun."""
    passed = [f"--target={options.target}", f"--tune={options.tune}", f"--inputs={options.inputs}"]
    passed += [f"--tuning={options.tuning}"] if options.tuning else []
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.capture", *passed, *(f"--child={n}" for n in names)],
        stdout=subprocess.PIPE,
        stderr=sys.stderr if options.debug else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    late: list[str] = []
    begun: set[str] = set()
    ended: set[str] = set()
    timers: list[threading.Timer] = []

    def watch(name: str, limit: float) -> None:
        timer = threading.Timer(limit, lambda: (late.append(name), _stop(process.pid)))
        timer.daemon = True
        timer.start()
        timers.append(timer)

    watch("", seconds)
    assert process.stdout is not None
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        name = said.pop("model")
        if said.pop("begun", False):
            begun.add(name)
            watch(name, options.each)
        if said.pop("ended", False):
            ended.add(name)
            timers.pop().cancel()
            _print(name, found.get(name, {}))
        found.setdefault(name, {}).update(said)
    code = process.wait()
    for timer in timers:
        timer.cancel()
    for name in begun - ended:
        why = "took too long" if late else f"its process ended with {code}"
        found.setdefault(name, {})["failed"] = why
    return begun or set(names[:1])


def _stop(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _print(name: str, figures: Mapping[str, Any]) -> None:
    shown = {k: round(v, 1) if isinstance(v, float) else v for k, v in figures.items()}
    print(name, json.dumps(shown), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("--target", default="gpu")
    parser.add_argument("--tune", default="fast", choices=("off", "fast", "full"))
    parser.add_argument("--tuning", type=Path, help="keeps what was measured")
    parser.add_argument("--inputs", type=int, default=100, help="random inputs to compare bits on")
    parser.add_argument("--each", type=float, default=90.0, help="seconds a model, at most")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds in all")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--debug", action="store_true", help="show what processes complain about")
    parser.add_argument("--child", action="append", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tiny = options.target.endswith("interpreter")
    return options


def main() -> int:
    options = parsed()
    if options.child:
        child(options.child, options)
        return 0
    every = [s.name for s in subjects(options.tiny)]
    names = [n for n in every if not options.k or any(w in n for w in options.k)]
    if not names:
        print(f"no model of that name; there are {', '.join(every)}")
        return 1
    need_torch()
    record: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": options.target if options.tiny else device_name(),
        "python": platform.python_version(),
        "versions": installed(),
        "tune": options.tune,
        "models": measure(names, options),
    }
    record["bars"] = [b.as_json() for b in bars(record["models"])]
    stem = result_path(options.results, "capture", record["device"])
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page(record))
    print(page(record))
    return 0 if not any("failed" in m for m in record["models"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
