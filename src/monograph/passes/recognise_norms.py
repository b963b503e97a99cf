"""Softmax and normalisations become their ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import recognise_norm, recognise_softmax


@dataclass(frozen=True)
class RecogniseNorms(RulePass):
    """Finds softmax, LayerNorm and RMSNorm in their arithmetic, with scale and bias.

    It runs in the last stage, as other rules match the arithmetic.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        *rules_in(recognise_softmax),
        *rules_in(recognise_norm),
    )
