"""Runs a model whose data decide a size on a target, and holds it to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

import monograph
from monograph import Session
from monograph.errors import MonographError
from monograph.runtime.numerics.compare import compare_outputs


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
    names = [p.name for p in reference.outputs]
    left, right = (dict(zip(names, x, strict=True)) for x in (other.run(given), expected))
    found = compare_outputs(left, right, reference.tolerances(given, reference=True))
    by = dict(zip(names, owners, strict=True)) if owners else {}
    wrong = [f"{by.get(d.place.output, d.name)}: {d}" for d in found if not d.ok]
    assert not wrong, f"{where}: " + "\n".join(wrong)
