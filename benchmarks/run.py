"""Runs the benchmark set beside its peers: a table, a JSON file and a plot.

    python -m benchmarks.run                  # everything, 5 seconds a model
    python -m benchmarks.run -k towers -s 2   # models whose names contain a word

Models of ../shared/models take part where that folder is there. Every contender runs on the same
threads and inputs, in turn, in one process: trust the ratios, not the times.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.models import write_all
from benchmarks.needs import result_path
from monograph.errors import MonographError
from monograph.report.commands.bench import MONOGRAPH, Bench, bench_model
from monograph.report.commands.execute import RunRequest
from monograph.report.commands.peers import PEERS

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared" / "models"
BUILT = HERE.parent / "build" / "benchmarks"


def requests(words: list[str]) -> dict[str, RunRequest]:
    """The models to time: the set, then the real ones with recorded inputs."""
    found = {name: RunRequest(path, "cpu") for name, path in write_all(BUILT).items()}
    for folder in sorted(SHARED.iterdir()) if SHARED.is_dir() else ():
        if (folder / "io.npz").exists():
            archive = folder / "io.npz"
            found[folder.name] = RunRequest(folder / "model.onnx", "cpu", archive=archive)
    return {n: r for n, r in found.items() if not words or any(w in n for w in words)}


def installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def measure(options: argparse.Namespace, peers: list[str]) -> dict[str, Bench]:
    results: dict[str, Bench] = {}
    console = Console(stderr=True)
    for name, request in track(requests(options.k).items(), "Timing", console=console):
        try:
            results[name] = bench_model(
                request, lambda _: None, against=peers, seconds=options.s, threads=options.threads
            )
        except (MonographError, RuntimeError) as e:
            console.print(f"{name}: {e}", style="red")
    return results


def show(results: dict[str, Bench], peers: list[str]) -> None:
    table = Table(title="Medians in ms; ratios above 1 mean Monograph is faster")
    for heading in ("model", MONOGRAPH, *peers, *(f"x {p}" for p in peers), "kernels", "host"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, bench in results.items():
        ratios = [f"{bench.ratio(p):.2f}" if p in bench.times else "" for p in peers]
        times = [
            f"{bench.times[c].median * 1e3:.3f}" if c in bench.times else "refused"
            for c in (MONOGRAPH, *peers)
        ]
        kernels = str(bench.stats["kernels_per_run"])
        table.add_row(name, *times, *ratios, kernels, ", ".join(bench.stats["host_steps"]))
    Console(width=160).print(table)
    for peer in peers:
        ratios = [math.log(b.ratio(peer)) for b in results.values() if peer in b.times]
        if ratios:
            mean = math.exp(sum(ratios) / len(ratios))
            print(f"geometric mean against {peer}: {mean:.2f}x over {len(ratios)} models")


def save(results: dict[str, Bench], peers: list[str], folder: Path) -> None:
    stem = result_path(folder, "cpu", platform.machine())
    packages = ("monograph", "llvmlite", "numpy", *PEERS)
    record: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": installed(packages),
        "models": {name: bench.as_json() for name, bench in results.items()},
    }
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    plot(results, peers, stem.with_suffix(".svg"))
    print(f"written: {stem.name}.json, {stem.name}.svg")


def plot(results: dict[str, Bench], peers: list[str], path: Path) -> None:
    """Bars of the ratio to each peer, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.5 + 0.35 * len(results)))
    height = 0.8 / max(len(peers), 1)
    for i, peer in enumerate(peers):
        places = [k + i * height for k in range(len(results))]
        ratios = [b.ratio(peer) if peer in b.times else 0.0 for b in results.values()]
        axes.barh(places, ratios, height, label=peer)
    axes.set_yticks([k + 0.4 - height / 2 for k in range(len(results))], list(results))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("times faster than the peer")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", action="append", default=[], help="only names that contain this")
    parser.add_argument("-s", type=float, default=5.0, help="seconds a model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    peers = [p for p in PEERS if p in installed(PEERS)]
    results = measure(options, peers)
    show(results, peers)
    if results:
        save(results, peers, options.results)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
