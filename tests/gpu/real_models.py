"""Real models on the GPU target, against the reference.

In f32 the tolerance is the one that `runtime.numerics.tolerance` derives from the graph; in f16
and bf16 it is derived in the same way from the graph whose precision was changed, so that it counts
the roundings that there are, along the worst path to each output.

A detector's rows are the best of many, sorted by scores of which some are nearly equal: which of
them come last, and in which order, is decided by rounding. So what they are chosen from is compared
element by element, boxes and scores each within their own tolerance (`CUTS` names these tensors of
the model, which become outputs). And the rows must be a right choice (`wrong_choice`): each is one
of the candidates, none twice, sorted, and every candidate that is sure to be among them is there.
That holds within the tolerance for the reference's candidates, and to the last bit of the precision
for the numbers that the target itself chose from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import monograph
from monograph.ir import dtype
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.rewrite import GPU_COST
from monograph.runtime.numerics.compare import Difference, OutputPath, compare_outputs
from monograph.runtime.numerics.spread import tolerances as derived_for
from monograph.runtime.numerics.tolerance import Tolerance, epsilon

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


@dataclass(frozen=True)
class Cut:
    """The candidates for the rows of a detector: tensors [1, candidates, columns]."""

    rows: str
    """The output: rows of 4 numbers of a box, a score and a class."""
    boxes: str
    scores: str


ROWS = "rows of the model as it is"
CUTS = {
    "ul_yolov10n_e2e": Cut("output0", "/model.23/Split_output_0", "/model.23/Split_output_1"),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a model."""

    problem: str | None
    worst: Difference
    """The output that took most of its tolerance."""
    digest: str
    """Of all bits of all outputs."""


def problem_of(folder: Path, precision: str, target: str) -> str | None:
    """Return what is wrong with a model on a target; None where nothing is."""
    return outcome_of(folder, precision, target).problem


def outcome_of(folder: Path, precision: str, target: str) -> Outcome:
    """A model on a target, against the reference on the recorded inputs."""
    cut = CUTS.get(folder.name)
    plain = monograph.load(source_of(folder), target="reference")
    feeds = feeds_of(folder, plain)
    expected = run(plain, feeds)
    tolerances = allowed(plain, feeds, precision)
    given = outputs_of(folder, precision, target)
    digest, problem = digest_of(given), None
    if cut is not None:
        problem = wrong_rows(given.pop(ROWS), cut, given, expected, tolerances, precision)
        del given[cut.rows], expected[cut.rows]
    found = compare_outputs(given, expected, tolerances)
    worst = max(found, key=lambda d: (not d.ok, d.used))
    if not worst.ok:
        at = f"at {worst.worst} {worst.given} for {worst.expected}"
        problem = f"{worst.name}: {worst.problem} {at}"
    return Outcome(problem, worst, digest)


def outputs_of(folder: Path, precision: str, target: str) -> dict[str, Any]:
    """Return what a target computes from the recorded inputs.

    Beside the outputs of a detector that was cut there are its `ROWS` as users see them, from the
    kernels of the model without further outputs.
    """
    options = {"target": target, "precision": precision, "tune": "off"}
    session = monograph.load(source_of(folder), **options)  # type: ignore[arg-type]
    feeds = feeds_of(folder, session)
    given = run(session, feeds)
    cut = CUTS.get(folder.name)
    if cut is not None:
        whole = monograph.load(folder / "model.onnx", **options)  # type: ignore[arg-type]
        given[ROWS] = run(whole, feeds)[cut.rows]
    return given


def source_of(folder: Path) -> Path | onnx.ModelProto:
    """The model, cut where its rows are chosen."""
    cut, source = CUTS.get(folder.name), folder / "model.onnx"
    return source if cut is None else with_outputs(source, cut.boxes, cut.scores)


def feeds_of(folder: Path, session: monograph.Session) -> dict[str, Any]:
    arrays = read_archive(folder / "io.npz")
    inputs = {n: a for n, a in arrays.items() if not n.startswith("out:")}
    return split_archive(inputs, session.inputs, session.outputs)[0]


def run(session: monograph.Session, feeds: Mapping[str, Any]) -> dict[str, Any]:
    names = [p.name for p in session.outputs]
    return dict(zip(names, session.run(feeds), strict=True))


def digest_of(outputs: Mapping[str, Any]) -> str:
    """The same for the same bits under the same names."""
    found = hashlib.sha256()
    for name in sorted(outputs):
        x = np.ascontiguousarray(outputs[name])
        found.update(f"{name} {x.dtype} {x.shape}".encode())
        found.update(x.tobytes())
    return found.hexdigest()[:12]


def with_outputs(source: Path, *names: str) -> onnx.ModelProto:
    """A model that gives tensors out of its middle too."""
    model = onnx.load(source)
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names
    )
    return model


def allowed(
    plain: monograph.Session, feeds: Mapping[str, Any], precision: str
) -> dict[str, Tolerance]:
    """Return what each output may differ by in a precision."""
    if precision == "f32":
        return plain.tolerances(feeds, reference=True)
    options = PassOptions({"convert_precision": {"to": precision}}, until="convert_precision")
    graph = plain.bound_graph(feeds)
    graph = optimise(graph, environment=Environment(GPU_COST), options=options)
    return derived_for(graph, feeds, narrowed=True)


def wrong_rows(
    rows: np.ndarray,
    cut: Cut,
    given: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    tolerances: Mapping[str, Tolerance],
    precision: str,
) -> str | None:
    """Return the faults of rows, or of those that were `given` beside their candidates.

    The latter must be the best of the very numbers that they were chosen from.
    """
    rounding = Tolerance(rtol=epsilon(dtype(precision)))
    own = dict.fromkeys((cut.boxes, cut.scores), rounding)
    cases = {
        "rows": (rows, expected, tolerances),
        "rows of the cut model": (given[cut.rows], expected, tolerances),
        "rows beside their own candidates": (given[cut.rows], given, own),
    }
    for what, (each, candidates, bounds) in cases.items():
        wrong = wrong_choice(each, cut, candidates, bounds)
        if wrong is not None:
            return f"{what}: {wrong}"
    return None


def wrong_choice(
    rows: np.ndarray,
    cut: Cut,
    candidates: Mapping[str, np.ndarray],
    tolerances: Mapping[str, Tolerance],
) -> str | None:
    """Return why rows are not the best candidates; None where they are, but for rounding.

    A row is known by its class and its box: the candidate of that class whose box is nearest, both
    its box and its score within the tolerance. Whoever scores clearly more than the last row was
    given is sure to be among them.
    """
    (rows,), (boxes,), (scores,) = (
        np.asarray(x, np.float64) for x in (rows, candidates[cut.boxes], candidates[cut.scores])
    )
    near = _bounds(boxes, tolerances[cut.boxes], cut.boxes)
    alike = _bounds(scores, tolerances[cut.scores], cut.scores)
    if np.isnan(rows).any():
        return "a row is NaN"
    if (np.diff(rows[:, 4]) > 0).any():
        return "rows are not sorted by their scores"
    free = np.ones(scores.shape, bool)
    for i, row in enumerate(rows):
        kind = int(row[5])
        if kind != row[5] or not 0 <= kind < scores.shape[1]:
            return f"row {i} is of no class (given {row[5]:g})"
        away = np.abs(boxes - row[:4])
        fits = (away <= near).all(axis=1) & (np.abs(scores[:, kind] - row[4]) <= alike[:, kind])
        fits &= free[:, kind]
        if not fits.any():
            return f"row {i} is no candidate that is left (given {row})"
        free[np.argmin(np.where(fits, away.max(axis=1), np.inf)), kind] = False
    sure = scores - alike > rows[-1, 4] + alike.max()
    if (sure & free).any():
        at = tuple(map(int, np.argwhere(sure & free)[0]))
        return f"candidate {at} is missing (its score {scores[at]:g}, the last {rows[-1, 4]:g})"
    return None


def _bounds(expected: np.ndarray, tolerance: Tolerance, place: str) -> np.ndarray:
    """Return what each element may differ by."""
    bound = tolerance.rtol * np.abs(expected) + tolerance.atol
    spread = tolerance.spread
    reached = [] if spread is None else [*spread.reach(OutputPath(place))]
    return bound + reached[-1].reshape(bound.shape) if reached else bound
