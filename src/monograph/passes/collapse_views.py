"""Leaves of views, slices, concats and casts what cannot be done without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import casts, commute, concat, extremes, sizes, slices, views


@dataclass(frozen=True)
class CollapseViews(RulePass):
    """Chains of views become the shortest that do the same.

    Views move down, behind elementwise work, concats and dots, until they meet others; slices move
    up to what they can merge with; concats of what was cut give it back whole.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        *rules_in(sizes),
        *rules_in(casts),
        *rules_in(views),
        *rules_in(slices),
        *rules_in(concat),
        *rules_in(extremes),
        *commute.SINKING,
    )
