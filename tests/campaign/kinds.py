"""The kinds of cases that a campaign makes, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaign import nnsmith_cases, single
from tests.campaign.case import Case
from tests.campaign.graphs import counted, dynamic, zero

KINDS: dict[str, Callable[[int, int], Case]] = {
    "single": single.make,
    "dynamic": dynamic.make,
    "counted": counted.make,
    "zero": zero.make,
    "nnsmith": nnsmith_cases.make,
}
"""A seed and a number to a case."""
