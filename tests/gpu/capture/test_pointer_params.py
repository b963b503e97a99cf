"""Addresses at which a graph is recorded again, and launches that a graph can hold by itself."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from monograph.runtime.gpu.capture.control import is_own
from monograph.runtime.gpu.capture.pointer_params import ALIGNED, distinct_addresses

SIZES = {"a": 100, "b": 8, "c": ALIGNED, "d": 0}


@pytest.mark.parametrize("offset", [0, 4, 16, ALIGNED - 1])
def test_other_addresses_are_aligned_as_the_first_were(offset: int) -> None:
    """Libraries choose kernels by alignment: a copy that is aligned otherwise runs another one."""
    first = {n: (7 + i) * ALIGNED + offset for i, n in enumerate(SIZES)}
    second = {n: at + 5 * ALIGNED for n, at in first.items()}
    found = distinct_addresses(SIZES, [first, second], base=12_345)
    assert {n: at % ALIGNED for n, at in found.items()} == dict.fromkeys(SIZES, offset)
    assert min(found.values()) >= 12_345


def test_every_address_moves_by_a_distance_of_its_own() -> None:
    """The distance tells which port a word of a kernel's parameters belongs to."""
    starts = [{n: (1 + i) * 4096 for i, n in enumerate(SIZES)}]
    for _ in range(3):
        found = distinct_addresses(SIZES, starts, base=1 << 20)
        for s in starts:
            distances = [found[n] - s[n] for n in SIZES]
            assert len(set(distances)) == len(distances)
        starts.append(found)


def test_other_addresses_do_not_overlap() -> None:
    found = distinct_addresses(SIZES, [dict.fromkeys(SIZES, 0)], base=0)
    ends = sorted((at, at + SIZES[n]) for n, at in found.items())
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("conditionals", [False, True])
def test_a_launch_of_a_library_is_not_our_own(conditionals: bool) -> None:
    """A launch without a function is recorded, not built, with and without conditional nodes."""
    graphs = SimpleNamespace(conditionals=conditionals, function=lambda record: None)
    assert not is_own(graphs, object())  # type: ignore[arg-type]
    graphs.function = lambda record: 1
    assert is_own(graphs, object())  # type: ignore[arg-type]
