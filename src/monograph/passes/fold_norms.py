"""Scales of normalisations move into the products behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import norms


@dataclass(frozen=True)
class FoldNorms(RulePass):
    """Where products normalise their rows themselves, only the rows' sizes are left to do."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(norms)
