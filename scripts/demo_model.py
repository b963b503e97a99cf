"""Writes the model of `make demo`: a detector in the shape of YOLOv10n, with random weights.

python scripts/demo_model.py model.onnx [--size 640] [--seed 103]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from monograph.report.demo_model import SEED, build


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=int, default=640, help="pixels a side, a multiple of 32")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the weights")
    options = parser.parse_args()
    if options.size < 160 or options.size % 32:
        parser.error(f"--size is a multiple of 32 and at least 160; given {options.size}")
    model = build(options.size, options.seed)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, options.path)
    print(f"wrote {options.path}: {len(model.graph.node)} nodes, random weights")


if __name__ == "__main__":
    main()
