"""Random graphs with dimensions of size 0: fixed, fed, or made by a slice or a split."""

from __future__ import annotations

import numpy as np

from tests.campaign.case import Case
from tests.campaign.draw import Draw
from tests.campaign.graphs.grower import Grower, Held
from tests.campaign.graphs.moves import MOVES, ints

SYMBOLS = ("N", "T")


def emptied(g: Grower) -> Held:
    """A slice of which nothing is left."""
    x = g.pick(lambda h: h.rank >= 1)
    axis = g.d.axis(x.rank)
    start = g.d.number(0, max(x.least[axis], 1))
    return g.add("Slice", x, ints(start), ints(start), ints(axis))


def split_off(g: Grower) -> Held:
    """A part of size 0, and the rest."""
    x = g.pick(lambda h: h.rank >= 1 and None not in h.shape)
    axis = g.d.axis(x.rank)
    size = x.least[axis]
    sizes = ints(0, size) if g.d.chance(0.5) else ints(size, 0)
    return g.d.some(g.add_all("Split", x, sizes, outputs=2, axis=axis))


def nothing_joined(g: Grower) -> Held:
    """A concat with a part that has no elements."""
    x = g.pick(lambda h: h.rank >= 1 and None not in h.shape)
    axis = g.d.axis(x.rank)
    shape = list(x.least)
    shape[axis] = 0
    empty = np.zeros(shape, x.dtype)
    return g.add("Concat", *((x, empty) if g.d.chance(0.5) else (empty, x)), axis=axis)


EMPTYING = [emptied, split_off, nothing_joined]


def make(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    d = Draw(np.random.default_rng([seed, 4, number]))
    runs = d.number(1, 3)
    sizes = {s: tuple(d.some((0, 0, 1, 3, 5)) for _ in range(runs)) for s in SYMBOLS}
    g = Grower(d, sizes, runs)
    kind = d.some((np.float32, np.float32, np.float64, np.float16))
    for _ in range(d.number(1, 2)):
        dims = [d.some((*SYMBOLS, 0, 1, 2, 3, 4)) for _ in range(d.number(1, 4))]
        g.input(kind, dims)
    g.grow(d.number(1, 2), EMPTYING)
    g.grow(d.number(2, 6), [*MOVES, *EMPTYING, *EMPTYING])
    return g.case("zero", seed, number)
