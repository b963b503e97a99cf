"""Winograd's convolution at open sizes: one code for images of any size, finite or not."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import pytest

from monograph.codegen.llvm.conv import winograd
from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.kernel import KERNELS
from monograph.ir import Graph, Value, constant
from monograph.ir.sizes import SizeScope, is_open
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Abs, Add, Tanh
from monograph.runtime.cpu.any_shape import compile_any_shape
from monograph.runtime.shape_code import ShapeCode
from tests.cpu.any_shape_cases import Opened, open_graph, opened
from tests.rules.checks import graph_of, value

CHANNELS = 37
"""Neither whole vectors nor whole panels on any machine."""
SIZES = [(2, 33, 30), (2, 4, 4), (3, 5, 6), (2, 4, 70), (7, 9, 8), (2, 64, 63), (300, 4, 4)]


def network(pad: int) -> tuple[Graph, list[Value]]:
    """Two dense 3x3 convolutions, the second with a residual and an activation behind it."""
    draw = np.random.default_rng(pad)
    weights = constant(draw.normal(size=(CHANNELS, CHANNELS, 3, 3)).astype(np.float32))
    x = value(f"f32[2, 33, 30, {CHANNELS}]")
    ones = (1, 1)
    first = Conv(ones, (pad, pad), (pad, pad), ones, layout="channels_last")(Abs()(x), weights)
    second = Conv(ones, ones, ones, ones, layout="channels_last")(first, weights)
    return graph_of(Tanh()(Add()(first, second))), [first, second]


def compiled(graph: Graph, scope: SizeScope, threads: int, fast: bool = True) -> ShapeCode:
    KERNELS.load()
    return compile_any_shape(graph, scope, host_features(), threads, winograd=fast, checked=True)


@lru_cache
def code(pad: int, threads: int, fast: bool = True) -> Opened:
    graph, _ = network(pad)
    made = partial(compiled, threads=threads, fast=fast)
    found = open_graph(graph, lambda _, i: i < 3, made)
    assert found is not None
    return found


def image(n: int, h: int, w: int) -> np.ndarray:
    drawn = np.random.default_rng(n * h + w).normal(size=(n, h, w, CHANNELS))
    return drawn.astype(np.float32)


def problem(found: Opened, x: np.ndarray) -> str | None:
    (name,) = found.graph.input_names
    assert found.code.bind({name: x.shape}) is not None, "the guards hold"
    return found.problem({name: x})


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_one_code_is_right_at_every_size(pad: int, threads: int) -> None:
    for size in SIZES:
        assert problem(code(pad, threads), image(*size)) is None, size


def test_open_sizes_do_not_rule_winograd_out() -> None:
    graph, convs = network(1)
    assert all(winograd.serves(v) for v in convs)
    (name,) = graph.input_names
    x = image(2, 33, 30)
    made = []
    for fast in (False, True):
        found = code(1, 1, fast)
        values = found.code.bind({name: x.shape})
        assert values is not None
        made += found.code.executable(values).run({name: x})
    assert not np.array_equal(*made), "sums in another order have other bits"


@pytest.mark.parametrize("size", SIZES)
def test_an_infinity_stays_in_the_windows_that_read_it(size: tuple[int, int, int]) -> None:
    """A tile whose products are not finite is computed again, at the distances of the run."""
    x = image(*size)
    x[0, 1, 1, 3], x[-1, -1, -1, -1] = np.inf, np.nan
    assert problem(code(1, 2), x) is None


def test_the_room_for_transforms_has_one_size() -> None:
    """An open number of tiles is divided into chunks that the cache of a core holds."""
    graph, _ = network(1)
    made = opened(graph, SizeScope(), lambda _, i: i < 3)
    for conv in (v for v in made.values if isinstance(v.op, Conv)):
        plan = winograd.make_plan(conv, host_features(), 2)
        assert is_open(plan.total)
        assert not is_open(plan.chunk)
        assert 4 * winograd.PLANES * 2 * CHANNELS * plan.chunk <= winograd.CHUNK_BYTES
