"""The check of a detector's rows: it takes every right choice, and no wrong one.

What differs between two right runs of a detector is which of nearly equal candidates come last,
and in which order. Every mutation that is more than that must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import monograph
from monograph.ir import evaluate
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.rewrite import GPU_COST
from monograph.runtime.numerics.compare import compare_outputs
from monograph.runtime.numerics.tolerance import Tolerance
from tests.gpu.real_models import (
    CUTS,
    Cut,
    allowed,
    feeds_of,
    run,
    source_of,
    wrong_choice,
    wrong_rows,
)

CUT = Cut("rows", "boxes", "scores")
CLASSES, ANCHORS, KEPT = 5, 200, 30
EXACT = dict.fromkeys(("boxes", "scores"), Tolerance(rtol=2.0**-23))
LOOSE = dict.fromkeys(("boxes", "scores"), Tolerance(rtol=1e-3))
YOLO = Path(__file__).resolve().parents[3] / "shared" / "models" / "ul_yolov10n_e2e"


def candidates() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 640, (1, ANCHORS, 4))
    return {"boxes": boxes, "scores": rng.uniform(0, 1, (1, ANCHORS, CLASSES))}


def chosen(given: Mapping[str, np.ndarray]) -> np.ndarray:
    """The best pairs of a candidate and a class, as a detector gives them."""
    (boxes,), (scores,) = given["boxes"], given["scores"]
    best = np.argsort(-scores.ravel(), kind="stable")[:KEPT]
    anchors, classes = best // CLASSES, best % CLASSES
    columns = (boxes[anchors], scores.ravel()[best][:, None], classes[:, None])
    return np.concatenate(columns, axis=1)[None]


def disturbed(given: Mapping[str, np.ndarray], by: float) -> dict[str, np.ndarray]:
    """The same candidates, each element off by up to `by` of itself."""
    rng = np.random.default_rng(1)
    return {n: x * (1 + by * rng.uniform(-1, 1, x.shape)) for n, x in given.items()}


def test_a_right_choice_passes() -> None:
    exact = candidates()
    assert wrong_choice(chosen(exact), CUT, exact, EXACT) is None
    other = disturbed(exact, 5e-4)
    rows = chosen(other)
    # Rounding made another choice, in another order: it is still right.
    assert not np.array_equal(rows[..., 5], chosen(exact)[..., 5])
    assert wrong_choice(rows, CUT, exact, LOOSE) is None
    assert wrong_choice(rows, CUT, other, EXACT) is None
    assert wrong_choice(rows, CUT, exact, EXACT) is not None


def _swap(rows: np.ndarray) -> None:
    rows[0, [0, 20]] = rows[0, [20, 0]]


def _repeat(rows: np.ndarray) -> None:
    rows[0, 8] = rows[0, 7]


def _move(rows: np.ndarray) -> None:
    rows[0, 12, 2] += 2.0


def _rescore(rows: np.ndarray) -> None:
    rows[0, 0, 4] += 0.01


def _reclass(rows: np.ndarray) -> None:
    rows[0, 9, 5] = (rows[0, 9, 5] + 1) % CLASSES


def _no_class(rows: np.ndarray) -> None:
    rows[0, 9, 5] = CLASSES


def _half_class(rows: np.ndarray) -> None:
    rows[0, 9, 5] += 0.5


def _spoil(rows: np.ndarray) -> None:
    rows[0, 29, 0] = np.nan


def _mix(rows: np.ndarray) -> None:
    """The boxes of two rows change places."""
    rows[0, [3, 4], :4] = rows[0, [4, 3], :4]


@pytest.mark.parametrize(
    ("mutate", "problem"),
    [
        (_swap, "not sorted"),
        (_repeat, "no candidate that is left"),
        (_move, "row 12 is no candidate"),
        (_rescore, "row 0 is no candidate"),
        (_reclass, "row 9 is no candidate"),
        (_no_class, "row 9 is of no class"),
        (_half_class, "row 9 is of no class"),
        (_spoil, "NaN"),
        (_mix, "row 3 is no candidate"),
    ],
)
@pytest.mark.parametrize("tolerances", [EXACT, LOOSE], ids=["exact", "loose"])
def test_wrong_rows_are_found(
    mutate: Callable[[np.ndarray], None], problem: str, tolerances: Mapping[str, Tolerance]
) -> None:
    given = candidates()
    rows = chosen(given)
    mutate(rows)
    assert problem in (wrong_choice(rows, CUT, given, tolerances) or "")


def test_a_row_that_was_left_out_is_missed() -> None:
    given = candidates()
    longer = chosen(given)
    for left_out, missed in ((5, True), (KEPT - 1, False)):
        (boxes,), (scores,) = given["boxes"], given["scores"]
        best = np.argsort(-scores.ravel(), kind="stable")[: KEPT + 1]
        best = np.delete(best, left_out)
        rows = longer.copy()
        rows[0, :, :4] = boxes[best // CLASSES]
        rows[0, :, 4], rows[0, :, 5] = scores.ravel()[best], best % CLASSES
        # The last and the next one are nearly equal: either may come last.
        close = Tolerance(atol=scores.ravel()[best[-2]] - scores.ravel()[best[-1]])
        allowed = {"boxes": close, "scores": close}
        wrong = wrong_choice(rows, CUT, given, allowed)
        assert ("is missing" in (wrong or "")) == missed
        assert "is missing" in (wrong_choice(rows, CUT, given, EXACT) or "")


@pytest.mark.skipif(not YOLO.is_dir(), reason=f"{YOLO} is not on this machine")
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_a_real_detector_differs_in_the_order_of_its_last_rows_only(precision: str) -> None:
    """The converted graph, computed by the reference with every result rounded."""
    cut = CUTS[YOLO.name]
    plain = monograph.load(source_of(YOLO), target="reference")
    feeds = feeds_of(YOLO, plain)
    expected = run(plain, feeds)
    tolerances = allowed(plain, feeds, precision)
    options = PassOptions({"convert_precision": {"to": precision}})
    graph = optimise(plain.bound_graph(feeds), environment=Environment(GPU_COST), options=options)
    given = dict(zip(graph.output_names, evaluate(graph, feeds), strict=True))
    rows = given[cut.rows]
    assert not np.array_equal(rows, expected[cut.rows])
    assert wrong_rows(rows, cut, given, expected, tolerances, precision) is None
    raw = {n: given[n] for n in (cut.boxes, cut.scores)}
    assert all(d.ok for d in compare_outputs(raw, {n: expected[n] for n in raw}, tolerances))
    mutated = {**given, cut.rows: rows.copy()}
    mutated[cut.rows][0, 150, 5] = (rows[0, 150, 5] + 1) % 80
    assert wrong_rows(rows, cut, mutated, expected, tolerances, precision) is not None
    lowered = {**given, cut.scores: given[cut.scores].copy()}
    lowered[cut.scores][0, 0, 0] = 1.0
    wrong = wrong_rows(rows, cut, lowered, expected, tolerances, precision)
    assert "is missing" in (wrong or "")
