"""Random graphs with open dimensions, run at several shapes in one session and back again."""

from __future__ import annotations

import numpy as np

from tests.campaign.case import Case
from tests.campaign.draw import Draw
from tests.campaign.graphs.grower import Grower
from tests.campaign.graphs.moves import MOVES

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 17)
SYMBOLS = ("N", "T", "H", "W")


def make(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    d = Draw(np.random.default_rng([seed, 2, number]))
    shapes = d.number(2, 4)
    sizes = {s: [d.some(SIZES) for _ in range(shapes)] for s in SYMBOLS}
    order = [*range(shapes), 0, *([d.number(0, shapes - 1)] if d.chance(0.3) else [])]
    g = Grower(d, {s: tuple(v[i] for i in order) for s, v in sizes.items()}, len(order))
    kind = d.some((np.float32, np.float32, np.float32, np.float64, np.float16))
    for _ in range(d.number(1, 3)):
        dims = [d.some((*SYMBOLS, *SYMBOLS, 1, 2, 3, 4, 8)) for _ in range(d.number(1, 4))]
        g.input(kind, dims)
    g.grow(d.number(2, 9), MOVES)
    return g.case("dynamic", seed, number)
