"""Towers on the GPU: stacks of coded weights, blended epilogues, stacked norms and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monograph.ir import Array, Graph
from monograph.ops.composite import Softmax
from monograph.ops.elementwise import Abs, Exp
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.passes.base import Environment
from monograph.pipeline import optimise
from monograph.rewrite import GPU_COST
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.cpu.against import feeds_for
from tests.gpu.against import candidate_names, check, device
from tests.passes.test_horizontal import EPILOGUES
from tests.passes.towers import (
    FORMS,
    coded,
    coded_tower,
    count,
    cut,
    fuse,
    layer,
    norm,
    root_norm,
    siamese,
    silu,
    tower,
    weight,
)
from tests.rules.checks import graph_of, value


def optimised(graph: Graph) -> Graph:
    return optimise(graph, environment=Environment(GPU_COST))


def results(graph: Graph) -> list[Array]:
    compiled = compile_for_gpu(graph, device().arch, lambda step, found: found[0])
    return list(GpuExecutable(compiled, device()).run(feeds_for(graph)))


@pytest.mark.parametrize("codes", ["u4", "i4", "i8", "u8"])
@pytest.mark.parametrize("form", FORMS)
def test_towers_of_codes(codes: str, form: str) -> None:
    xs = [Abs()(value("f32[2, 32]", f"x{i}")) for i in range(3)]
    before = graph_of(*(Dot()(x, coded(32, 24, codes, form, 16)) for x in xs))
    after, _ = fuse(before, cost=GPU_COST)
    assert count(after, "dot") == [1]
    # The product decodes whole words, and gives the bits of separate products.
    assert any(found[0].startswith("coded rows") for found in candidate_names(after))
    for one, other in zip(results(before), results(after), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", ["[1, 24]", "[3, 2, 24]", "[20, 24]"])
def test_stacked_codes_of_odd_sizes(shape: str) -> None:
    x = value(f"f32{shape}")
    before = graph_of(*(coded_tower(x, [5, 16], "u4", "transposed blocks", 16) for _ in range(2)))
    check(fuse(before, cost=GPU_COST)[0])


@pytest.mark.parametrize("between", [norm, root_norm, Softmax(-1)], ids=["layer", "rms", "softmax"])
def test_normalised_towers(between) -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(tower(x, [8, 8, 4], between, silu) for _ in range(3)))
    check(optimised(before), every=False)


@pytest.mark.parametrize("widths", [(8, 8, 8, 8), (8, 4, 6, 2)])
def test_blended_epilogues(widths: Sequence[int]) -> None:
    x = value("f32[3, 16]")
    before = graph_of(*(f(layer(x, n)) for f, n in zip(EPILOGUES, widths, strict=False)))
    check(optimised(before), every=False)


def test_reductions_of_slices() -> None:
    x = value("f32[2, 12]")
    before = graph_of(*(Exp()(ReduceSum((-1,))(cut(x, i, i + 4))) for i in (0, 4, 8)))
    check(optimised(before), every=False)


def test_siamese_convolutions() -> None:
    weights, top = [weight(8, 3, 3, 3), weight(8, 8, 3, 3)], weight(8, 4)
    xs = [value("f32[1, 3, 5, 5]", f"x{i}") for i in range(3)]
    check(optimised(graph_of(*(siamese(x, weights, top) for x in xs))), every=False)
