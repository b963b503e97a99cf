"""One process of the benchmark of many shapes: one runtime, one model, many shapes. Prints JSON.

python -m benchmarks.many_shapes_side '{"side": "monograph", "case": "rec", ...}'
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import importlib  # noqa: E402 - the imports of both sides belong to their time
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

THREADS = 2
STEADY_RUNS = 7
PAUSE_SECONDS = 0.08
"""The pause before steady runs."""
BACKGROUND_LIMIT = 90.0
"""The longest time to wait for a compilation in the background."""

Run = Callable[[dict[str, Any]], object]


def open_monograph(path: str, given: Mapping[str, Any]) -> tuple[Run, Any]:
    import monograph

    options = {"threads": THREADS, "cache_dir": given["cache"], "specialise": given["specialise"]}
    session = monograph.load(path, **options)
    return session.run, session


def open_onnxruntime(path: str, _: Mapping[str, Any]) -> tuple[Run, Any]:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds), session


SIDES = {"monograph": open_monograph, "onnxruntime": open_onnxruntime}


def image(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"x": np.random.default_rng(sum(shape)).random(shape, np.float32)}


def tokens(shape: tuple[int, ...]) -> dict[str, Any]:
    ids = np.random.default_rng(sum(shape)).integers(1, 100, shape)
    return {"input_ids": ids, "attention_mask": np.ones(shape, np.int64)}


def rows(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"x": np.random.default_rng(shape).standard_normal((*shape, 64), np.float32)}


def letters(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"input_1": np.random.default_rng(shape).integers(1, 20, shape).astype(np.float32)}


def candidates(shape: tuple[int, ...]) -> dict[str, Any]:
    draw, (count, *lengths) = np.random.default_rng(shape), shape
    parts = zip(("line", "value", "variable"), lengths, strict=True)
    shapes = {f"{part}_input": (count, length, 101) for part, length in parts}
    shapes["feature_input"] = (count, 529)
    return {name: draw.standard_normal(size, np.float32) for name, size in shapes.items()}


def frames(shape: tuple[int, ...]) -> dict[str, Any]:
    sound = np.random.default_rng(shape).standard_normal(shape, np.float32)
    return {"input": sound / 10, "state": np.zeros((2, shape[0], 128), "f4"), "sr": np.array(16000)}


def waves(shape: tuple[int, ...]) -> dict[str, Any]:
    sound = np.random.default_rng(shape).standard_normal(shape, np.float32)
    return {"waveforms": sound / 10, "waveforms_lens": np.full(shape[0], shape[1])}


INPUTS = {f.__name__: f for f in (image, tokens, rows, letters, candidates, frames, waves)}


def timed(run: Run, feeds: dict[str, Any]) -> float:
    started = time.perf_counter()
    run(feeds)
    return time.perf_counter() - started


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def many_shapes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Run every shape in order, then measure the steady time of each."""
    make = INPUTS[given["inputs"]]
    shapes = [tuple(s) for s in given["shapes"]]
    feeds = {s: make(s) for s in shapes}
    started = time.perf_counter()
    run, session = SIDES[given["side"]](given["model"], given)
    loaded = time.perf_counter() - started
    first = [timed(run, feeds[s]) for s in shapes]
    total = time.perf_counter() - STARTED
    memory = resident()
    steady: dict[str, float] = {}
    if given.get("steady"):
        time.sleep(PAUSE_SECONDS)
        for s in dict.fromkeys(shapes):
            timed(run, feeds[s])
            steady[str(s)] = float(np.median([timed(run, feeds[s]) for _ in range(STEADY_RUNS)]))
    stats = dict(session.stats) if given["side"] == "monograph" else {}
    kept = ("variants", "compile_seconds", "peak_bytes", "constant_bytes", "from_disk")
    return {
        "total": total,
        "load": loaded,
        "runs": sum(first),
        "first": first,
        "steady": [steady.get(str(s)) for s in shapes],
        "resident": memory,
        "stats": {k: stats[k] for k in kept if k in stats},
        "guards": [len(g) for g in stats.get("guards", [])],
    }


def background(given: Mapping[str, Any]) -> dict[str, Any]:
    """Measure latency before, during and after a compilation in the background."""
    from monograph.runtime.cpu.tiers import LEAST_RUNS

    run, session = open_monograph(given["model"], given)
    feeds = image(tuple(given["shapes"][0]))

    def latencies(count: int) -> list[float]:
        found = []
        for _ in range(count):
            time.sleep(given["every"])
            found.append(timed(run, feeds))
        return found

    policy = session._bindings.tiers.policy
    policy.gain = 0.0  # nothing is worth a compilation
    latencies(LEAST_RUNS)
    before = latencies(given["count"])
    policy.gain, policy.seconds = 1.0, 0.0
    # The next run asks for the policy again.
    (executable,) = session._bindings.made()
    executable._due = 0.0
    during: list[float] = []
    started = time.perf_counter()
    while not session.stats["background"]["done"]:
        during += latencies(1)
        if time.perf_counter() - started > BACKGROUND_LIMIT:
            break
    took = time.perf_counter() - started
    after = latencies(given["count"])
    return {
        "before": before,
        "during": during,
        "after": after,
        "seconds": took,
        "background": session.stats["background"],
    }


def service(given: Mapping[str, Any]) -> dict[str, Any]:
    """Serve random widths to clients for a while."""
    from benchmarks.many_shapes_service import serve

    run, _ = SIDES[given["side"]](given["model"], given)
    latencies = serve(run, given)
    return {"requests": len(latencies), "latencies": latencies, "resident": resident()}


WORK = {"many_shapes": many_shapes, "background": background, "service": service}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(WORK[asked["work"]](asked)))
    sys.stdout.flush()
    os._exit(0) if asked["side"] == "onnxruntime" else sys.exit(0)
