"""Generates models with NNSmith into a folder: `make nnsmith`, in an environment of its own.

    .venv-nnsmith/bin/python tests/campaign/nnsmith_make.py --count 2000 --seed 1

Needs nnsmith and torch, and nothing of this repository: the models are compared by
`python -m tests.campaign nnsmith`, which draws their inputs. A model that is there already is not
made again. NNSmith 0.1.0 exports by what torch has called the old exporter since 2.9, so this asks
for that one by name.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import os
import random
import sys
import time
import warnings
from pathlib import Path

DEFAULT = Path("build/nnsmith")
NODES = (3, 12)
MOST_ELEMENTS = 256
"""Elements of a tensor: files stay small enough to carry 2,000 of them."""
SOLVER_MS = 10_000


def patched(folder: Path) -> None:
    """Has NNSmith use torch's old exporter, and keep what it finds out about ops in the folder."""
    import torch
    from nnsmith import narrow_spec

    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
    narrow_spec.NNSMITH_CACHE_DIR = str(folder / "ops")


def generate(seed: int) -> bytes:
    """The model of a seed, in ONNX's format."""
    import numpy as np
    import torch
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset

    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    gen = model_gen(
        opset=auto_opset(kind, None),
        method="symbolic-cinit",
        seed=seed,
        max_elem_per_tensor=MOST_ELEMENTS,
        max_nodes=random.Random(seed).randint(*NODES),
        timeout_ms=SOLVER_MS,
    )
    model = kind.from_gir(gen.make_concrete())
    model.refine_weights()
    proto = model.onnx_model
    for node in proto.graph.node:
        node.ClearField("doc_string")
    return bytes(proto.SerializeToString())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=DEFAULT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.folder.mkdir(parents=True, exist_ok=True)
    patched(options.folder)
    began, made, failed = time.monotonic(), 0, 0
    for number in range(options.first, options.first + options.count):
        path = options.folder / f"{options.seed}-{number:05}.onnx"
        if path.exists():
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                raw = generate((options.seed * 1_000_003 + number) % 2**32)
        except Exception as e:
            failed += 1  # a graph that the solver cannot fill, or that torch cannot export
            if failed <= 3 or failed % 100 == 0:
                print(f"number {number} was not made: {type(e).__name__}: {str(e)[:120]}")
            continue
        made += 1
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(raw)
        partial.rename(path)
        if made % 50 == 0:
            rate = made / (time.monotonic() - began)
            print(f"{made} models, {failed} not made, {rate:.2f}/s", flush=True)
    print(f"{made} models in {options.folder}, {failed} not made")
    return 0 if made or not failed else 1


if __name__ == "__main__":
    sys.exit(main())
