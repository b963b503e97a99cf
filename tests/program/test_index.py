"""Index arithmetic against plain counting."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from monograph.program.index import (
    Counter,
    Index,
    Quotient,
    counter,
    flatten,
    strides_of,
    unflatten,
)


def number(index: Index, values: dict[str, int]) -> int:
    """The value of an index for given counters."""
    total = index.constant
    for atom, factor in index.terms:
        if isinstance(atom, Counter):
            one = values[atom.name]
        elif isinstance(atom, Quotient):
            one = number(atom.index, values) // atom.by
        else:
            one = number(atom.index, values) % atom.by
        total += factor * one
    return total


def shapes_of(total: int, rng: random.Random) -> tuple[int, ...]:
    """A random shape of so many elements."""
    factors = []
    while total > 1:
        factor = rng.choice([d for d in range(2, total + 1) if total % d == 0])
        factors.append(factor)
        total //= factor
    factors += [1] * rng.randrange(2)
    rng.shuffle(factors)
    return tuple(factors) or (1,)


@pytest.mark.parametrize("seed", range(60))
def test_reshapes_of_reshapes_reach_the_same_element(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([12, 24, 36, 60, 64])
    shape = shapes_of(total, rng)
    at = tuple(counter(f"i{k}", d) for k, d in enumerate(shape))
    current = shape
    for _ in range(3):
        following = shapes_of(total, rng)
        at = unflatten(flatten(at, strides_of(current)), following)
        current = following
    position = flatten(at, strides_of(current))
    for point in itertools.product(*map(range, shape)):
        values = {f"i{k}": v for k, v in enumerate(point)}
        expected = sum(v * s for v, s in zip(point, strides_of(shape), strict=True))
        assert number(position, values) == expected


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ((12,), (3, 4)),
        ((3, 4), (12,)),
        ((32, 2), (2, 16, 2)),
        ((2, 3, 4), (6, 4)),
        ((6, 4), (2, 3, 4)),
    ],
)
def test_reshapes_in_memory_order_stay_linear(outer, inner) -> None:
    at = tuple(counter(f"i{k}", d) for k, d in enumerate(outer))
    position = flatten(unflatten(flatten(at, strides_of(outer)), inner), strides_of(inner))
    assert position.is_linear
    assert position.bounds() == (0, math.prod(outer) - 1)


def test_division_and_remainder_resolve_where_bounds_allow() -> None:
    i, j = counter("i", 5), counter("j", 4)
    position = i * 4 + j
    assert position // 4 == i
    assert position % 4 == j
    assert (position // 3).counters == {Counter("i", 5), Counter("j", 4)}
    assert not (position // 3).is_linear


def test_a_loop_of_one_trip_is_a_constant() -> None:
    assert counter("i", 1) == Index()
    assert Index(3) * 0 == Index()
    assert (counter("i", 3) + 2).bounds() == (2, 4)
    assert (counter("i", 3) * -2).bounds() == (-4, 0)


def test_of_nothing_there_is_no_place() -> None:
    i = Index(0, ((Counter("i", 2), 1),))
    assert unflatten(i, (0, 0)) == (Index(), Index())
    assert unflatten(i, (3, 0)) == (Index(), Index())
