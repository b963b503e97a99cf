"""1x1 convolutions move above resizes: they are done on the smaller image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import resizing


@dataclass(frozen=True)
class HoistConvs(RulePass):
    """Convolves single pixels before an image is enlarged, where that is less work."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(resizing)
