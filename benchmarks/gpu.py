"""Runs the GPU benchmark set beside torch: a table, a JSON file and a plot.

    python -m benchmarks.gpu                       # everything, 8 minutes at most
    python -m benchmarks.gpu -k towers --tune full
    python -m benchmarks.gpu --dry-run             # tiny models, no GPU: do the parts fit together?

Every model has a process and a limit of its own: what fails or takes too long is reported, and
the rest goes on. All in f16; times of a contender are medians (`benchmarks/gpu_timing.py`).
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
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import gpu_models
from benchmarks.gpu_report import plot, tables
from benchmarks.needs import result_path

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "benchmarks"
PACKAGES = ("torch", "triton", "cuda-bindings", "numpy", "onnx", "onnxruntime-gpu")


def child(options: argparse.Namespace) -> None:
    """Measures one model; prints a line of JSON for all that is known of a contender."""
    began = time.perf_counter()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.gpu_contenders import Problem
    from benchmarks.gpu_timing import ANY_ORDER, Clock

    path = gpu_models.find(options.child, BUILT)
    problem = Problem(path, options.dry_run, options.tune, options.tuning, options.mode)
    clock = Clock(problem.place, short=options.dry_run)
    right = None
    try:
        right = problem.right()
    except Exception as e:
        _tell({"contender": "the check", "failed": _short(e)})
    made_ones = []
    for name, make in problem.contenders():
        if options.only and name not in options.only:
            continue
        started = time.perf_counter()
        try:
            contender = make()
            made = time.perf_counter() - started
            if options.child == "yolov10n":
                contender.notes["rows"] = ANY_ORDER
            figures = clock.measure(contender, right)
        except Exception as e:  # whatever it is, the others are measured
            if options.debug:
                raise
            _tell({"contender": name, "failed": _short(e)})
            continue
        made_ones.append(contender)
        notes = {k: v for k, v in contender.notes.items() if isinstance(v, (int, float, str))}
        _tell({"contender": name, "seconds_to_make": made, **figures.as_json(), **notes})
    for contender in made_ones:
        if contender.kernels is None:
            _tell({"contender": contender.name, "kernels": clock.kernels(contender.run)})
    _tell({"model_seconds": time.perf_counter() - began})


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def measure(name: str, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """One model in a process of its own, which ends with its limit at the latest."""
    passed = ["--tune", options.tune, "--mode", options.mode]
    passed += ["--tuning", str(options.tuning)] if options.tuning else []
    passed += [f"--only={n}" for n in options.only]
    passed += ["--dry-run"] if options.dry_run else []
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", "--child", name, *passed],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # torch compiles in processes that end with it
    )
    result: dict[str, Any] = {"contenders": {}, "failed": {}}
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    errors: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
    reader.start()
    assert process.stdout is not None
    for line in process.stdout:
        _note(result, line)
    code = process.wait()
    timer.cancel()
    reader.join(timeout=5)
    if late.is_set():
        result["failed"]["the rest"] = f"took more than {limit:.0f} s"
    elif code:
        ends = [e.strip() for e in errors if e.strip()]
        result["failed"]["the process"] = f"exit code {code}: {ends[-1] if ends else ''}"[:300]
    return result


def _note(result: dict[str, Any], line: str) -> None:
    try:
        said = json.loads(line)
    except ValueError:
        return
    if not isinstance(said, dict):
        return
    if "failed" in said:
        result["failed"][said["contender"]] = said["failed"]
    elif "contender" in said:
        name = said.pop("contender")
        result["contenders"][name] = {**result["contenders"].get(name, {}), **said}
    else:
        result |= said


def installed() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "no GPU"
    return done.stdout.strip().splitlines()[0]


def write_models(names: list[str]) -> dict[str, str]:
    """The files of the set, side by side; what could not be written, by name."""
    failed = {}
    with ProcessPoolExecutor(min(4, len(names))) as pool:
        jobs = {name: pool.submit(gpu_models.find, name, BUILT) for name in names}
        for name, job in jobs.items():
            try:
                job.result()
            except Exception as e:
                failed[name] = _short(e)
    return failed


def save(record: dict[str, Any], folder: Path) -> None:
    stem = result_path(folder, "gpu", record["device"])
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".svg").write_text(plot(record))
    stem.with_suffix(".md").write_text(tables(record))
    print(f"written: {stem.name}.json, {stem.name}.svg, {stem.name}.md")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("--tune", default="fast", choices=("off", "fast", "full"))
    parser.add_argument(
        "--tuning", type=Path, default=BUILT / "tuning.json", help="keeps what was measured"
    )
    parser.add_argument(
        "--mode",
        default="default",
        help="of torch.compile; one without graphs of its own is captured in a graph here",
    )
    parser.add_argument("--only", action="append", default=[], help="only this contender")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds a model")
    parser.add_argument("--total", type=float, default=500.0, help="seconds in all")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--dry-run", action="store_true", help="tiny models without a GPU")
    parser.add_argument("--debug", action="store_true", help="stop at the first error")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.child:
        child(options)
        return 0
    end = time.monotonic() + options.total
    known = gpu_models.TINY if options.dry_run else gpu_models.MODELS
    names = [n for n in known if not options.k or any(w in n for w in options.k)]
    if not names:
        print(f"no model of that name; there are {', '.join(known)}")
        return 1
    unwritten = write_models(names)
    record: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": device_name(),
        "python": platform.python_version(),
        "versions": installed(),
        "precision": "f32" if options.dry_run else "f16",
        "tune": options.tune,
        "torch_compile_mode": options.mode,
        "models": {},
    }
    for name in names:
        left = end - time.monotonic()
        if name in unwritten or left < 5:
            reason = unwritten.get(name, "no time was left")
            record["models"][name] = {"contenders": {}, "failed": {"all": reason}}
            continue
        found = measure(name, options, min(options.limit, left))
        record["models"][name] = found
        told = ", ".join(f"{c} {f['device_us']:.1f} us" for c, f in found["contenders"].items())
        print(f"{name}: {told} {found['failed'] or ''}", flush=True)
    if options.dry_run:
        print(tables(record))
    else:
        save(record, options.results)
        print(tables(record))
    whole = all(m["contenders"] and not m["failed"] for m in record["models"].values())
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
