"""Decoding of several rows on a GPU: device time of a step at each number of rows.

    python -m benchmarks.decode_rows_gpu --results DIR [--rows 8,64,32,2] [--formats f16]
        [--position 512] [--shape llama-1b] [--layers 0] [--limit 170]

Replays are queued back to back and timed by events, on the same memory every time. The floor is
the time to read weights and caches once, by the best bandwidth that was seen. What finds no time
left is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.decode_gpu import BUILT, Decoding, Times, _shape, bandwidth
from benchmarks.decoders import build

LEAST_LEFT = 15.0
"""Seconds that another number of rows takes at least, about."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--shape", default="llama-1b")
    parser.add_argument("--formats", default="f16")
    parser.add_argument("--rows", default="8,64,32,2")
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--maximum", type=int, default=2304)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=0)
    parser.add_argument("--tune", default="fast", choices=("fast", "full", "off"))
    parser.add_argument("--limit", type=float, default=170.0, help="seconds")
    parser.add_argument("--dry-run", action="store_true", help="tiny, by Triton's interpreter")
    a = parser.parse_args()
    if a.dry_run:
        a.shape, a.layers, a.position, a.maximum = "tiny-llama", 1, 5, 16
    began = time.perf_counter()
    a.results.mkdir(parents=True, exist_ok=True)
    best = bandwidth(a.dry_run)
    record: dict[str, Any] = {
        "date": date.today().isoformat(), "shape": a.shape, "position": a.position,
        "maximum": a.maximum, "bandwidth": best, "steps": {},
    }  # fmt: skip
    shape, times = _shape(a), Times(a.dry_run)
    for form in a.formats.split(","):
        folder = BUILT / f"decode-{a.shape}-{shape.layers}-{shape.vocab}-{form}"
        if not (folder / "genai_config.json").exists():
            build(folder, shape, form)
        decoding: Decoding | None = None
        for rows in map(int, a.rows.split(",")):
            if time.perf_counter() - began > a.limit - LEAST_LEFT:
                print(f"no time left for {form} at {rows} rows", flush=True)
                continue
            start = time.perf_counter()
            if decoding is None:
                decoding = Decoding(folder, a.maximum, a.dry_run, a.results, rows, a.tune)
            else:
                decoding.resize(rows)
            device = times.interleaved({"step": decoding.replayed(a.position)})["step"]
            engine = decoding.engine
            read = engine.weight_bytes() + engine.cache_bytes(a.position)
            record["steps"][f"{form} {rows}"] = {
                "device_us": device, "floor_us": read / best * 1e6,
                "open_seconds": round(time.perf_counter() - start, 1),
                "kernels": decoding.stats().get("kernels_per_run"),
            }  # fmt: skip
            print(form, rows, record["steps"][f"{form} {rows}"], flush=True)
            (a.results / "decode-rows.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
