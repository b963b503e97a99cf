"""Runs packages from the package index with onnxruntime and with Monograph in its place.

python -m benchmarks.dropin [NAME ...]

Packages are installed into an environment of their own, without onnxruntime; that is installed into
a folder beside it, which only its own runs see. Each program runs both ways in turns. A table shows
whether the results agree, and the shortest time of the session's runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import venv
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.dropin.programs import PROGRAMS, Program
from benchmarks.needs import result_path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "dropin"
PYTHON = HOME / "venv" / "bin" / "python"
THEIRS = HOME / "onnxruntime"
FILE = Path(__file__).with_name("programs.py")
ONNXRUNTIME = "onnxruntime==1.31.1"
OURS = ["numpy==2.2.6", "onnx==1.21.0", "ml_dtypes==0.6.0", "llvmlite==0.50.0"]
TURNS = 2
TIMEOUT = 900
ABSOLUTE, RELATIVE = 1e-3, 1e-3
"""The largest difference of numbers, which come out of thresholds, resizing and rounding."""


@dataclass
class Outcome:
    """The results of one package."""

    name: str
    verdict: str
    theirs: float = math.nan
    ours: float = math.nan

    @property
    def speed(self) -> float:
        return self.theirs / self.ours


def install(*arguments: str) -> None:
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def set_up(programs: dict[str, Program]) -> None:
    """Make the environment, or add to it what these programs need."""
    if not PYTHON.exists():
        venv.create(HOME / "venv", with_pip=True)
    stamp = HOME / "installed.json"
    known = set(json.loads(stamp.read_text())) if stamp.exists() else set()
    wanted = {*OURS, *(need for p in programs.values() for need in p.needs)}
    packages = {p.package for p in programs.values()}
    if new := sorted(wanted - known):
        install(*new)
    if new := sorted(packages - known):
        install("--no-deps", *new)
    if ONNXRUNTIME not in known:
        install("--no-deps", "--target", str(THEIRS), ONNXRUNTIME)
    stamp.write_text(json.dumps(sorted(known | wanted | packages | {ONNXRUNTIME})))


def run(name: str, ours: bool, seconds: float) -> dict[str, Any]:
    """Run a program in a process of its own; the error of one that fails is under "error"."""
    work = HOME / "work" / name
    work.mkdir(parents=True, exist_ok=True)
    made = work / "result.json"
    made.unlink(missing_ok=True)
    paths = [ROOT / "src"] if ours else [THEIRS]
    before = ["-m", "monograph.onnxruntime"] if ours else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    try:
        done = subprocess.run(
            [str(PYTHON), *before, str(FILE), name, str(made), str(seconds)],
            cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT} s"}
    (work / f"{'ours' if ours else 'theirs'}.log").write_text(done.stdout + done.stderr)
    if done.returncode or not made.exists():
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(made.read_text())
    return found


def difference(a: Any, b: Any, where: str = "") -> str:
    """Return the first difference of two results, "" if there is none."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{where}: {len(a)} elements, not {len(b)}"
        found = (
            difference(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
        return next(filter(None, found), "")
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{where}: {sorted(a)}, not {sorted(b)}"
        return next(filter(None, (difference(a[k], b[k], f"{where}.{k}") for k in b)), "")
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if numbers and math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
        return ""
    return "" if a == b or (numbers and a != a and b != b) else f"{where}: {a!r}, not {b!r}"


def compare(name: str, seconds: float, turns: int) -> Outcome:
    """Run a program both ways in turns."""
    theirs, ours = [], []
    for _ in range(turns):
        theirs.append(run(name, False, seconds))
        if "error" in theirs[-1]:
            return Outcome(name, f"fails with onnxruntime: {theirs[-1]['error']}")
        ours.append(run(name, True, seconds))
        if "error" in ours[-1]:
            return Outcome(name, f"fails: {ours[-1]['error']}")
    found = difference(ours[0]["result"], theirs[0]["result"])
    return Outcome(
        name,
        f"differs {found}" if found else "agrees",
        min(t["runs"] for t in theirs),
        min(t["runs"] for t in ours),
    )


def show(outcomes: list[Outcome]) -> None:
    print(f"\n{'package':34} {'onnxruntime':>12} {'monograph':>12} {'speed':>7}  result")
    for found in outcomes:
        times = f"{found.theirs * 1e3:9.2f} ms {found.ours * 1e3:9.2f} ms {found.speed:6.2f}x"
        package = PROGRAMS[found.name].package
        print(f"{package:34} {times if found.ours > 0 else ' ' * 33}  {found.verdict}")
    agreeing = [o for o in outcomes if o.verdict == "agrees"]
    print(f"{len(agreeing)} of {len(outcomes)} agree", end="")
    if agreeing:
        mean = math.exp(sum(math.log(o.speed) for o in agreeing) / len(agreeing))
        worst = min(agreeing, key=lambda o: o.speed)
        print(f"; geometric mean {mean:.2f}x, slowest {worst.name} {worst.speed:.2f}x", end="")
    print()


def record(outcomes: list[Outcome], folder: Path) -> Path:
    """Write times in seconds into the results of this machine, which keep other packages."""
    path = result_path(folder, "dropin", platform.machine()).with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() else {}
    rows = {
        PROGRAMS[o.name].package: {
            "date": date.today().isoformat(), "result": o.verdict, "onnxruntime": o.theirs,
            "monograph": o.ours,
        }
        for o in outcomes
        if o.ours > 0
    }  # fmt: skip
    packages = dict(sorted((found.get("packages", {}) | rows).items()))
    versions = [*OURS, ONNXRUNTIME, f"python=={platform.python_version()}"]
    made = {"machine": platform.machine(), "versions": versions, "packages": packages}
    path.write_text(json.dumps(made, indent=1) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each way is run")
    parser.add_argument("--results", type=Path, help="folder to write times into")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - PROGRAMS.keys()):
        parser.error(f"no such program: {', '.join(unknown)}")
    chosen = {n: p for n, p in PROGRAMS.items() if not given.names or n in given.names}
    set_up(chosen)
    outcomes = []
    for name in chosen:
        outcomes.append(compare(name, given.seconds, given.turns))
        print(f"{name}: {outcomes[-1].verdict}", file=sys.stderr)
    show(outcomes)
    if given.results is not None:
        print(f"wrote {record(outcomes, given.results)}")
    sys.exit(any(o.verdict != "agrees" for o in outcomes))


if __name__ == "__main__":
    main()
