"""The command `monograph diff`: reads two sides, runs them on the same inputs, compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monograph.errors import ConfigError
from monograph.report.commands.execute import Notes, RunRequest, advising
from monograph.report.commands.input_files import INPUT_PREFIX, OUTPUT_PREFIX
from monograph.report.diff.compare import MODEL, DiffResult, compare_sides
from monograph.report.diff.files import node_differences
from monograph.report.diff.rounding import largest_rounding
from monograph.report.diff.sides import (
    TWIN,
    Observed,
    Side,
    observe,
    parse_sides,
    read_side,
    recorded_feeds,
)
from monograph.report.diff.tensors import OnnxTensors, float_twin
from monograph.runtime.atomic_write import replacing_named
from monograph.runtime.cache.store import is_package


def model_of(first: Side, second: Side, named: Path | None = None) -> Path:
    """Return the model file whose tensors are compared: that of the first side that has one.

    named: the model file of sides that have none.
    """
    for side in (first, second):
        if side.model is not None and side.kind not in ("arrays", "package"):
            if named is not None:
                raise ConfigError(
                    "`--model` is for packages and archives only: a side names its model",
                    given=side.text,
                    hint="leave out `--model`",
                )
            return side.model
    if named is not None:
        return named
    raise ConfigError(
        "packages and arrays do not tell what lies between inputs and outputs",
        given=f"{first.text} and {second.text}",
        hint="name the ONNX file that they come from: `--model MODEL.onnx`",
    )


def diff_model(
    first: str, second: str, request: RunRequest, note: Notes, named: Path | None = None
) -> DiffResult:
    """Compare two sides on the inputs of a request; `named` is the model of two packages."""
    sides = parse_sides(first, second)
    model = model_of(*sides, named)
    feeds, tensors = _inputs(sides, replace(request, model=model), note)
    dims = request.dims or {}
    read = [tensors if _reads(s, model) else read_side(s, feeds, dims) for s in sides]
    note(f"running {first}")
    a = observe(sides[0], read[0], dims)
    note(f"running {second}")
    b = observe(sides[1], read[1], dims)
    twin = any(s.kind == TWIN for s in sides)
    base = b.graph or read[1]
    if twin and b.graph is None:
        base = float_twin(tensors)
        a, b = b, a
    found = compare_sides(a, b, base, same_model=not twin and read[0] is read[1])
    for side, tensors_of in zip(sides, read, strict=True):
        if not twin and read[0] is not read[1] and _is_rounded(tensors_of, found):
            note(
                f"{side.text} rounds activations, and few of its tensors have their name in both"
                f" files ({len(found.rows)}): compare it with `float` too, which names the layer"
            )
    return largest_rounding(found, tensors) if twin else _with_differences(found)


def _is_rounded(tensors: OnnxTensors, found: DiffResult) -> bool:
    """Return True for a quantised model of which less than half of the tensors are compared."""
    return bool(tensors.codes) and 2 * len(found.rows) < len(tensors.values)


def _with_differences(found: DiffResult) -> DiffResult:
    """Add what differs in the files at the place where two models differ."""
    culprit = found.culprit
    first, second = (observed.side.model for observed in found.sides)
    if culprit is None or culprit.kind != MODEL or first is None or second is None:
        return found
    labels = [node.label for node in culprit.nodes]
    differences = node_differences(first, second, labels)
    return replace(found, culprit=replace(culprit, differences=differences))


def _reads(side: Side, model: Path) -> bool:
    """Return True if a side's tensors are those of this model file."""
    return side.model == model or side.kind == "arrays" or is_package(side.model or "")


def _inputs(
    sides: tuple[Side, Side], request: RunRequest, note: Notes
) -> tuple[Mapping[str, Any], OnnxTensors]:
    """Return inputs for both sides, recorded ones first, and the tensors of the model on them."""
    recorded: dict[str, Any] = {}
    for side in sides:
        if side.kind == "arrays":
            recorded |= recorded_feeds(side)
    session = replace(request, target="reference", options={}).load()
    made = request.inputs(session, note, recorded or None)
    with advising(made):
        side = Side(str(request.model), "reference", request.model)
        return made.feeds, read_side(side, made.feeds, request.dims or {})


def record(text: str, request: RunRequest, target: Path, note: Notes) -> Observed:
    """Run one side and write its inputs and tensors to an archive, for a comparison elsewhere."""
    if target.suffix != ".npz":
        raise ConfigError("`--record` must name an .npz file", given=str(target))
    side, _ = parse_sides(text, text)
    feeds, tensors = _inputs((side, side), replace(request, model=model_of(side, side)), note)
    found = observe(side, tensors, request.dims or {})
    arrays = {f"{INPUT_PREFIX}{n}": x for n, x in feeds.items() if x is not None}
    arrays |= {f"{OUTPUT_PREFIX}{n}": _plain(p.data) for n, p in found.points.items()}
    with replacing_named(target) as file:
        np.savez(file, **arrays)
    return found


def _plain(array: Any) -> Any:
    return array if array.dtype.kind != "V" else array.astype(np.float32)
