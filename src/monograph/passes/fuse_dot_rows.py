"""Makes one product of the products of many matrices with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule
from monograph.rules import commute, views


@dataclass(frozen=True)
class FuseDotRows(RulePass):
    """dot([B, S, K], [K, N]) -> dot([B*S, K], [K, N]), the elementwise work behind it included.

    Runs last: `CollapseViews` would undo it.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        views.merge_reshapes,
        views.drop_reshape,
        *commute.FLATTENING,
    )
