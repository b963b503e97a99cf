"""Runs a model whose data decide a size on a target, and holds it to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

import monograph
from monograph import Session
from monograph.errors import MonographError

TOLERANCE = 1e-5
"""Relative to the largest number of a result: sums of a few f32, in any order."""


def sessions(model: onnx.ModelProto, target: str) -> tuple[Session, Session]:
    """The model on the reference, and on a target."""
    return monograph.load(model, target="reference"), monograph.load(model, target=target)


def agree(
    reference: Session,
    other: Session,
    feeds: Mapping[str, np.ndarray],
    where: str,
    owners: Sequence[str] = (),
) -> None:
    """Compares all outputs; an error of the reference has to be one of the target too."""
    given = {name: feeds[name] for name in reference.graph.input_names}
    try:
        expected = reference.run(given)
    except MonographError as e:
        try:
            other.run(given)
        except MonographError:
            return
        raise AssertionError(f"{where}: only the reference fails: {e}") from e
    names = owners or [str(i) for i in range(len(expected))]
    wrong = []
    for name, a, b in zip(names, other.run(given), expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype or not _close(a, b):
            wrong.append(f"{name}: {a.tolist()} for {b.tolist()}")
    assert not wrong, f"{where}: " + "\n".join(wrong)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if b.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(a, b, TOLERANCE, TOLERANCE * largest, equal_nan=True))
