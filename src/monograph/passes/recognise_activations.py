"""Activations that kernels know become their ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import recognise_activation


@dataclass(frozen=True)
class RecogniseActivations(RulePass):
    """Finds SiLU and GELU in their arithmetic; in the last stage, as other rules match that."""

    rules: ClassVar[tuple[Rule, ...]] = rules_in(recognise_activation)
