"""Many shapes beside ONNX Runtime: time from an empty cache and from disk, latency, memory.

    python -m benchmarks.many_shapes                       # all tables (some minutes)
    python -m benchmarks.many_shapes rec det --rounds 3    # two of them
    python -m benchmarks.many_shapes --results benchmarks/results

Every figure comes from a process of its own, from its first line on: imports, load, compilation and
all runs. The sides take turns, with a pause before each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.many_shapes_cases import CASES

SEED = 20
PAUSE_SECONDS = 0.1
"""The pause before each process: threads of another may still spin."""
ALLOWED_SECONDS = 3.0
"""The seconds that loading and compiling may take, from an empty cache."""
LATE_P95, LATE_MOST = 0.003, 0.015
"""The seconds that the first run of a shape may take beyond its steady time."""
RESIDENT, ON_DISK = 1.2, 3.0
"""The memory and the disk that may be used, beside ONNX Runtime's memory and the model."""
DELAYED = 2.0
"""The latency that 99% of runs may take during a compilation, beside the steady one."""
MORE_REQUESTS = 1.2
"""The requests that are served, beside those of ONNX Runtime."""
MEGABYTE = 1e6
ONNXRUNTIME = "onnxruntime"
Found = dict[str, Any]
TABLES = (*CASES, "background", "service")


def started(given: Mapping[str, Any]) -> Found:
    """Run one side in a fresh process."""
    time.sleep(PAUSE_SECONDS)
    # Installed packages have byte code; a source tree that was never run has none.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "bench-pyc"))
    command = [sys.executable, "-m", "benchmarks.many_shapes_side", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def disk_bytes(folder: str) -> int:
    return sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())


def many_shapes(name: str, specialise: str, rounds: int) -> Found:
    """Measure one model at many shapes on both sides, in turns."""
    case = CASES[name]
    model, shapes = case.path(), case.draw(random.Random(SEED))
    assert model is not None
    given = {
        "work": "many_shapes",
        "model": str(model),
        "inputs": case.inputs,
        "shapes": shapes,
        "specialise": specialise,
        "cache": "",
        "steady": True,
    }
    started({**given, "side": "monograph", "steady": False})  # byte code, and files in memory
    started({**given, "side": ONNXRUNTIME, "steady": False})
    sides: dict[str, list[Found]] = {"empty": [], "disk": [], ONNXRUNTIME: []}
    kept = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            own = {**given, "side": "monograph", "cache": cache}
            sides["empty"].append(started(own))
            sides[ONNXRUNTIME].append(started({**given, "side": ONNXRUNTIME}))
            sides["disk"].append(started(own))
            kept = disk_bytes(cache)
    found = {side: _summary(runs) for side, runs in sides.items()}
    sizes = {"disk_bytes": kept, "model_bytes": model.stat().st_size}
    return {
        "model": model.stem if case.model == "" else case.model,
        "shapes": len(shapes),
        **found,
        **sizes,
    }


def _summary(runs: Sequence[Found]) -> Found:
    """Return the medians of several processes, and how late the first runs of shapes were."""
    middle = {k: float(np.median([r[k] for r in runs])) for k in ("total", "load", "runs")}
    late = [late_of(r) for r in runs]
    return {
        **middle,
        "late_p95": float(np.median([np.percentile(x, 95) for x in late])),
        "late_most": float(np.median([max(x) for x in late])),
        "steady": float(np.median([np.sum(r["steady"]) for r in runs])),
        "resident": float(np.median([r["resident"] for r in runs])),
        "stats": runs[-1]["stats"],
        "guards": runs[-1]["guards"],
    }


def late_of(run: Found) -> list[float]:
    """Return by how much the first run of each shape took longer than it does later.

    The very first run loads or compiles; the same shape again is no first run.
    """
    pairs = zip(run["first"], run["steady"], strict=True)
    return [first - steady for first, steady in list(pairs)[1:]]


def background(specialise: str) -> Found:
    """Measure latency while exact code is compiled in the background."""
    model = str(CASES["rec"].path())
    with tempfile.TemporaryDirectory() as cache:
        given = {"work": "background", "side": "monograph", "model": model, "cache": cache}
        given |= {"shapes": [(1, 3, 48, 320)], "every": 0.005, "count": 500}
        found = started({**given, "specialise": "auto"})
    figures = {
        when: {f"p{p}": float(np.percentile(found[when], p)) for p in (50, 99)}
        for when in ("before", "during", "after")
        if found[when]
    }
    return {**figures, "seconds": found["seconds"], "state": found["background"]}


def service(specialise: str, seconds: float) -> Found:
    """Count the requests that eight clients are served, from an empty cache on."""
    given = {"work": "service", "model": str(CASES["rec"].path())}
    given |= {"widths": [32, 960], "clients": 8, "seconds": seconds, "seed": SEED}
    found = {}
    for side in (ONNXRUNTIME, "monograph"):
        with tempfile.TemporaryDirectory() as cache:
            run = started({**given, "side": side, "cache": cache, "specialise": specialise})
        latencies = run.pop("latencies")
        found[side] = run | {f"p{p}": float(np.percentile(latencies, p)) for p in (50, 95, 99)}
    return found


def show_many(out: Console, found: Found) -> None:
    """Print the times of one model and the bars that they are held to."""
    title = f"{found['model']}: {found['shapes']} shapes, 2 threads"
    rows = Table(title=title)
    for name in ("", "total", "load", "runs", "steady", "late p95", "late max", "resident"):
        rows.add_column(name, justify="left" if not name else "right")
    for side in ("empty", "disk", ONNXRUNTIME):
        s = found[side]
        seconds = [f"{s[k]:.3f} s" for k in ("total", "load", "runs", "steady")]
        late = [f"{s[k] * 1e3:.1f} ms" for k in ("late_p95", "late_most")]
        rows.add_row(side, *seconds, *late, f"{s['resident'] / MEGABYTE:.0f} MB")
    out.print(rows)
    for name, figure, bar, unit in bars_of(found):
        verdict = "met" if figure <= bar else "MISSED"
        out.print(
            f"  {name}: {figure:.2f} {unit}, bar {bar:.2f} {unit}: {verdict}", highlight=False
        )
    seconds = found["disk"]["stats"]["compile_seconds"]
    again = sum(v for k, v in seconds.items() if k != "background")
    variants = found["empty"]["stats"]["variants"]
    out.print(f"  variants: {variants}; compiled again from disk: {again:.2f} s", highlight=False)


def bars_of(found: Found) -> list[tuple[str, float, float, str]]:
    """Return the name, the figure, its bar and the unit of all that is held to a bar."""
    peer, empty, disk = found[ONNXRUNTIME], found["empty"], found["disk"]
    late = [
        (f"{name}, {where}", side[key] * 1e3, bar * 1e3, "ms")
        for where, side in (("empty", empty), ("disk", disk))
        for name, key, bar in (
            ("late p95", "late_p95", LATE_P95),
            ("late max", "late_most", LATE_MOST),
        )
    ]
    memory, model = peer["resident"], found["model_bytes"]
    return [
        ("empty cache", empty["total"], ALLOWED_SECONDS + peer["total"], "s"),
        ("from disk", disk["total"], peer["total"], "s"),
        *late,
        ("steady", disk["steady"], peer["steady"], "s"),
        ("resident", disk["resident"] / MEGABYTE, RESIDENT * memory / MEGABYTE, "MB"),
        ("on disk", found["disk_bytes"] / MEGABYTE, ON_DISK * model / MEGABYTE, "MB"),
    ]


def show_background(out: Console, found: Found) -> None:
    texts = [
        f"{when} p50 {s['p50'] * 1e3:.2f} ms, p99 {s['p99'] * 1e3:.2f} ms"
        for when in ("before", "during", "after")
        if (s := found.get(when))
    ]
    out.print(f"background ({found['seconds']:.1f} s, {found['state']}): {'; '.join(texts)}")
    ratio = found["during"]["p99"] / found["before"]["p50"]
    out.print(f"  p99 while compiling {ratio:.2f}x the steady latency, bar {DELAYED:.2f}")


def show_service(out: Console, found: Found) -> None:
    for side, s in found.items():
        late = ", ".join(f"p{p} {s[f'p{p}'] * 1e3:.1f} ms" for p in (50, 95, 99))
        out.print(f"service, {side}: {s['requests']} requests, {late}", highlight=False)
    ratio = found["monograph"]["requests"] / found[ONNXRUNTIME]["requests"]
    out.print(f"  {ratio:.2f}x ONNX Runtime's requests, bar {MORE_REQUESTS:.2f}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--seconds", type=float, default=20.0, help="the time of the service")
    parser.add_argument("--specialise", default="auto", choices=("auto", "off", "now"))
    parser.add_argument("--results", type=Path, help="the folder for JSON")
    args = parser.parse_args()
    out, found = Console(), {}
    for name in args.tables or TABLES:
        if name in CASES:
            if CASES[name].path() is None:
                out.print(f"{name}: the model is not here; `make models` fetches it")
                continue
            found[name] = many_shapes(name, args.specialise, args.rounds)
            show_many(out, found[name])
        elif name == "background":
            found[name] = background(args.specialise)
            show_background(out, found[name])
        else:
            found[name] = service(args.specialise, args.seconds)
            show_service(out, found[name])
    if args.results is not None:
        path = args.results / f"many-shapes-{platform.machine().replace('_', '-')}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
