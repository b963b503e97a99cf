"""Gives ops the sizes they waited for, and drops casts that change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import casts, sizes


@dataclass(frozen=True)
class FoldSizes(RulePass):
    """Shapes that are known become constants, and deferred ops whose attributes they are, plain."""

    rules: ClassVar[tuple[Rule, ...]] = (*rules_in(sizes), *rules_in(casts))
