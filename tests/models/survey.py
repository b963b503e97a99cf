"""Runs every fetched model and writes a table: what loads, what is right, and against what.

    python scripts/fetch_models.py
    python -m tests.models.survey                               # the CPU target
    TRITON_INTERPRET=1 python -m tests.models.survey --target gpu:interpreter
    python -m tests.models.survey --only ddddocr_common silero_vad

`python -m tests.models.stored` runs models on a machine without ONNX Runtime and package index.
Each model runs in a process of its own, because some take longer than there is time. What is known
of other targets and models is kept: the JSON file is read first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.needs import result_path
from scripts import fetch_models

import monograph
from monograph.runtime.inputs import make_inputs
from monograph.runtime.numerics.compare import Difference, compare_outputs
from monograph.runtime.numerics.tolerance import Tolerance
from tests.models.cases import ALL_CASES, fetched
from tests.models.test_real_models import compare, runtime_answers

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
REPEATED = 20.0
"""Seconds of a first run up to which a second one is made, which has to give the same bits."""
OLD = "judged by whole outputs"
"""The key of the rows, by their target, whose tolerances were not those of elements."""
Row = dict[str, Any]


def survey_one(name: str, target: str) -> Row:
    """Runs one model on a target, on the reference and on ONNX Runtime."""
    (case,) = [c for c in ALL_CASES if c.file == name]
    path = fetched(name)
    reference = monograph.load(path, target="reference", dims=case.dims)
    feeds = make_inputs(reference.inputs, case.feeds, seed=0).feeds
    names = [p.name for p in reference.outputs]
    right = dict(zip(names, reference.run(feeds), strict=True))
    derived = reference.tolerances(feeds)
    expected, noise = runtime_answers(path, feeds)
    row: Row = {
        "load": "ok",
        "inputs": {n: f"{x.dtype}{[*x.shape]}" for n, x in feeds.items() if hasattr(x, "shape")},
        "onnxruntime": _shown(compare(name, right, expected, derived, noise), derived),
    }
    begun = time.monotonic()
    session = monograph.load(path, target=target, dims=case.dims)
    given = dict(zip(names, session.run(feeds), strict=True))
    seconds = time.monotonic() - begun
    row[target] = {
        **_shown(compare_outputs(given, right, derived), derived),
        "seconds": round(seconds, 1),
        "host": session.stats["host_reasons"],
    }
    if seconds <= REPEATED:
        again = dict(zip(names, session.run(feeds), strict=True))
        same = compare_outputs(again, given, {n: Tolerance() for n in names})
        row[target]["second run equal"] = all(d.ok for d in same)
    return row


def _shown(found: Sequence[Difference], derived: Mapping[str, Tolerance]) -> Row:
    """The verdict, the largest differences of all outputs, and the widest derived tolerance."""
    wrong = [f"{d.name}: {d.problem or 'beyond the tolerance'}" for d in found if not d.ok]
    return {
        "verdict": "; ".join(wrong) or "ok",
        "max_abs": max((float(d.max_abs) for d in found), default=0.0),
        "max_rel": max((float(d.max_rel) for d in found), default=0.0),
        "used": max((float(d.used) for d in found), default=0.0),
        "tolerance": max((t.rtol for t in derived.values()), default=0.0),
    }


def survey(name: str, target: str, seconds: float) -> Row:
    """Return what comes of one model in a process of its own, forked to spare it the imports."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, name, target))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return {target: {"verdict": f"not run: takes more than {seconds:.0f} s"}}
        found: Row = ours.recv()
        return found
    except EOFError:
        process.join()
        return {target: {"verdict": f"failed: the process ended with {process.exitcode}"}}
    finally:
        process.kill()
        process.join()
        ours.close()


def _send(pipe: Connection, name: str, target: str) -> None:
    try:
        pipe.send(survey_one(name, target))
    except Exception as e:
        said = " ".join(f"{type(e).__name__}: {e}".split())[:300]
        pipe.send({target: {"verdict": f"failed: {said}"}})


def _package(name: str) -> Row:
    (package,) = [p for p in fetch_models.PACKAGES if f"{name}.onnx" in p.models]
    size = fetched(name).stat().st_size
    member = package.models[f"{name}.onnx"]
    return {"package": f"{package.name} {package.version}", "member": member, "bytes": size}


def table(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    targets = sorted({t for r in found["models"].values() for t in r if t in ("cpu",) or ":" in t})
    lines = [
        f"# Models from the package index, {found['date']}",
        "",
        f"{len(found['models'])} models; {found['versions']}. Differences are relative to the"
        " largest element of an output, beside the largest share of its derived tolerance that an"
        " element uses up. `python -m tests.models.survey` makes this page.",
        "",
        *([_of_old(found[OLD]), ""] if any(found.get(OLD, {}).values()) else []),
        "| model | package | KiB | load | reference against ONNX Runtime |"
        + "".join(f" {t} against reference |" for t in targets),
        "|---|---|---|---|---|" + "---|" * len(targets),
    ]
    for name, row in sorted(found["models"].items()):
        cells = [name, row["package"], f"{row['bytes'] >> 10:,}", row.get("load", "-")]
        cells += [_cell(row.get(key)) for key in ("onnxruntime", *targets)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _of_old(names: Mapping[str, Sequence[str]]) -> str:
    """Tell which rows are judged by another measure than the others."""
    listed = "; ".join(f"{t}: {', '.join(sorted(n))}" for t, n in sorted(names.items()) if n)
    return (
        "Tolerances became per element on 2026-11-18. These rows were judged before, by the"
        f" tolerance of a whole output, and were not run again ({listed})."
    )


def _cell(found: Row | None) -> str:
    if found is None:
        return "not run"
    if "max_rel" not in found:
        return str(found["verdict"])
    text = f"{found['verdict']}: {found['max_rel']:.1e}, {found['used']:.0%} of the tolerance"
    if found.get("host"):
        text += f" (on the host: {', '.join(found['host'])})"
    return text.replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--seconds", type=float, default=600, help="for one model")
    parser.add_argument(
        "--only", nargs="*", help="names of models; all that were fetched by default"
    )
    parser.add_argument(
        "--missing", action="store_true", help="only what the file does not hold yet"
    )
    today = datetime.date.today().isoformat()
    usual = result_path(RESULTS, "models", platform.machine()).with_suffix(".json")
    parser.add_argument("--json", type=Path, default=usual)
    options = parser.parse_args()
    found: Row = {"models": {}}
    if options.json.is_file():
        found = json.loads(options.json.read_text())
    packages = ("onnx", "onnxruntime", "numpy", "llvmlite")
    versions = ", ".join(f"{p} {version(p)}" for p in packages)
    found |= {"date": today, "versions": f"Python {platform.python_version()}, {versions}"}
    names = [c.file for c in ALL_CASES if not options.only or c.file in options.only]
    here = [n for n in names if fetched(n).is_file()]
    wrong = 0
    for name in sorted(here, key=lambda n: fetched(n).stat().st_size):
        row = found["models"].setdefault(name, _package(name))
        if options.missing and options.target in row:
            continue
        row |= survey(name, options.target, options.seconds)
        verdict = row[options.target]["verdict"]
        old = found.get(OLD, {}).get(options.target, [])
        if name in old and not verdict.startswith("not run"):
            old.remove(name)
        wrong += not verdict.startswith(("ok", "not run"))
        print(f"{name}: {_cell(row.get('onnxruntime'))} | {_cell(row[options.target])}", flush=True)
        options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        options.json.with_suffix(".md").write_text(table(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
