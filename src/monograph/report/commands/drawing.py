"""Random inputs for a session."""

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
    """Return the given arrays, and random ones in valid ranges for all other inputs.

    size: the size of dimensions that nothing fixes.
    chosen: ranges and values from the user.
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
