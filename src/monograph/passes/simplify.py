"""Small laws of arithmetic and views, to a fixpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import arithmetic


@dataclass(frozen=True)
class Simplify(RulePass):
    """Applies unit and zero laws, and cancels or merges what stands side by side."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(arithmetic)
