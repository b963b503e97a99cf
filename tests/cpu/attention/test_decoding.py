"""Steps of decoding on the CPU: as the ops that they are made of."""

from __future__ import annotations

import pytest

from tests.cpu.against import check
from tests.cpu.attention.viewed_caches import MADE, donated_view, some, viewed


@pytest.mark.parametrize("name", MADE)
def test_caches_that_are_no_inputs(name: str) -> None:
    graph = viewed(name)
    check(graph, some(graph, [7, 19]))


def test_a_view_of_a_donated_input() -> None:
    graph = donated_view()
    check(graph, some(graph, [1]))
