"""Everything on a GPU against the reference: what `make test-gpu` runs.

    python -m tests.gpu.sweep                              # all of it
    python -m tests.gpu.sweep --part samples --only conv -v
    python -m tests.gpu.sweep --interpreter --part odd     # without a GPU, slowly

Parts: the tests of this folder; real models in f32 and f16 (folders in `carry/` or ../shared/models); samples of ops; odd
shapes; the graphs of the rules' tests, before and after; random graphs; ONNX's own backend suite;
samples with NaN, infinities and numbers at the edge of casts. Cases are shared among processes,
one for each core, that compile their kernels and run them; one that crashes or takes too long is
followed by another. Exits with 1 where anything is wrong, or refused.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.gpu.sweep_worker import PARTS

TESTS = "tests"
CASE_SECONDS = 120.0
"""What one case may take, its kernels' compilation included."""
START_SECONDS = 180.0
"""What a process may take before its first case."""


@dataclass
class Part:
    """What came of one part."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, outcome, why) of what is not right."""

    def add(self, name: str, outcome: str, why: str) -> None:
        with self.lock:
            self.counts[outcome] += 1
            if outcome != "right":
                self.problems.append((name, outcome, why))


def run_share(part: Part, only: str, share: int, shares: int, core: int | None) -> None:
    """Does one share of a part, with as many processes as it takes."""
    begin = 0
    while True:
        command = [sys.executable, "-m", "tests.gpu.sweep_worker", part.name, f"--only={only}"]
        command += [f"--share={share}", f"--shares={shares}", f"--begin={begin}"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if share or begin else None,
            text=True,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        running = _listen(process, part)
        if running is None:
            return
        number, name, why = running
        if name:
            part.add(name, "wrong", why)
        elif number == begin:
            part.add(f"share {share} of {shares}", "wrong", why)
            return
        begin = number + 1 if name else number


def _listen(process: subprocess.Popen[str], part: Part) -> tuple[int, str, str] | None:
    """Hears a process out; where it ends early, (number, case that it took with it, why)."""
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    number, name, limit = 0, "", START_SECONDS
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            process.kill()
            process.wait()
            return number, name, f"took more than {limit:.0f} s"
        if line is None:
            break
        said = json.loads(line)
        if "begins" in said:
            number, name, limit = said["number"], said["begins"], CASE_SECONDS
        else:
            part.add(said["ends"], said["outcome"], said["why"])
            number, name = number + 1, ""
    code = process.wait()
    return None if code == 0 else (number, name, f"its process ended with {code}")


def run_part(name: str, only: str, jobs: int) -> Part:
    part = Part(name)
    cores = sorted(os.sched_getaffinity(0))
    threads = [
        threading.Thread(
            target=run_share,
            args=(part, only, i, jobs, cores[i % len(cores)] if jobs > 1 else None),
        )
        for i in range(jobs)
    ]
    _all_of(threads)
    return part


def run_tests(only: str, jobs: int) -> Part:
    """The tests of this folder on the device, shared among processes."""
    part = Part("tests")

    def run(share: int, folder: str) -> None:
        report = Path(folder) / f"{share}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
        command += [f"--junitxml={report}", *(["-k", only] if only else [])]
        own = {"MONOGRAPH_TEST_SHARE": f"{share}/{jobs}"}
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        for case in cases:
            bad = [e for e in case if e.tag in ("failure", "error")]
            left_out = any(e.tag == "skipped" for e in case)
            name = f"{case.get('classname')}::{case.get('name')}"
            why = bad[0].get("message", "") if bad else ""
            outcome = "refused" if "UnsupportedError" in why else "wrong"
            part.add(name, outcome if bad else "left out" if left_out else "right", why)
        if not report.exists():
            part.add(f"share {share}", "wrong", (done.stdout + done.stderr)[-2000:])

    with tempfile.TemporaryDirectory() as folder:
        _all_of([threading.Thread(target=run, args=(i, folder)) for i in range(jobs)])
    return part


def _all_of(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def show(part: Part, seconds: float, verbose: bool) -> None:
    for name, outcome, why in sorted(part.problems):
        text = why.strip() if verbose else (why.strip().splitlines() or [""])[-1][:200]
        print(f"{outcome.upper()} {part.name} {name}: {text}", flush=True)
    row = [part.counts.total(), *(part.counts[k] for k in ("right", "refused", "wrong"))]
    print(f"{part.name:16}" + "".join(f"{n:>8}" for n in row) + f"{seconds:>8.0f}", flush=True)


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
    heads = ("cases", "right", "refused", "wrong", "s")
    print(f"{'part':16}" + "".join(f"{h:>8}" for h in heads), flush=True)
    total = Counter[str]()
    for name in options.part or [TESTS, *PARTS]:
        began = time.monotonic()
        jobs, only = options.jobs, options.only
        part = run_tests(only, jobs) if name == TESTS else run_part(name, only, jobs)
        show(part, time.monotonic() - began, options.v)
        total += part.counts
    print(f"{total['right']} of {total.total()} are right")
    wrong = total["wrong"] + total["refused"]
    return 1 if wrong or not total["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
