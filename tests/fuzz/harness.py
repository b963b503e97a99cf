"""Loads and runs mutants of valid models, in memory-limited subprocesses: only our errors come out.

    python -m tests.fuzz.harness --count 20000 --seed 1
    python -m tests.fuzz.harness --replay fuzz-findings/1-1234.onnx

A mutant is made from the seed and its number alone, so a finding repeats; it is saved as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY = 3 << 30
SECONDS = 10
"""... for loading and running one mutant, before it counts as hanging."""
PATIENCE = 3 * SECONDS
"""After this the parent gives up on a worker that is stuck outside of Python."""
MAX_ELEMENTS = 1 << 20
LENT = 1 << 25
EXTREMES = (0, 1, 2, 3, -1, -2, 1000, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))


class Hang(BaseException):
    """A mutant took too long. No Exception, so that nothing takes it for one of its own."""


# In the worker


def make_mutant(seed: int, number: int) -> bytes:
    from tests.fuzz.mutate import mutate
    from tests.fuzz.seeds import seeds

    rng = random.Random(f"{seed}:{number}")
    return mutate(rng.choice(seeds()), rng.choice(seeds()), rng)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def try_mutant(raw: bytes, rng: random.Random) -> tuple[str, str]:
    """(outcome, detail); the outcome "finding" is what must not happen."""
    import monograph
    from monograph.errors import MonographError
    from monograph.ir.memory import lend
    from monograph.report.commands.inspect import inspect_model

    session = None
    stage = "refused"
    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if rng.random() < 0.1:
                inspect_model(raw)
            session = monograph.load(raw, target="reference")
            stage = "failed"
            if rng.random() < 0.1 and session._bindings.model.imported:
                check_text(session.graph)
            feeds = make_feeds(session.inputs, rng)
            if feeds is None:
                return "loaded", "too large to run"
            # Work that is merely large would look like a hang.
            with lend(LENT):
                session.run(feeds)
    except MonographError as e:
        if e.internal or e.message.startswith("out of memory"):
            # Python's own error, where one was converted, says where the fault lies.
            lines = traceback.format_exception(e.__cause__ or e, limit=-10)
            return "finding", f"{e}\n{''.join(lines)}"
        return stage, str(e).splitlines()[0][:100]
    except Hang:
        if session is not None and _loops(session):
            return "endless", "a loop of the model"
        return "finding", f"hangs\n{traceback.format_exc(limit=-8)}"
    except Exception:
        return "finding", traceback.format_exc(limit=-10)
    return "ran", ""


def check_text(graph: Any) -> None:
    """Whatever a file calls things, the text of a graph reads back as the same graph."""
    from monograph.ir import constants, parse_graph, print_graph

    text = print_graph(graph)
    try:
        again = parse_graph(text, constants(graph))
    except Exception as e:
        raise AssertionError(f"the text form does not parse: {e}\n{text[:2000]}") from e
    assert again == graph, f"the text form reads back as another graph:\n{text[:2000]}"


def _loops(session: Any) -> bool:
    """Tell whether the data may ask for many steps one after the other: slow, and no hang."""
    names = {v.op.name for v in session.graph.values} if session._bindings.model.imported else set()
    return bool(names & {"loop", "scan", "rnn", "gru", "lstm"})


def make_feeds(ports: Any, rng: random.Random) -> dict[str, Any] | None:
    """Small random arrays for a model's inputs; None where one of them is not small."""
    sizes: dict[str, int] = {}
    feeds = {}
    for port in ports:
        made, fits = _make_feed(port.type, sizes, rng)
        if not fits:
            return None
        feeds[port.name] = made
    return feeds


def _make_feed(kind: Any, sizes: dict[str, int], rng: random.Random) -> tuple[Any, bool]:
    import numpy as np

    from monograph.ir import OptionalType, SequenceType

    if isinstance(kind, OptionalType):
        return (None, True) if rng.random() < 0.3 else _make_feed(kind.element, sizes, rng)
    if isinstance(kind, SequenceType):
        made = [_make_feed(kind.element, {}, rng) for _ in range(rng.randrange(3))]
        return [m for m, _ in made], all(fits for _, fits in made)
    dims = [rng.choice((1, 2, 3)) for _ in range(rng.randrange(5))]
    if kind.shape is not None:
        dims = [
            d if isinstance(d, int) else sizes.setdefault(d, rng.choice((1, 2, 3, 0)))
            for d in kind.shape
        ]
    count = 1
    for d in dims:
        count *= d
    if count > MAX_ELEMENTS:
        return None, False
    generator = np.random.default_rng(rng.randrange(2**32))
    if kind.dtype.is_string:
        return generator.choice(np.array(["a", "bc", "1", ""], object), dims), True
    low = -3 if kind.dtype.is_signed else 0
    if kind.dtype.bits < 4:
        low, high = (-2, 2) if kind.dtype.is_signed else (0, 4)
        return generator.integers(low, high, dims).astype(kind.dtype.numpy), True
    if rng.random() < 0.1 and kind.dtype.name in ("i64", "i32", "f32", "f64"):
        extremes = EXTREMES if kind.dtype.is_integer else [0, 1e30, np.inf, -np.inf, np.nan]
        return generator.choice(np.array(extremes), dims).astype(kind.dtype.numpy), True
    if kind.dtype.is_float or kind.dtype.kind == "complex":
        return generator.uniform(-2, 2, dims).astype(kind.dtype.numpy), True
    return generator.integers(low, 5, dims).astype(kind.dtype.numpy), True


def limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(seed: int, first: int, count: int, step: int) -> None:
    """Tries mutants one by one and says so, a line each before and after."""
    from tests.fuzz.seeds import seeds

    seeds()
    limit_memory()
    for number in range(first, count, step):
        print(json.dumps({"begin": number}), flush=True)
        rng = random.Random(f"{seed}:{number}:feeds")
        outcome, detail = try_mutant(make_mutant(seed, number), rng)
        print(json.dumps({"end": number, "outcome": outcome, "detail": detail}), flush=True)


# In the parent


@dataclass
class Report:
    """The results of the mutants tried so far."""

    seed: int
    folder: Path | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[int]] = field(default_factory=dict)

    def add(self, number: int, outcome: str, detail: str) -> None:
        self.outcomes[outcome] += 1
        if outcome != "finding":
            return
        frames = [line.strip() for line in detail.splitlines() if line.startswith("  File")]
        key = f"{frames[-1] if frames else ''} {detail.strip().splitlines()[-1][:60]}"
        self.findings.setdefault(key, []).append(number)
        if len(self.findings[key]) > 3:
            return
        name = ""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{self.seed}-{number}.onnx"
            path.write_bytes(make_mutant(self.seed, number))
            name = str(path)
        print(f"FINDING seed {self.seed} number {number} {name}\n{detail}", flush=True)


class Worker:
    """A subprocess that tries every `step`-th mutant, restarted after a crash."""

    def __init__(self, seed: int, first: int, count: int, step: int) -> None:
        self.seed, self.next, self.count, self.step = seed, first, count, step
        self.process: subprocess.Popen[str] | None = None
        self.current: int | None = None
        self.heard = time.monotonic()
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.fuzz.harness", "--work"]
        command += map(str, (self.seed, self.next, self.count, self.step))
        root = Path(__file__).parents[2]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
        )
        self.current = None
        self.heard = time.monotonic()

    def listen(self, report: Report) -> bool:
        """Takes one line; False when the worker has ended for good."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.heard = time.monotonic()
        if line:
            said = json.loads(line)
            if "begin" in said:
                self.current = said["begin"]
            else:
                report.add(said["end"], said["outcome"], said["detail"])
                self.next, self.current = said["end"] + self.step, None
            return True
        status = self.process.wait()
        self.process.stdout.close()
        if self.current is None:
            if status != 0:
                raise RuntimeError(f"a worker ended with status {status}")
            return False
        report.add(self.current, "finding", f"the process died with status {status}")
        self.next = self.current + self.step
        return False

    def stuck(self) -> bool:
        return self.current is not None and time.monotonic() - self.heard > PATIENCE

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()


def fuzz(seed: int, count: int, jobs: int, folder: Path | None, progress: bool) -> Report:
    report = Report(seed, folder)
    started = said = time.monotonic()
    selector = selectors.DefaultSelector()
    workers = [Worker(seed, i, count, jobs) for i in range(jobs)]
    for worker in workers:
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore
    try:
        while selector.get_map():
            for key, _ in selector.select(timeout=1):
                worker = key.data
                if worker.listen(report):
                    continue
                selector.unregister(key.fileobj)
                if worker.next < count:
                    worker.start()
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            for worker in workers:
                if worker.stuck():
                    worker.stop()
            if progress and time.monotonic() - said > 10:
                said = time.monotonic()
                done = sum(report.outcomes.values())
                print(
                    f"{done}/{count} in {said - started:.0f} s: {dict(report.outcomes)}", flush=True
                )
    finally:
        for worker in workers:
            worker.stop()
    return report


def replay(path: Path) -> int:
    limit_memory()
    raw = path.read_bytes()
    # The name of a finding gives back the feeds that went with it; others may find more.
    draws = [f"{path.stem.replace('-', ':')}:feeds", "1", "2"]
    outcomes = [try_mutant(raw, random.Random(draw)) for draw in draws]
    for outcome, detail in outcomes:
        print(outcome, detail)
    return int(any(outcome == "finding" for outcome, _ in outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MONOGRAPH_TEST_SEED", "0")))
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--work", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return 0
    if options.replay:
        return replay(options.replay)
    report = fuzz(options.seed, options.count, options.jobs, options.folder, progress=True)
    total = sum(report.outcomes.values())
    print(f"{total} mutants, seed {options.seed}: {dict(report.outcomes)}")
    for key, numbers in sorted(report.findings.items(), key=lambda kv: -len(kv[1])):
        print(f"  {len(numbers)} x {key}: {numbers[:8]}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
