"""Chains of views of open sizes: collapsed once, they are right at all sizes that guards allow."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from monograph.ir import Graph, Input, TensorType, evaluate, verify
from monograph.ir import size_expressions as ex
from monograph.ir.dtype import f32
from monograph.ir.sizes import Size, SizeScope
from monograph.ops.elementwise import Neg
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.passes.base import Environment, run_pass
from monograph.passes.rule_passes import CollapseViews
from monograph.program.dynamic.resize import resized_graph
from tests.rules.checks import graph_of

SIZES = (1, 2, 3, 5, 8, 9, 17)


class Chain:
    """A random chain of views. Each dimension is a list of factors, so that it can be split."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.scope = scope = SizeScope(least=1)
        n, m = (scope.symbol(name, draw.choice((2, 3, 6))) for name in "nm")
        # Some of them are 1 in the compiling run, and more in others.
        sizes = [n, m, n - 1, (m + 7) // 8, n // 2, 1, 1, 3, 4]
        self.dims = [[draw.choice(sizes)] for _ in range(draw.randint(2, 5))]
        self.value = Input("x", TensorType(f32, self.shape))()
        for _ in range(draw.randint(2, 6)):
            step = draw.choice([self.transpose, self.join, self.split, self.ones, self.work])
            step()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(factors) for factors in self.dims)

    def transpose(self) -> None:
        order = self.random.sample(range(len(self.dims)), len(self.dims))
        self.dims = [self.dims[i] for i in order]
        self.value = Transpose(tuple(order))(self.value)

    def join(self) -> None:
        if len(self.dims) > 1:
            at = self.random.randrange(len(self.dims) - 1)
            self.dims[at : at + 2] = [self.dims[at] + self.dims[at + 1]]
        self.value = Reshape(self.shape)(self.value)

    def split(self) -> None:
        self.dims = [[f] for factors in self.dims for f in factors]
        self.value = Reshape(self.shape)(self.value)

    def ones(self) -> None:
        self.dims = [d for d in self.dims if d != [1] or self.random.random() < 0.5]
        self.dims.insert(self.random.randint(0, len(self.dims)), [1])
        self.value = Reshape(self.shape)(self.value)

    def work(self) -> None:
        """Add a user between views, or take half of a dimension of 4."""
        halved = [i for i, d in enumerate(self.dims) if d == [4]]
        if not halved:
            self.value = Neg()(self.value)
            return
        at = self.random.choice(halved)
        stops = tuple(2 if i == at else s for i, s in enumerate(self.shape))
        self.dims[at] = [2]
        self.value = Slice((0,) * len(stops), stops, (1,) * len(stops))(self.value)

    def at(self, graph: Graph, values: dict[ex.Symbol, int]) -> Graph:
        """Return a graph at some values of the symbols."""

        def number(size: int) -> int:
            assert type(size) is Size
            return ex.evaluate(size.expression, values)

        return resized_graph(graph, number)


@pytest.mark.parametrize("seed", range(200))
def test_collapsed_chains_are_right_at_all_sizes(seed: int) -> None:
    chain = Chain(seed)
    before = graph_of(chain.value)
    after = verify(run_pass(CollapseViews(), before, Environment()))
    tried = 0
    for n in SIZES:
        for m in SIZES:
            values = dict(zip(chain.scope.hints, (n, m), strict=True))
            if not chain.scope.holds(values):
                continue
            small, expected = chain.at(after, values), chain.at(before, values)
            x = np.arange(math.prod(expected.inputs[0].tensor.static), dtype=np.float32)
            feeds = {"x": x.reshape(expected.inputs[0].tensor.static)}
            for a, b in zip(evaluate(small, feeds), evaluate(expected, feeds), strict=True):
                np.testing.assert_array_equal(a, b)
            tried += 1
    assert tried
    assert chain.scope.holds(chain.scope.hints)
