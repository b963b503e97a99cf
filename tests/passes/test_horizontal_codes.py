"""Towers of layers with weights of few bits: batched, stacked, and apart where they differ."""

from __future__ import annotations

import pytest

from monograph.ir import Value
from monograph.ops.linear import Dot
from tests.cpu.against import check as check_cpu
from tests.passes.towers import (
    FORMS,
    coded,
    coded_tower,
    count,
    fuse,
    kernels,
    silu,
)
from tests.rules.checks import graph_of, value


@pytest.mark.parametrize("codes", ["i8", "u8", "u4", "i4"])
@pytest.mark.parametrize("form", FORMS)
def test_towers_of_codes_are_batched(codes: str, form: str) -> None:
    x = value("f32[2, 16]")
    before = graph_of(*(coded_tower(x, [8, 8, 8], codes, form) for _ in range(4)))
    after, _ = fuse(before)
    assert count(before, "dot") == [12]
    assert count(after, "dot", "dequantize", "sigmoid") == [3, 3, 3]
    # One kernel per layer, and a copy for each output.
    assert kernels(before) == 3 + 4


@pytest.mark.parametrize("codes", ["i8", "u4"])
@pytest.mark.parametrize("form", FORMS)
def test_stacked_codes_run_on_the_cpu(codes: str, form: str) -> None:
    x = value("f32[2, 16]")
    check_cpu(fuse(graph_of(*(coded_tower(x, [8, 5], codes, form) for _ in range(3))))[0])


@pytest.mark.parametrize(
    ("shape", "width"), [("[1, 12]", 40), ("[5, 12]", 1), ("[2, 3, 12]", 5), ("[40, 12]", 32)]
)
def test_stacked_codes_of_odd_sizes(shape: str, width: int) -> None:
    x = value(f"f32{shape}")
    before = graph_of(*(coded_tower(x, [width, width], "u4", "blocks") for _ in range(3)))
    after, _ = fuse(before)
    assert count(after, "dot") == [2]
    check_cpu(after)


def test_stacked_codes_multiply_integers_where_the_file_permits() -> None:
    x = value("f32[2, 64]")
    op = Dot(None, 8)

    def made(v: Value) -> Value:
        return silu(op(v, coded(64, 64, "u4", "transposed blocks", 32)))

    before = graph_of(*(made(made(x)) for _ in range(3)))
    after, _ = fuse(before)
    assert count(after, "dot") == [2]
    check_cpu(after)


def test_codes_of_other_types_stay_apart() -> None:
    x = value("f32[2, 16]")
    towers = [coded_tower(x, [8, 8], c, f) for c, f in (("u4", "blocks"), ("u8", "blocks"))]
    towers.append(coded_tower(x, [8, 8], "u4", "columns"))
    after, _ = fuse(graph_of(*towers))
    assert count(after, "dot") == [6]
