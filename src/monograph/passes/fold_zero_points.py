"""Layers of quantised numbers multiply bytes; zero points and scales come after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import quantised


@dataclass(frozen=True)
class FoldZeroPoints(RulePass):
    """Zero points and scales of quantised operands move behind dots and convolutions.

    Runs first: constant folding would turn small quantised weights into floats.
    """

    rules: ClassVar[tuple[Rule, ...]] = rules_in(quantised)
