"""Runs fetched models beside stored inputs and outputs, on a machine without ONNX Runtime.

    python -m tests.models.stored make FOLDER --only minilm_l3 mb_captcha --bytes 55000000
    python -m tests.models.stored run FOLDER --target gpu --json results.json

`make` needs the fetched models. Each one comes with an archive beside it: its inputs and what the
reference gives. With `--bytes` it divides the models among folders FOLDER/1, FOLDER/2, ... of so
many bytes at most, in the order given. `run` needs Monograph only, and derives the tolerances.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import monograph
from monograph.runtime.numerics.compare import compare_outputs
from monograph.runtime.numerics.tolerance import Tolerance

Row = dict[str, Any]


def make(folder: Path, names: list[str], limit: int) -> None:
    """Stores models with their inputs and outputs."""
    from tests.models.cases import ALL_CASES, fetched

    cases = {c.file: c for c in ALL_CASES}
    part, used = 1, 0
    for name in names or sorted(cases, key=lambda n: -fetched(n).stat().st_size):
        model, data = fetched(name), folder / f"{name}.npz"
        folder.mkdir(parents=True, exist_ok=True)
        store(model, data, cases[name].dims, cases[name].feeds)
        if limit:
            size = model.stat().st_size + data.stat().st_size
            part, used = (part + 1, size) if used and used + size > limit else (part, used + size)
            home = folder / str(part)
            home.mkdir(exist_ok=True)
            data = data.rename(home / data.name)
        shutil.copyfile(model, data.with_suffix(".onnx"))
        print(f"{name}: {data.parent}", flush=True)


def store(model: Path, data: Path, dims: Mapping[str, int], given: Mapping[str, Any]) -> None:
    """Writes the archive of one model."""
    from monograph.runtime.inputs import make_inputs

    reference = monograph.load(model, target="reference", dims=dict(dims))
    feeds = make_inputs(reference.inputs, dict(given), seed=0).feeds
    names = [p.name for p in reference.outputs]
    right = dict(zip(names, reference.run(feeds), strict=True))
    arrays = {f"in:{n}": np.asarray(x) for n, x in feeds.items()}
    arrays |= {f"out:{n}": np.asarray(x) for n, x in right.items()}
    if any(x.dtype == object for x in arrays.values()):
        raise ValueError(f"{model.stem} has inputs or outputs that are no arrays of numbers")
    about = json.dumps({"dims": dict(dims), "outputs": names})
    np.savez_compressed(data, about=np.frombuffer(about.encode(), np.uint8), **arrays)


def run(folder: Path, target: str, names: list[str]) -> dict[str, Row]:
    """Runs all models of a folder; what came of each."""
    found: dict[str, Row] = {}
    for data in sorted(folder.rglob("*.npz"), key=lambda p: p.stat().st_size):
        if names and data.stem not in names:
            continue
        try:
            found[data.stem] = run_one(data, target)
        except Exception as e:
            said = " ".join(f"{type(e).__name__}: {e}".split())[:400]
            found[data.stem] = {"verdict": f"failed: {said}"}
        print(f"{data.stem}: {found[data.stem]}", flush=True)
    return found


def run_one(data: Path, target: str) -> Row:
    """Compares two runs of a stored model with the reference's outputs."""
    with np.load(data) as archive:
        about = json.loads(archive["about"].tobytes())
        feeds = {n[3:]: archive[n] for n in archive.files if n.startswith("in:")}
        right = {n: archive[f"out:{n}"] for n in about["outputs"]}
    path = data.with_suffix(".onnx")
    derived = monograph.load(path, "reference", dims=about["dims"]).tolerances(feeds)
    options: Row = {"tune": "off"} if target.startswith("gpu") else {}
    begun = time.monotonic()
    session = monograph.load(path, target, dims=about["dims"], **options)
    runs = [dict(zip(about["outputs"], session.run(feeds), strict=True)) for _ in range(2)]
    seconds = time.monotonic() - begun
    differences = compare_outputs(runs[0], right, derived)
    wrong = [f"{d.name}: {d.problem or 'beyond the tolerance'}" for d in differences if not d.ok]
    same = compare_outputs(runs[1], runs[0], {n: Tolerance() for n in right})
    return {
        "verdict": "; ".join(wrong) or "ok",
        "max_abs": max((float(d.max_abs) for d in differences), default=0.0),
        "max_rel": max((float(d.max_rel) for d in differences), default=0.0),
        "used": max((float(d.used) for d in differences), default=0.0),
        "seconds": round(seconds, 1),
        "second run equal": all(d.ok for d in same),
        "host": session.stats["host_reasons"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="names of models; all by default")
    parser.add_argument("--bytes", type=int, default=0, help="divide models among folders")
    parser.add_argument("--target", default="gpu")
    parser.add_argument("--json", type=Path, help="where results go, under models by name")
    options = parser.parse_args()
    if options.action == "make":
        make(options.folder, options.only, options.bytes)
        return 0
    found = run(options.folder, options.target, options.only)
    good = sum(r["verdict"] == "ok" for r in found.values())
    print(f"{good} of {len(found)} models are right on {options.target}")
    if options.json:
        rows = {name: {options.target: row} for name, row in found.items()}
        options.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
