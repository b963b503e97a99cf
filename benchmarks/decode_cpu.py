"""Decoding on the CPU beside onnxruntime: tokens a second of the same file with the same threads.

    python -m benchmarks.decode_cpu [--shape llama-100m] [--formats int4 int4-128 f32] [--threads 2]

Both sides decode greedily from one token on, a token a call, over caches of one fixed length that
are updated in place: onnxruntime with IO binding and present bound to the memory of past, Monograph
as a `Generator` (and as a `Session` with donated state, with --session). Each has a process of its
own. They take turns, some tokens each, and none begins before the threads of the other sleep. A
ratio is the median over neighbouring turns. Wall time is what counts; the time of the process's
threads is printed beside it, for a machine that others use too.

The floor is what reading the weights once takes at the bandwidth that memory has on this machine:
the best that reads for some seconds reach, at first and again behind the turns of each format. On
some machines it doubles or halves from one second to the next.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.decode_cpu_sides import MONOGRAPH, ONNXRUNTIME, Side, Task, bandwidth
from benchmarks.decoder_shapes import SHAPES
from benchmarks.decoder_weights import PRESETS, preset
from benchmarks.decoders import build
from benchmarks.needs import result_path
from benchmarks.run import installed

UNTIMED, TIMED = 50, 20
"""Tokens of a turn: those behind which threads are awake and caches full, and those that count.

Some processors slow their memory down while they rest, as they do between turns, and take tenths of
a second of work to let it give all it has. Who decodes does so for longer."""


def compare(sides: list[Side], position: int, rounds: int) -> dict[str, Any]:
    """All sides from a position on: what each took, and how much longer onnxruntime did."""
    for side in sides:
        side.turns.clear()
        side.make(max(position + 1 - len(side.tokens), 0))
    for k in range(rounds):
        # Each side is as often the first of its round as the last.
        for side in sides if k % 2 else sides[::-1]:
            side.turn(UNTIMED, TIMED)
    theirs = next(side for side in sides if side.name == ONNXRUNTIME)
    return {"position": position, **{side.name: report(side, theirs) for side in sides}}


def report(side: Side, theirs: Side) -> dict[str, Any]:
    """The figures of one side, beside those of onnxruntime."""
    wall, cpu = ([getattr(t, what) for t in side.turns] for what in ("wall", "cpu"))
    pairs = zip(side.turns, theirs.turns, strict=True)
    ratios = sorted(other.wall / own.wall for own, other in pairs)
    alike = [a == b for a, b in zip(side.tokens, theirs.tokens, strict=True)]
    return {
        "tokens_per_s": 1 / statistics.median(wall),
        "ms": statistics.median(wall) * 1e3,
        "cpu_ms": statistics.median(cpu) * 1e3,
        "ratio": statistics.median(ratios),
        "ratios": [round(r, 3) for r in ratios],
        "cpu_ratio": statistics.median(t.cpu for t in theirs.turns) / statistics.median(cpu),
        "same_tokens": all(alike),
        "tokens_alike": alike.index(False) if False in alike else len(alike),
        "tokens": len(alike),
        "distinct_tokens": len(set(side.tokens)),
    }


def heading() -> str:
    return (
        f"{'':12} {'at':>5}  {'':12} {'tokens/s':>9} {'ms':>8} {'cpu ms':>8}"
        f" {'x':>7} {'worst':>7} {'best':>7} {'cpu x':>7}  tokens"
    )


def line(form: str, position: int, name: str, r: dict[str, Any]) -> str:
    """A row of the table: ratios are those to onnxruntime, over 1 where a side is faster."""
    ratios = (r["ratio"], r["ratios"][0], r["ratios"][-1], r["cpu_ratio"])
    same = "same" if r["same_tokens"] else f"same for {r['tokens_alike']}"
    return (
        f"{form:12} {position:5}  {name:12} {r['tokens_per_s']:9.1f} {r['ms']:8.2f}"
        f" {r['cpu_ms']:8.2f} {' '.join(f'{x:7.2f}' for x in ratios)}  {same} of {r['tokens']}"
    )


def show(form: str, row: dict[str, Any]) -> None:
    for name, r in row.items():
        if isinstance(r, dict):
            print(line(form, row["position"], name, r), flush=True)


def measure(a: argparse.Namespace, name: str, folder: Path) -> list[dict[str, Any]]:
    """All positions of one format."""
    if not (folder / "model.onnx").exists():
        build(folder, a.shape, preset(name, accuracy=a.accuracy_level))
    task = Task(folder / "model.onnx", a.shape, a.length, a.threads)
    rows = []
    with ExitStack() as stack:
        sides = []
        for contender in (MONOGRAPH, *(["session"] if a.session else []), ONNXRUNTIME):
            sides.append(Side(contender, task))
            stack.callback(sides[-1].close)
        for position in sorted(a.positions):
            found = compare(sides, position, a.rounds)
            rows.append({**found, "weight_bytes": sides[0].weight_bytes})
            show(name, rows[-1])
    return rows


def show_floor(name: str, rows: list[dict[str, Any]], reads: float) -> None:
    nbytes = rows[0]["weight_bytes"]
    print(
        f"{name:12} {'':5}  {'floor':12} {reads / nbytes:9.1f} {nbytes / reads * 1e3:8.2f}"
        f"  {nbytes / 1e6:.0f} MB at {reads / 1e9:.1f} GB/s",
        flush=True,
    )


def add_floors(formats: dict[str, list[dict[str, Any]]], reads: float) -> None:
    """Says in each row what the least time for a token is, by the best reads of the whole run."""
    for row in (row for rows in formats.values() for row in rows):
        row["floor_ms"] = row["weight_bytes"] / reads * 1e3


def save(a: argparse.Namespace, reads: float, formats: dict[str, Any], file: Path) -> None:
    record = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": installed(("monograph", "llvmlite", "numpy", ONNXRUNTIME)),
        "shape": a.shape,
        "threads": a.threads,
        "length": a.length,
        "accuracy_level": a.accuracy_level,
        "bandwidth": reads,
        "formats": formats,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {file}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="llama-100m", choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=["int4", "int4-128", "f32"])
    parser.add_argument("--accuracy-level", type=int, default=4, help="of MatMulNBits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024, help="of the caches")
    parser.add_argument("--positions", nargs="+", type=int, default=[32, 512])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--session", action="store_true", help="time a plain session too")
    parser.add_argument("--folder", type=Path, help="keep models here, and use those found")
    parser.add_argument("--json", type=Path, help="write figures into this file")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="write figures into DIR/decode-cpu-MACHINE.json"
    )
    a = parser.parse_args()
    for name in a.formats:
        if name not in PRESETS:
            parser.error(f"no format {name!r}; there are {', '.join(sorted(PRESETS))}")
    room, at = (UNTIMED + TIMED) * a.rounds, -1
    for position in sorted(a.positions):
        at = max(at, position) + room
    if at + 1 > a.length:
        parser.error("the caches are too short for the last position and its rounds")
    return a


def main() -> None:
    a = parsed()
    formats: dict[str, list[dict[str, Any]]] = {}
    reads = bandwidth(a.threads)
    print(heading())
    with tempfile.TemporaryDirectory() as temporary:
        for name in a.formats:
            folder = (a.folder or Path(temporary)) / f"{a.shape}-{name}-{a.accuracy_level}"
            formats[name] = measure(a, name, folder)
            reads = max(reads, bandwidth(a.threads))
            show_floor(name, formats[name], reads)
    add_floors(formats, reads)
    files = [a.json] if a.json else []
    if a.results:
        files.append(result_path(a.results, "decode-cpu", platform.machine()).with_suffix(".json"))
    for file in files:
        save(a, reads, formats, file)


if __name__ == "__main__":
    main()
