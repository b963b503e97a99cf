"""Random graphs behind sizes that data decide: none, one, some or all are found, run by run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from tests.campaign.case import Case
from tests.campaign.draw import Draw
from tests.campaign.graphs.grower import DroppedError, Grower, Held
from tests.campaign.graphs.moves import MOVES, ints

SHARES = (0.0, 0.0, 0.3, 0.5, 0.8, 1.0)
"""The number of elements found in a run; besides, exactly one."""


def marks(d: Draw, shape: tuple[int, ...]) -> np.ndarray:
    """Bools of which none, one, some or all are set."""
    if d.chance(0.2) and np.prod(shape) > 0:
        made = np.zeros(shape, bool)
        made.reshape(-1)[d.number(0, made.size - 1)] = True
        return made
    return np.asarray(d.generator.random(shape) < d.some(SHARES))


def sparse(g: Grower, dims: list[int | str], kind: type = np.float32) -> Held:
    """An input whose zeros come and go."""

    def make(shape: tuple[int, ...], run: int) -> np.ndarray:
        numbers = g.d.array(kind, shape, 1, 5)
        return np.where(marks(g.d, shape), numbers, 0).astype(kind)

    return g.input(kind, dims, make)


def mask(g: Grower, size: int | str) -> Held:
    return g.input(np.bool_, [size], lambda shape, run: marks(g.d, shape))


def non_zero(g: Grower) -> Held:
    x = sparse(g, [g.d.number(1, 5) for _ in range(g.d.number(1, 3))])
    found = g.add("NonZero", x)
    if g.d.chance(0.5):
        return found
    return g.add("GatherND", x, g.add("Transpose", found, perm=[1, 0]))


def compress(g: Grower) -> Held:
    x = g.floats(least=1)
    axis = g.d.axis(x.rank)
    size = x.shape[axis]
    if size is None:
        raise DroppedError("no fixed size")
    if g.d.chance(0.2):
        return g.add("Compress", x, mask(g, int(np.prod(x.least))))
    return g.add("Compress", x, mask(g, size), axis=axis)


def unique(g: Grower) -> Held:
    kind = g.d.some((np.int64, np.float32))
    x = g.input(kind, [g.d.number(1, 9)], lambda s, run: g.d.generator.integers(
        0, g.d.some((1, 3, 20)), s).astype(kind))  # fmt: skip
    return g.d.some(g.add_all("Unique", x, outputs=4, sorted=g.d.number(0, 1)))


def suppression(g: Grower) -> Held:
    boxes, classes = g.d.number(2, 6), g.d.number(1, 2)
    corners = g.input(np.float32, [1, boxes, 4], lambda s, run: np.sort(
        g.d.generator.random((1, boxes, 2, 2)), axis=2).reshape(s).astype(np.float32))  # fmt: skip

    def score(shape: tuple[int, ...], run: int) -> np.ndarray:
        made = g.d.generator.random(shape) * g.d.some((0.1, 1.0, 2.0))
        return made.astype(np.float32)

    scores = g.input(np.float32, [1, classes, boxes], score)
    chosen = g.add("NonMaxSuppression", corners, scores, np.array(boxes, np.int64),
                   np.array(0.4, np.float32), np.array(0.5, np.float32))  # fmt: skip
    if g.d.chance(0.4):
        return chosen
    which = g.add("Squeeze", g.add("Slice", chosen, ints(2), ints(3), ints(1)), ints(1))
    return g.add("Gather", corners, which, axis=1)


def counting(g: Grower) -> Held:
    """A range as long as a number that is fed, or that was counted."""
    if g.d.chance(0.5):
        most = g.d.number(2, 9)
        limit = g.input(np.int64, [], lambda s, run: np.array(
            g.d.some((0, 1, g.d.number(0, most), most)), np.int64))  # fmt: skip
    else:
        x = sparse(g, [g.d.number(2, 8)], np.int64)
        limit = g.add("ReduceSum", g.add("Cast", g.add("Cast", x, to=TensorProto.BOOL),
                                         to=TensorProto.INT64), keepdims=0)  # fmt: skip
    return g.add("Range", np.array(0, np.int64), limit, np.array(1, np.int64))


def looped(g: Grower) -> Held:
    """A loop that collects a row a turn, as often as a number says or until a sum is large."""
    size = g.d.number(1, 4)
    start = g.input(np.float32, [size])
    trips = g.input(np.int64, [], lambda s, run: np.array(g.d.some((0, 1, 2, 5)), np.int64))
    names = {n: g.name(n) for n in ("turn", "go", "state", "on", "next", "row", "sum", "small")}
    f, b, i = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
    step, limit = g.name("k"), g.name("k")
    stops = g.d.chance(0.5)
    nodes = [
        helper.make_node("Add", [names["state"], step], [names["next"]]),
        helper.make_node("Mul", [names["next"], names["next"]], [names["row"]]),
        helper.make_node("ReduceSum", [names["next"]], [names["sum"]], keepdims=0),
        helper.make_node("Less", [names["sum"], limit], [names["small"]]),
        helper.make_node("Identity", [names["small" if stops else "go"]], [names["on"]]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(names["turn"], i, []),
         helper.make_tensor_value_info(names["go"], b, []),
         helper.make_tensor_value_info(names["state"], f, [size])],
        [helper.make_tensor_value_info(names["on"], b, []),
         helper.make_tensor_value_info(names["next"], f, [size]),
         helper.make_tensor_value_info(names["row"], f, [size])],
        [helper.make_tensor(step, f, [], [1.0]), helper.make_tensor(limit, f, [], [6.0])],
    )  # fmt: skip
    kept, rows = g.add_all("Loop", trips, np.array(True), start, outputs=2, body=body)
    return rows if g.d.chance(0.8) else kept


def chosen_rows(g: Grower) -> Held:
    """Rows of a value that a computed mask keeps."""
    x = g.pick(lambda h: h.is_float and h.rank >= 1 and h.shape[0] is not None)
    flat = g.add("ReduceMax", x, ints(*range(1, x.rank)), keepdims=0) if x.rank > 1 else x
    keep = g.add("Greater", flat, np.array(0.5, x.dtype))
    return g.add("Compress", x, keep, axis=0)


def like_counted(g: Grower) -> Held:
    """A tensor as large as one whose size data decide."""
    x = g.pick(lambda h: None in h.shape)
    size = g.add("Shape", x)
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])
    return g.add("ConstantOfShape", size, value=value)


SOURCES: tuple[Callable[[Grower], Held], ...] = (
    non_zero, compress, unique, suppression, counting, looped, chosen_rows,
)  # fmt: skip
COUNTED = [*SOURCES, like_counted]


def make(seed: int, number: int) -> Case:
    """The case of a seed and a number."""
    d = Draw(np.random.default_rng([seed, 3, number]))
    runs = d.number(3, 5)
    opened = {"N": tuple(d.number(1, 6) for _ in range(runs))} if d.chance(0.2) else {}
    g = Grower(d, opened, runs)
    dims: list[int | str] = [d.number(1, 6) for _ in range(d.number(1, 3))]
    if opened:
        dims[-1] = "N"
    g.input(np.float32, dims)
    g.grow(d.number(1, 2), SOURCES)
    g.grow(d.number(1, 5), [*MOVES, *COUNTED])
    return g.case("counted", seed, number)
