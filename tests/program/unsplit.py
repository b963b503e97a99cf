"""Lowers graphs whose data decide sizes as one program: ops of open sizes become host steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from monograph.program.lowering import LoweringTarget


@contextmanager
def unsplit(target: type[LoweringTarget]) -> Iterator[None]:
    """Leave the step out that splits a graph where data decide a size."""
    stages = tuple(
        replace(stage, steps=tuple(s for s in stage.steps if s.name != "split_stages"))
        for stage in target.lowering
    )
    assert stages != target.lowering
    with mock.patch.object(target, "lowering", stages):
        yield
