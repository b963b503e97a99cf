"""Views collapse: random chains, splits joined again, towers whose outputs are joined."""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, verify
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Mul, Neg, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.passes.base import Environment, Pass, run_pass
from monograph.passes.horizontal.batch_towers import BatchTowers
from monograph.passes.horizontal.hoist_slices import HoistSlices
from monograph.passes.rule_passes import CollapseViews, FuseDotRows
from tests.passes.test_batch_towers import silu, tower, weight
from tests.rules.checks import check_numbers, graph_of, value
from tests.rules.test_slices import cut

CASES = 150
VIEWS = ("reshape", "transpose", "slice", "concat", "squeeze", "unsqueeze", "broadcast")


def run(graph: Graph, *passes: Pass) -> Graph:
    for step in passes:
        graph = verify(run_pass(step, graph, Environment()))
    return graph


def count(graph: Graph, *names: str) -> int:
    counts = Counter(v.op.name for v in graph.values)
    return sum(counts[n] for n in names)


class Chains:
    """Random graphs of views, with a little work among them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        shape = self.random.choice(["6, 4", "2, 3, 4", "12", "1, 4, 6", "2, 2, 3, 2"])
        self.values = [value(f"f32[{shape}]")]
        steps = [self.reshape, self.transpose, self.slice, self.split, self.unsqueeze]
        steps += [self.broadcast, self.work]
        for _ in range(self.random.randint(2, 10)):
            self.values.append(self.random.choice(steps)(self.random.choice(self.values[-4:])))

    def graph(self) -> Graph:
        outputs = [self.values[-1]]
        if self.random.random() < 0.3:
            outputs.append(self.random.choice(self.values))
        return graph_of(*outputs)

    def reshape(self, x: Value) -> Value:
        sizes: list[int] = []
        left = x.tensor.size
        while left > 1:
            size = self.random.choice([d for d in range(2, left + 1) if left % d == 0])
            sizes.append(size)
            left //= size
        if self.random.random() < 0.5:
            sizes.insert(self.random.randint(0, len(sizes)), 1)
        return Reshape((*sizes, *([0] if left == 0 else [])))(x)

    def transpose(self, x: Value) -> Value:
        order = list(range(x.tensor.rank))
        self.random.shuffle(order)
        return Transpose(tuple(order))(x)

    def slice(self, x: Value) -> Value:
        starts, stops, steps = [], [], []
        for size in x.tensor.static:
            start = self.random.randint(0, max(size - 1, 0))
            stop = self.random.randint(start, size) + (start < size)
            whole = self.random.random() < 0.6
            turned = self.random.random() < 0.2
            starts.append(size - 1 if turned else 0 if whole else start)
            stops.append(-1 - size if turned else size if whole else stop)
            steps.append(-1 if turned else 1 if whole else self.random.choice([1, 1, 2]))
        return Slice(tuple(starts), tuple(stops), tuple(steps))(x)

    def split(self, x: Value) -> Value:
        """Cuts a value along an axis and joins the pieces, perhaps under views and elsewhere."""
        axes = [i for i, d in enumerate(x.tensor.static) if d > 1]
        if not axes:
            return Neg()(x)
        axis = self.random.choice(axes)
        size = x.tensor.static[axis]
        width = self.random.choice([d for d in range(1, size) if size % d == 0])
        pieces = [cut(x, i, i + width, axis=axis) for i in range(0, size, width)]
        if width == 1 and self.random.random() < 0.5:
            pieces = [Squeeze((axis,))(p) for p in pieces]
        order = tuple(self.random.sample(range(pieces[0].tensor.rank), pieces[0].tensor.rank))
        if self.random.random() < 0.4:
            pieces = [Transpose(order)(p) for p in pieces]
        at = self.random.randint(0, pieces[0].tensor.rank)
        if at == pieces[0].tensor.rank or self.random.random() < 0.5:
            pieces = [Unsqueeze((at,))(p) for p in pieces]
        if self.random.random() < 0.2:
            self.random.shuffle(pieces)
        return Concat(at)(*pieces)

    def unsqueeze(self, x: Value) -> Value:
        return Unsqueeze((self.random.randint(0, x.tensor.rank),))(x) if x.tensor.rank < 6 else x

    def broadcast(self, x: Value) -> Value:
        if x.tensor.rank > 5 or x.tensor.size > 200:
            return x
        grown = (3 if d == 1 and self.random.random() < 0.3 else d for d in x.tensor.static)
        return Broadcast((self.random.choice([1, 2]), *grown))(x)

    def work(self, x: Value) -> Value:
        kind = self.random.randint(0, 3)
        if kind == 0:
            return Neg()(x)
        if kind == 1:
            return silu(x)
        alike = [v for v in self.values if v.type == x.type]
        last = x.tensor.static[-1:] if kind == 2 else ()
        by = constant(np.arange(1, 1 + np.prod(last), dtype=np.float32).reshape(last))
        return Mul()(x, self.random.choice([*alike, by]))


def test_random_chains_keep_every_bit() -> None:
    seed = int(os.environ.get("MONOGRAPH_TEST_SEED", random.randrange(10**9)))
    print(f"MONOGRAPH_TEST_SEED={seed}")
    before_views = after_views = 0
    for case in range(CASES):
        before = Chains(seed + case).graph()
        after = run(before, CollapseViews())
        check_numbers(before, after, exact=True)
        assert run(after, CollapseViews()) == after, f"not settled at seed {seed + case}"
        before_views += count(before, *VIEWS)
        after_views += count(after, *VIEWS)
    assert after_views < before_views


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("width", [1, 4])
def test_towers_whose_outputs_are_joined(axis: int, width: int) -> None:
    x = value("f32[3, 16]")
    before = graph_of(Concat(axis)(*(tower(x, [8, 8, 4, width]) for _ in range(6))))
    after = run(before, BatchTowers(), CollapseViews())
    check_numbers(before, after, exact=False)
    assert count(after, "dot") == 4
    assert count(after, "slice", "concat", "squeeze", "unsqueeze") == 0
    # Side by side along the rows the batch is what is wanted, and only its shape differs.
    assert count(after, "transpose") == axis


def test_work_behind_the_joined_outputs_moves_to_the_towers() -> None:
    x = value("f32[3, 16]")
    before = graph_of(Sigmoid()(Concat(1)(*(tower(x, [8, 4]) for _ in range(3)))))
    after = run(before, BatchTowers(), CollapseViews())
    check_numbers(before, after, exact=False)
    last = next(v for v in after.values if v.op.name == "sigmoid" and v.tensor.shape == (3, 3, 4))
    assert last.inputs[0].op.name == "add"


def test_hoisted_results_that_are_unsqueezed_and_joined() -> None:
    x = value("f32[4, 6]")
    pieces = [Unsqueeze((0,))(silu(cut(x, 2 * i, 2 * i + 2, axis=1))) for i in range(3)]
    before = graph_of(Concat(0)(*pieces))
    after = run(before, HoistSlices(), CollapseViews())
    check_numbers(before, after, exact=True)
    expected = graph_of(Transpose((1, 0, 2))(Reshape((4, 3, 2))(silu(x))))
    assert after == expected, str(after)


def test_a_split_of_channels_joined_with_what_its_half_becomes() -> None:
    # The block that detection models repeat: the halves, and what a convolution makes of one.
    x = value("f32[1, 8, 5, 5]")
    halves = [cut(x, 0, 4, axis=1), cut(x, 4, 8, axis=1)]
    made = Conv((1, 1), (1, 1), (1, 1), (1, 1), 1)(halves[1], weight(4, 4, 3, 3))
    after = run(graph_of(Concat(1)(*halves, made)), CollapseViews())
    assert after == graph_of(Concat(1)(x, made))


def test_layers_between_reshapes_need_none() -> None:
    x = value("f32[2, 5, 16]")
    rows = Reshape((10, 16))(x)
    hidden = silu(Add()(Dot()(rows, weight(16, 8)), weight(8)))
    before = graph_of(Reshape((2, 5, 8))(hidden))
    after = run(before, CollapseViews())
    check_numbers(before, after, exact=False)
    assert count(after, *VIEWS) == 0


def test_rows_are_fused_with_the_work_behind_the_dot() -> None:
    x = value("f32[2, 5, 16]")
    layers = silu(Add()(Dot()(x, weight(16, 8)), weight(8)))
    before = graph_of(Add()(Dot()(layers, weight(8, 4)), weight(4)))
    after = run(before, FuseDotRows())
    check_numbers(before, after, exact=False)
    assert [v.tensor.rank for v in after.values if v.op.name == "dot"] == [2, 2]
    assert count(after, "reshape") == 2
