"""Many sequences on the CPU: tokens a second of 1 and 4 sequences, beside onnxruntime-genai.

    python -m benchmarks.engine_cpu [--threads 2] [--genai PYTHON] [--results DIR]

`--genai` names a Python that has onnxruntime-genai; without it Monograph runs alone. Each side is a
process of its own that warms up, generates, and tells the tokens a second of each generation. The
sides take turns. The best of all generations counts as well as the median: on a machine that others
use too, the best comes nearest to what a quiet machine gives.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

SEQUENCES = (1, 4)
PROMPT, TOKENS, TIMES = 16, 48, 3


def build_model(folder: Path, shape: str, form: str) -> None:
    """Write a decoder with random weights."""
    from benchmarks.decoder_weights import preset
    from benchmarks.decoders import build

    build(folder, shape, preset(form, accuracy=4))


def prompts(count: int) -> list[list[int]]:
    return [[(7 * n + 13 * k) % 1000 + 2 for k in range(PROMPT)] for n in range(count)]


def of_monograph(folder: str, threads: int) -> dict[int, list[tuple[float, float]]]:
    """Tokens a second by the number of sequences: of time that passed, and of processor time."""
    from monograph import Engine

    found: dict[int, list[tuple[float, float]]] = {}
    options: dict[str, Any] = {"slots": max(SEQUENCES), "max_length": 256, "stop": ()}
    with Engine(folder, "cpu", threads=threads, **options) as engine:
        for count in SEQUENCES:
            for k in range(TIMES + 1):
                wall, cpu = time.perf_counter(), time.process_time()
                for stream in [engine.submit(p, TOKENS) for p in prompts(count)]:
                    stream.result()
                spent = time.perf_counter() - wall, time.process_time() - cpu
                if k:
                    rates = count * TOKENS / spent[0], count * TOKENS / spent[1]
                    found.setdefault(count, []).append(rates)
    return found


def of_genai(folder: str, threads: int) -> dict[int, list[tuple[float, float]]]:
    """The same of onnxruntime-genai."""
    import numpy as np
    import onnxruntime_genai as og  # type: ignore[import-not-found]

    config = og.Config(folder)
    session = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = og.Model(config)
    found: dict[int, list[tuple[float, float]]] = {}
    for count in SEQUENCES:
        for k in range(TIMES + 1):
            params = og.GeneratorParams(model)
            params.set_search_options(max_length=256, batch_size=count, do_sample=False)
            wall, cpu = time.perf_counter(), time.process_time()
            generator = og.Generator(model, params)
            generator.append_tokens(np.array(prompts(count), np.int32))
            for _ in range(TOKENS):
                generator.generate_next_token()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if k:
                rates = count * TOKENS / spent[0], count * TOKENS / spent[1]
                found.setdefault(count, []).append(rates)
    return found


def measured(python: str, side: str, folder: Path, threads: int) -> dict[int, Any]:
    """Run a side in a process of its own."""
    command = [python, __file__, "--side", side, "--folder", str(folder), "--threads", str(threads)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(n): rates for n, rates in json.loads(made.splitlines()[-1]).items()}


def compare(sides: dict[str, str], folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of all sides, which take turns."""
    every: dict[str, dict[int, list[Any]]] = {s: {n: [] for n in SEQUENCES} for s in sides}
    for _ in range(rounds):
        for side, python in sides.items():
            for n, rates in measured(python, side, folder, threads).items():
                every[side][n] += rates
    return {
        f"{side} {n}": {
            "best": max(wall for wall, _ in rates),
            "median": statistics.median(wall for wall, _ in rates),
            "per_cpu_second": statistics.median(cpu for _, cpu in rates),
        }
        for side, counts in every.items()
        for n, rates in counts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=["f32", "int4"])
    parser.add_argument("--shape", default="llama-100m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--genai", metavar="PYTHON", help="a Python that has onnxruntime-genai")
    parser.add_argument("--folder", type=Path, help="keep models here, and use those found")
    parser.add_argument("--results", type=Path, metavar="DIR")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.side:
        own = (str(a.folder), a.threads)
        print(json.dumps(of_genai(*own) if a.side == "genai" else of_monograph(*own)))
        return
    sides = {"monograph": sys.executable, **({"genai": a.genai} if a.genai else {})}
    record: dict[str, Any] = {
        "date": date.today().isoformat(), "machine": platform.machine(), "shape": a.shape,
        "threads": a.threads, "tokens_per_second": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        for form in a.formats:
            folder = (a.folder or Path(temporary)) / f"{a.shape}-{form}"
            if not (folder / "model.onnx").exists():
                build_model(folder, a.shape, form)
            found = compare(sides, folder, a.threads, a.rounds)
            record["tokens_per_second"][form] = found
            for name, rates in found.items():
                text = "  ".join(f"{kind} {rate:8.1f}" for kind, rate in rates.items())
                print(f"{form:8} {name:14} {text}", flush=True)
    if a.results:
        file = a.results / f"engine-cpu-{platform.machine().replace('_', '-')}.json"
        file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
