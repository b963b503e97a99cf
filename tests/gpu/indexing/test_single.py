"""Ops on dimensions of one element that are read through views, against the reference."""

from __future__ import annotations

import pytest

from tests.cpu.sweep_cases import Case
from tests.gpu.against import check
from tests.gpu.indexing.single import cases

CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_single_elements(case: Case) -> None:
    check(case.graph, case.feeds, every=False)


def test_most_ops_have_a_case() -> None:
    assert len({c.name.split()[0] for c in CASES}) > 100
