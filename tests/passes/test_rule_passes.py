"""The rules of each pass that only applies rules."""

from __future__ import annotations

from monograph.passes import rule_passes as passes
from monograph.passes.base import RulePass

SHARED = {frozenset({"FoldSizes", "CollapseViews"}), frozenset({"FuseDotRows", "CollapseViews"})}
"""The passes that have rules in common."""


def names(step: type[RulePass]) -> set[str]:
    return {rule.name for rule in step.rules}


def test_passes_share_no_rules_by_accident() -> None:
    every = [p for p in vars(passes).values() if isinstance(p, type) and issubclass(p, RulePass)]
    every.remove(RulePass)
    assert len(every) == 13
    for first in every:
        assert first.rules
        for second in every:
            pair = frozenset({first.__name__, second.__name__})
            if first is not second and pair not in SHARED:
                assert not names(first) & names(second), pair


def test_passes_for_one_rule() -> None:
    assert names(passes.ComposeConvs) == {"compose_pointwise"}
    assert names(passes.HoistConvs) == {"convolve_before_resize"}
    assert names(passes.FoldNorms) == {"norm_scale_into_dot"}
