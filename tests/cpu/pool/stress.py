"""Sessions in many threads at once, for a bounded time: models, their answers, and the crowd.

    python -m tests.cpu.pool.stress --seconds 60

Every answer must have the bits of the first one; a session that fails on bad data must fail on
that alone. What other threads create and drop must disturb nobody.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ExecutionError
from monograph.runtime.cpu import executable as runtime

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
HANG = 120.0
"""Seconds after which a thread counts as hung."""


def _weights(generator: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    data = generator.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array(data.astype(np.float32), name)


def _model(nodes: list[Any], x: Any, y: Any, weights: list[Any]) -> bytes:
    ports = [helper.make_tensor_value_info(*p) for p in (x, y)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


def chain(seed: int = 0) -> bytes:
    """Convolutions, a pool and a softmax: barriers between kernels of several kinds."""
    r = np.random.default_rng(seed)
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        make("Sigmoid", ["a"], ["s"]),
        make("Mul", ["a", "s"], ["b"]),
        make("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        make("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        make("GlobalAveragePool", ["d"], ["e"]),
        make("Flatten", ["e"], ["f"]),
        make("MatMul", ["f", "w2"], ["g"]),
        make("Softmax", ["g"], ["y"]),
    ]
    weights = [_weights(r, "w0", 19, 5, 3, 3), _weights(r, "w1", 24, 19, 3, 3)]
    weights.append(_weights(r, "w2", 24, 11))
    return _model(nodes, ("x", FLOAT, [1, 5, 21, 18]), ("y", FLOAT, [1, 11]), weights)


def rows(seed: int = 1) -> bytes:
    """Dots and a norm over a batch of any size: an executable for each."""
    r = np.random.default_rng(seed)
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "w0"], ["a"]),
        make("Relu", ["a"], ["b"]),
        make("LayerNormalization", ["b", "scale"], ["c"]),
        make("MatMul", ["c", "w1"], ["y"]),
    ]
    weights = [_weights(r, "w0", 37, 64), _weights(r, "w1", 64, 3), _weights(r, "scale", 64)]
    return _model(nodes, ("x", FLOAT, ["n", 37]), ("y", FLOAT, ["n", 3]), weights)


def lookup(seed: int = 2) -> bytes:
    """A gather, which fails inside native code where an index is out of range."""
    table = _weights(np.random.default_rng(seed), "t", 50, 33)
    nodes = [helper.make_node("Gather", ["t", "x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    return _model(nodes, ("x", INT64, [40]), ("y", FLOAT, [40, 33]), [table])


@dataclass
class Job:
    """A session, inputs for it, and what they give: None for those that it must refuse."""

    session: monograph.Session
    given: list[dict[str, Any]]
    answers: list[list[Any] | None] = field(default_factory=list)

    def learn(self) -> None:
        """Runs everything once, alone."""
        self.answers = [self._run(i) for i in range(len(self.given))]

    def again(self, which: int) -> str | None:
        """Return what is wrong with another run."""
        made, answer = self._run(which), self.answers[which]
        if made is None or answer is None:
            return None if made is answer else f"input {which}: refused once and not again"
        same = all(np.array_equal(a, b) for a, b in zip(made, answer, strict=True))
        return None if same else f"input {which}: other bits than the first time"

    def _run(self, which: int) -> list[Any] | None:
        try:
            return self.session.run(self.given[which])
        except ExecutionError:
            return None


def load(model: bytes, threads: int, **options: Any) -> monograph.Session:
    return monograph.load(model, target="cpu", threads=threads, cache_dir="", **options)


def make_jobs() -> list[Job]:
    """Sessions on 1 to 4 threads; every graph is worth several here."""
    r = np.random.default_rng(3)

    def floats(*shape: int) -> dict[str, Any]:
        return {"x": r.normal(size=shape).astype(np.float32)}

    good = {"x": r.integers(0, 50, 40)}
    bad = {"x": np.where(np.arange(40) == 7, 50, good["x"])}
    jobs = [
        Job(load(chain(), 2), [floats(1, 5, 21, 18) for _ in range(4)]),
        Job(load(chain(9), 4), [floats(1, 5, 21, 18) for _ in range(4)]),
        Job(load(chain(), 1), [floats(1, 5, 21, 18)]),
        Job(load(rows(), 3, max_cached_shapes=2), [floats(n, 37) for n in (1, 5, 5, 16)]),
        Job(load(lookup(), 2), [good, bad]),
    ]
    for job in jobs:
        job.learn()
    # The two lookups: one answer, one refusal.
    assert [a is None for a in jobs[-1].answers] == [False, True]
    return jobs


class Crowd:
    """Threads that run jobs at random, and one that creates and drops sessions."""

    def __init__(self, jobs: list[Job], threads: int, seed: int = 0) -> None:
        self.jobs = jobs
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.runs: Counter[int] = Counter()
        makers = [threading.Thread(target=self._create, daemon=True)]
        self.threads = makers + [
            threading.Thread(target=self._work, args=(seed + i,), daemon=True)
            for i in range(threads)
        ]

    def run(self, seconds: float) -> None:
        """Goes on for some time, then waits for everyone."""
        for thread in self.threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        end = time.monotonic() + HANG
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.problems.append("a thread hangs")

    def _work(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        while not self.stop.is_set():
            number = int(generator.integers(len(self.jobs)))
            job = self.jobs[number]
            self._note(job.again(int(generator.integers(len(job.given)))), f"job {number}")
            self.runs[number] += 1

    def _create(self) -> None:
        """Sessions come and go while others run: code and memory with them."""
        turn = 0
        while not self.stop.is_set():
            turn += 1
            job = Job(load(rows(turn % 3), 1 + turn % 2), [{"x": np.ones((3, 37), np.float32)}])
            job.learn()
            self._note(job.again(0), "a session that goes")
            del job
            gc.collect()
            self.runs[-1] += 1

    def _note(self, problem: str | None, where: str) -> None:
        if problem is not None:
            self.problems.append(f"{where}: {problem}")
            self.stop.set()


def everyone_shares() -> Any:
    """Has small programs run on all threads that they may have."""
    return mock.patch.object(runtime, "ALONE_SECONDS", 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    with everyone_shares():
        crowd = Crowd(make_jobs(), options.threads, int(time.time()))
        crowd.run(options.seconds)
    print(f"{crowd.runs.total()} runs on {options.threads} threads: {dict(crowd.runs)}")
    for problem in crowd.problems[:10]:
        print(f"WRONG {problem}")
    return 1 if crowd.problems else 0


if __name__ == "__main__":
    sys.exit(main())
