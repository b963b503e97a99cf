"""Inputs for a session, drawn at random where none are given: the one place that draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monograph.runtime.inputs.input_ranges import input_ranges
from monograph.runtime.inputs.inputs import DEFAULT_SIZE, Chosen, Inputs, make_inputs
from monograph.session import Session


def draw_inputs(
    session: Session,
    given: Mapping[str, Any] | None = None,
    seed: int = 0,
    size: int = DEFAULT_SIZE,
    chosen: Chosen | None = None,
) -> Inputs:
    """Given arrays where there are some, random ones elsewhere, in ranges that the model can use.

    size: that of dimensions which nothing fixes.
    chosen: ranges and values that the user asked for.
    """
    return make_inputs(
        session.inputs,
        given or {},
        seed,
        size,
        session.packaged_sizes,
        lambda feeds: input_ranges(session.bound_graph(feeds)),
        chosen,
    )
