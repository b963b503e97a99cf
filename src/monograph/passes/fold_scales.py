"""Scales, biases and padding move into the layers beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import scales


@dataclass(frozen=True)
class FoldScales(RulePass):
    """BatchNorm and other constant scales go into weights, zero padding into convolutions."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(scales)
