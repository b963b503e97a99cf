"""Models that NNSmith made (`make nnsmith`), with inputs drawn from the seed."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.campaign.case import Case
from tests.campaign.draw import Draw

FOLDER = Path(__file__).parents[2] / "build" / "nnsmith"
VARIABLE = "MONOGRAPH_NNSMITH"
"""Names another folder of such models."""


@cache
def files() -> tuple[Path, ...]:
    """The models that are there."""
    return tuple(sorted(Path(os.environ.get(VARIABLE, FOLDER)).glob("*.onnx")))


def make(seed: int, number: int) -> Case:
    """The case of a seed and a number: the number-th model, fed what the seed draws."""
    if number >= len(files()):
        raise ValueError(f"there are {len(files())} models in {FOLDER}; `make nnsmith` makes more")
    model = onnx.load(files()[number])
    d = Draw(np.random.default_rng([seed, 5, number]))
    feeds = {}
    constants = {t.name for t in model.graph.initializer}
    for info in model.graph.input:
        if info.name in constants:
            continue
        kind = info.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        feeds[info.name] = d.array(helper.tensor_dtype_to_np_dtype(kind.elem_type), shape)
    return Case("nnsmith", seed, number, model, (feeds,))
