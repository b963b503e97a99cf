"""Attention and rotary embedding that were written out become their ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from monograph.passes.base import RulePass
from monograph.rewrite import Rule, rules_in
from monograph.rules import recognise_attention, recognise_rope


@dataclass(frozen=True)
class RecogniseAttention(RulePass):
    """Finds attention and rotary embedding in their arithmetic.

    It runs before the passes that move scales and views about, which would hide them.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        *rules_in(recognise_rope),
        *rules_in(recognise_attention),
    )
