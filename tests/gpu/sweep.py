"""Everything on a GPU against the reference: what `make test-gpu` runs.

    python -m tests.gpu.sweep                              # all of it
    python -m tests.gpu.sweep --part samples --only conv -v
    python -m tests.gpu.sweep --interpreter --part odd     # without a GPU, slowly

Parts: the tests of this folder; real models in f32 and f16 (folders in `carry/` or
../shared/models); samples of ops; odd shapes; the graphs of the rules' tests, before and after;
random graphs; ONNX's own backend suite; samples with NaN, infinities and numbers at the edge of
casts. Cases are shared among processes, one for each core, that compile their kernels and run
them; one that crashes or takes too long is followed by another. Tests that need the device for
themselves come before all others. Exits with 1 where anything is wrong, or refused.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.gpu.sweep_worker import PARTS

TESTS = "tests"
FOLDER = "tests/gpu"
CASE_SECONDS = 300.0
"""The seconds that one case may take, its kernels' compilation included."""
START_SECONDS = 180.0
"""The seconds that a process may take before its first case."""


@dataclass
class Found:
    """The results of the cases of all parts."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    problems: list[tuple[str, str, str, str]] = field(default_factory=list)
    """(part, name, outcome, why) of what is not right."""

    def add(self, part: str, name: str, outcome: str, why: str) -> None:
        with self.lock:
            self.counts.setdefault(part, Counter())[outcome] += 1
            if outcome not in ("right", "left out"):
                self.problems.append((part, name, outcome, why))

    def total(self) -> Counter[str]:
        return sum(self.counts.values(), Counter())


@dataclass(frozen=True)
class Ended:
    """A process that ended before its share did: the case that it took with it, if any."""

    number: int
    part: str
    name: str
    why: str


def run_share(
    found: Found, parts: list[str], only: str, share: int, shares: int, core: int | None
) -> None:
    """Does one share of the cases, with as many processes as it takes."""
    begin = 0
    while True:
        command = [sys.executable, "-m", "tests.gpu.sweep_worker", *parts, f"--only={only}"]
        command += [f"--share={share}", f"--shares={shares}", f"--begin={begin}"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if share or begin else None,
            text=True,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        ended = _listen(process, found)
        if ended is None:
            return
        if ended.name:
            found.add(ended.part, ended.name, "wrong", ended.why)
        elif ended.number <= begin:
            found.add("processes", f"share {share} of {shares}", "wrong", ended.why)
            return
        begin = ended.number + 1 if ended.name else ended.number


def _listen(process: subprocess.Popen[str], found: Found) -> Ended | None:
    """Hears a process out; how it ended, where that was too early."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    number, part, name, limit = 0, "", "", START_SECONDS
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            process.kill()
            process.wait()
            return Ended(number, part, name, f"took more than {limit:.0f} s")
        if line is None:
            break
        said = json.loads(line)
        if "begins" in said:
            number, part, name = said["number"], said["part"], said["begins"]
            limit = CASE_SECONDS
        else:
            found.add(said["part"], said["ends"], said["outcome"], said["why"])
            number, name = number + 1, ""
    code = process.wait()
    return None if code == 0 else Ended(number, part, name, f"its process ended with {code}")


def run_parts(found: Found, parts: list[str], only: str, jobs: int) -> None:
    """All cases of some parts, shared among processes."""
    cores = sorted(os.sched_getaffinity(0))
    # A process that has one core compiles by itself, and starts no others for that.
    own = [cores[i % len(cores)] if jobs > 1 else None for i in range(jobs)]
    _all_of(
        threading.Thread(target=run_share, args=(found, parts, only, i, jobs, own[i]))
        for i in range(jobs)
    )


def _all_of(threads: Iterable[threading.Thread]) -> None:
    started = list(threads)
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def run_tests(found: Found, only: str, jobs: int) -> None:
    """The tests of this folder: those that need the device for themselves, then shares of the rest.

    The mark of the former is `alone`: see `tests.gpu.faults.rig`.
    """
    _run_pytest(found, only, "alone", "")
    _all_of(
        threading.Thread(target=_run_pytest, args=(found, only, "not alone", f"{share}/{jobs}"))
        for share in range(jobs)
    )


def _run_pytest(found: Found, only: str, marked: str, share: str) -> None:
    """Tests with or without a mark in a process: all of them, or a share."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", FOLDER]
        command += ["-m", marked, f"--junitxml={report}", *(["-k", only] if only else [])]
        own = {"MONOGRAPH_TEST_SHARE": share}
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )
        if report.exists():
            _add_tests(found, report)
        else:
            name = f"share {share}" if share else f"those marked {marked}"
            found.add(TESTS, name, "wrong", (done.stdout + done.stderr)[-2000:])


def _add_tests(found: Found, report: Path) -> None:
    """Return what came of the tests that pytest reports."""
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [e for e in case if e.tag in ("failure", "error")]
        left_out = any(e.tag == "skipped" for e in case)
        name = f"{case.get('classname')}::{case.get('name')}"
        why = bad[0].get("message", "") if bad else ""
        outcome = "refused" if "UnsupportedError" in why else "wrong"
        found.add(TESTS, name, outcome if bad else "left out" if left_out else "right", why)


def show(found: Found, seconds: float, verbose: bool) -> None:
    """Return what is not right, and a table."""
    for part, name, outcome, why in sorted(found.problems):
        text = why.strip() if verbose else (why.strip().splitlines() or [""])[-1][:200]
        print(f"{outcome.upper()} {part} {name}: {text}")
    heads = ("right", "refused", "wrong", "left out")
    print(f"{'part':16}{'cases':>10}" + "".join(f"{h:>10}" for h in heads))
    for part, counts in found.counts.items():
        print(f"{part:16}{counts.total():>10}" + "".join(f"{counts[h]:>10}" for h in heads))
    total = found.total()
    print(f"{total['right']} of {total.total()} are right, in {seconds:.0f} s", flush=True)


def _show_when_stopped(tell: Callable[[], None]) -> None:
    """Lets what is known so far be printed where a limit of the caller's ends the sweep."""

    def stop(number: int, _: object) -> None:
        print("the sweep was stopped; so far:")
        tell()
        signal.signal(number, signal.SIG_DFL)
        os.killpg(0, number)  # the processes that share the cases go too

    if os.getpgrp() != os.getpid():
        os.setpgrp()
    signal.signal(signal.SIGTERM, stop)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=(TESTS, *PARTS))
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--interpreter", action="store_true", help="without a GPU")
    parser.add_argument("-v", action="store_true", help="print the whole of what is wrong")
    options = parser.parse_args()
    own: dict[str, Any] = {"MONOGRAPH_TEST_DEVICE": "" if options.interpreter else "cuda"}
    if options.interpreter:
        own["TRITON_INTERPRET"] = "1"
    os.environ |= own
    began, found = time.monotonic(), Found()
    _show_when_stopped(lambda: show(found, time.monotonic() - began, options.v))
    parts = options.part or [TESTS, *PARTS]
    if TESTS in parts:
        run_tests(found, options.only, options.jobs)
    if others := [p for p in parts if p != TESTS]:
        run_parts(found, others, options.only, options.jobs)
    show(found, time.monotonic() - began, options.v)
    total = found.total()
    return 1 if found.problems or not total["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
