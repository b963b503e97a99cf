"""Finds tables behind products with one-hot rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import lookup


@dataclass(frozen=True)
class RecogniseLookups(RulePass):
    """Takes rows of a table where a product with zeros and ones would compute them."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(lookup)
