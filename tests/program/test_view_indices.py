"""Random chains of views: the index that leads to memory, against numpy on arrays of positions."""

from __future__ import annotations

import math
import os
import random

import numpy as np
import pytest

from monograph.errors import InternalError
from monograph.ir import Value
from monograph.ops.pad_tile import Tile
from monograph.ops.shape import Broadcast, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.ops.signal import Frames
from monograph.program.fusion.region import Element, counters, merge, through_view
from monograph.program.index import Atom, Counter, Index, Quotient, Remainder, flatten, strides_of
from tests.rules.checks import value

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
CASES = 3000
LARGEST = 600


def evaluated(index: Index, grids: dict[Counter, np.ndarray]) -> np.ndarray:
    """The values of an index at every point; divisions are those of unsigned machine words."""
    total = np.full(next(iter(grids.values())).shape if grids else (), index.constant, np.int64)
    for atom, factor in index.terms:
        total = total + _atom(atom, grids) * factor
    return total


def _atom(atom: Atom, grids: dict[Counter, np.ndarray]) -> np.ndarray:
    if isinstance(atom, Counter):
        return grids[atom]
    inner = evaluated(atom.index, grids).astype(np.uint64)
    by = np.uint64(atom.by)
    return (inner // by if isinstance(atom, Quotient) else inner % by).astype(np.int64)


def values_of(index: Index, every: set[Counter]) -> np.ndarray:
    """The values of an index over all points of some counters, the outermost by name first."""
    ordered = sorted(every, key=lambda c: (len(c.name), c.name))
    ranges = np.meshgrid(*(np.arange(c.extent) for c in ordered), indexing="ij")
    return evaluated(index, dict(zip(ordered, ranges, strict=True)))


def random_shape(rng: random.Random, total: int) -> tuple[int, ...]:
    factors = []
    while total > 1:
        factor = rng.choice([d for d in range(2, total + 1) if total % d == 0])
        factors.append(factor)
        total //= factor
    factors += [1] * rng.randrange(3)
    rng.shuffle(factors)
    return tuple(factors)


def _transpose(rng: random.Random, x: Value) -> Value:
    return Transpose(tuple(rng.sample(range(x.tensor.rank), x.tensor.rank)))(x)


def _reshape(rng: random.Random, x: Value) -> Value:
    return Reshape(random_shape(rng, x.tensor.size))(x)


def _slice(rng: random.Random, x: Value) -> Value:
    starts, stops, steps = [], [], []
    for d in x.tensor.static:
        step = rng.choice([1, 1, -1, -1, 2, -2, 3, -3])
        start = rng.randrange(d)
        room = (d - 1 - start) // step + 1 if step > 0 else start // -step + 1
        if rng.random() < 0.5:
            start = 0 if step > 0 else d - 1
            room = (d - 1) // abs(step) + 1
        starts.append(start)
        steps.append(step)
        stop = start + step * rng.choice([room, rng.randrange(1, room + 1)])
        stops.append(stop if stop >= 0 else -1 - d)
    return Slice(tuple(starts), tuple(stops), tuple(steps))(x)


def _broadcast(rng: random.Random, x: Value) -> Value:
    shape = tuple(rng.randrange(1, 4) if d == 1 else d for d in x.tensor.static)
    return Broadcast((*(rng.randrange(1, 3) for _ in range(rng.randrange(2))), *shape))(x)


def _unsqueeze(rng: random.Random, x: Value) -> Value:
    return Unsqueeze((rng.randrange(x.tensor.rank + 1),))(x)


def _squeeze(rng: random.Random, x: Value) -> Value:
    ones = tuple(k for k, d in enumerate(x.tensor.static) if d == 1)
    return Squeeze(ones)(x) if ones else x


def _tile(rng: random.Random, x: Value) -> Value:
    return Tile(tuple(rng.randrange(1, 3) for _ in x.tensor.static))(x)


def _frames(rng: random.Random, x: Value) -> Value:
    if not x.tensor.rank:
        return x
    axis = rng.randrange(x.tensor.rank)
    return Frames(axis, rng.randrange(1, x.tensor.static[axis] + 1), rng.randrange(1, 4))(x)


VIEWS = (_transpose, _reshape, _reshape, _slice, _slice, _broadcast, _unsqueeze, _squeeze, _tile)


def random_chain(rng: random.Random) -> Value:
    """Views of an input, the last of them first."""
    shape = random_shape(rng, rng.choice([1, 6, 12, 17, 30, 36, 64, 68, 105]))
    x = value(f"f32[{', '.join(map(str, shape))}]")
    for _ in range(rng.randrange(1, 7)):
        view = rng.choice((*VIEWS, _frames))(rng, x)
        if view.tensor.size <= LARGEST:
            x = view
    return x


def expected_of(chain: Value) -> np.ndarray:
    """The position in memory of each element of a chain of views, by the ops' references."""
    if not chain.inputs:
        return np.arange(chain.tensor.size).reshape(chain.tensor.static)
    return np.asarray(chain.op.reference(expected_of(chain.inputs[0])))


def position_of(chain: Value, at: tuple[Index, ...]) -> Index:
    element = Element(chain, at)
    while element.value.inputs:
        element = through_view(element.value, element.at)
    return flatten(element.at, strides_of(element.value.tensor.static))


def described(chain: Value) -> str:
    return f"{chain.op} <- {described(chain.inputs[0])}" if chain.inputs else str(chain.type)


def test_chains_of_views_lead_to_the_same_elements_as_numpy() -> None:
    negative = 0
    for case in range(CASES):
        rng = random.Random(SEED * CASES + case)
        chain = random_chain(rng)
        at = counters(chain.tensor.static)
        every = {c for index in at for c in index.counters}
        position = position_of(chain, at)
        told = f"MONOGRAPH_TEST_SEED={SEED}, case {case}: {described(chain)}\n{position}"
        expected = expected_of(chain)
        made = np.broadcast_to(
            values_of(position, every), [c.extent for c in sorted_by_name(every)]
        )
        assert np.array_equal(made.reshape(expected.shape), expected), told
        low, high = position.bounds()
        assert low <= expected.min(), told
        assert expected.max() <= high, told
        negative += any(f < 0 for _, f in position.terms)
        # The same in terms of fewer counters, as kernels step through it.
        merged = merge(chain.tensor.static, at, [position])
        fewer = {c for index in merged for c in index.counters}
        again = values_of(position_of(chain, merged), fewer)
        assert np.array_equal(
            np.broadcast_to(again, [c.extent for c in sorted_by_name(fewer)]).reshape(-1),
            expected.reshape(-1),
        ), told
    assert negative > CASES // 20, "chains with negative steps are what this is about"


def sorted_by_name(every: set[Counter]) -> list[Counter]:
    return sorted(every, key=lambda c: (len(c.name), c.name))


def _atoms(index: Index) -> list[Atom]:
    found: list[Atom] = []
    for atom, _ in index.terms:
        found += [atom, *([] if isinstance(atom, Counter) else _atoms(atom.index))]
    return found


def test_random_sums_divide_as_python_does_and_bounds_hold() -> None:
    for case in range(CASES):
        rng = random.Random(SEED * CASES + case)
        every = [Counter(f"i{k}", rng.randrange(1, 6)) for k in range(rng.randrange(1, 4))]
        index = Index(rng.randrange(-40, 40))
        for c in every:
            index = index + Index(0, ((c, rng.choice([-12, -7, -6, -4, -1, 1, 2, 3, 4, 8, 12])),))
        expected = values_of(index, set(every))
        steps = []
        for _ in range(rng.randrange(1, 4)):
            by, how = rng.choice([1, 2, 3, 4, 6, 8, 12]), rng.choice("/%*+")
            steps.append((how, by))
            if how == "/":
                index, expected = index // by, expected // by
            elif how == "%":
                index, expected = index % by, expected % by
            elif how == "*":
                index, expected = index * -by, expected * -by
            else:
                index, expected = index + (index // by), expected + expected // by
        told = f"MONOGRAPH_TEST_SEED={SEED}, case {case}: {every} {steps}\n{index}"
        assert np.array_equal(values_of(index, set(every)), expected), told
        low, high = index.bounds()
        assert low <= expected.min() <= expected.max() <= high, told
        divided = [a for a in _atoms(index) if not isinstance(a, Counter)]
        assert all(a.index.bounds()[0] >= 0 for a in divided), told


@pytest.mark.parametrize("atom", [Quotient, Remainder])
def test_a_negative_index_is_never_divided(atom: type[Quotient | Remainder]) -> None:
    negative = Index(1, ((Counter("i", 3), -1),))
    with pytest.raises(InternalError, match="may be negative"):
        atom(negative, 2)
    assert atom(negative + 1, 2).bounds == (0, 1)


def test_a_reversed_reshape_divides_nothing_negative() -> None:
    x = value("f32[3, 2]")
    reversed_ = Slice((5,), (-7,), (-1,))(Reshape((6,))(Transpose((1, 0))(x)))
    position = position_of(reversed_, counters((6,)))
    assert values_of(position, position.counters).tolist() == [5, 3, 1, 4, 2, 0]
    assert position.bounds()[0] >= 0
    assert math.prod((3, 2)) > position.bounds()[1]
