"""A convolution followed by a 1x1 convolution becomes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import convolution


@dataclass(frozen=True)
class ComposeConvs(RulePass):
    """Composes pairs of convolutions with nothing between them, where one is faster than two."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(convolution)
