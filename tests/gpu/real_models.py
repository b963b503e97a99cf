"""Real models on the GPU target, against the reference.

In f32 the tolerance is the one that `monograph.runtime.tolerance` derives from the graph; in f16
it is derived in the same way from the graph whose precision was changed, so that it counts the
roundings to f16 that there are, along the worst path to each output.

A detector's rows are sorted by scores of which some are nearly equal: its rows are compared in any
order, and in f16 rows whose score lies within the tolerance of the lowest one may be others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import monograph
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.report.inputs import read_archive, split_archive
from monograph.rewrite import GPU_COST
from monograph.runtime.compare import compare_outputs, match_rows
from monograph.runtime.tolerance import Tolerance, derive

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    *(Path(p) for p in (os.environ.get("MONOGRAPH_TEST_MODELS"),) if p),
    ROOT / "carry",
    ROOT.parent / "shared" / "models",
)
FOLDERS = tuple(
    {
        f.name: f
        for place in reversed(PLACES)
        if place.is_dir()
        for f in sorted(place.iterdir())
        if (f / "model.onnx").is_file() and (f / "io.npz").is_file()
    }.values()
)
"""Models with recorded inputs, on this machine."""
PRECISIONS = ("f32", "f16")
RANKED = {"ul_yolov10n_e2e": ("output0", 4)}
"""Outputs whose rows are sorted by a column: the scores."""


def problem_of(folder: Path, precision: str, target: str) -> str | None:
    """What is wrong with a model on a target; None where nothing is."""
    session = monograph.load(folder / "model.onnx", target=target, precision=precision, tune="off")
    arrays = read_archive(folder / "io.npz")
    feeds, _ = split_archive(arrays, session.inputs, session.outputs)
    plain = monograph.load(folder / "model.onnx", target="reference")
    names = [p.name for p in plain.outputs]
    expected = dict(zip(names, plain.run(feeds), strict=True))
    given = dict(zip(names, session.run(feeds), strict=True))
    tolerances = allowed(plain, feeds, precision)
    ranked, column = RANKED.get(folder.name, ("", 0))
    if ranked and precision != "f32":
        pair = certain_rows(given[ranked], expected[ranked], column, tolerances[ranked])
        given[ranked], expected[ranked] = pair
    found = compare_outputs(given, expected, tolerances, [ranked] if ranked else ())
    wrong = [d for d in found if not d.ok]
    if wrong:
        d = wrong[0]
        return f"{d.name}: {d.problem} at {d.worst} {d.given} for {d.expected}"
    return None


def allowed(
    plain: monograph.Session, feeds: Mapping[str, Any], precision: str
) -> dict[str, Tolerance]:
    """What each output may differ by in a precision."""
    if precision == "f32":
        return plain.tolerances(feeds, reference=True)
    options = PassOptions({"convert_precision": {"to": precision}}, until="convert_precision")
    graph = plain.bound_graph(feeds)
    return derive(optimise(graph, environment=Environment(GPU_COST), options=options))


def certain_rows(
    given: np.ndarray, expected: np.ndarray, column: int, tolerance: Tolerance
) -> tuple[np.ndarray, np.ndarray]:
    """The rows that must be among the best, each beside the one that is given for it."""
    scores = expected[..., column]
    bound = tolerance.bound(float(scores.min()), float(np.abs(scores).max()))
    certain = scores > scores.min() + 2 * bound
    matched = match_rows(given, expected)
    return matched[certain], expected[certain]
