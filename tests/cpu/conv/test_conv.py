"""Convolutions of every form on the CPU target, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.codegen.llvm.conv import winograd
from monograph.codegen.llvm.module.features import TABLE
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Value, constant, parse_type
from monograph.ir.dtype import f16, f32
from monograph.ops.composite import Silu
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Abs, Add
from monograph.ops.shape import Concat, Slice
from monograph.program.lowering import lower
from tests.cpu.against import check
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

LAST = "channels_last"
rng = np.random.default_rng(0)


def weight(*shape: int, dtype: str = "f32") -> Value:
    data = rng.normal(size=shape) if dtype[0] in "fb" else rng.integers(-4, 5, shape)
    return constant(data.astype(parse_type(f"{dtype}[1]").dtype.numpy))


def window(rank: int, stride: int = 1, pad: int = 0, dilation: int = 1, **rest: object) -> Conv:
    return Conv((stride,) * rank, (pad,) * rank, (pad,) * rank, (dilation,) * rank, **rest)


@pytest.mark.parametrize("op", [Conv, ConvTranspose])
def test_samples(op: type[Conv]) -> None:
    for sample in op.samples:
        graph, feeds = sample_graph(op, sample)
        check(graph, feeds)


def test_sample_with_constant_weights() -> None:
    for op in (Conv, ConvTranspose):
        for sample in op.samples:
            x, w = (parse_type(str(t)) for t in sample.inputs)
            given = value(str(x))
            check(graph_of(op(**sample.attributes)(given, weight(*w.static, dtype=w.dtype.name))))


@pytest.mark.parametrize(
    ("shape", "out", "kernel", "stride", "pad", "dilation"),
    [
        ((1, 9, 11, 16), 32, (3, 3), 1, 1, 1),
        ((2, 8, 13, 3), 19, (3, 3), 2, 1, 1),
        ((1, 7, 7, 5), 1, (1, 1), 1, 0, 1),
        ((1, 10, 9, 33), 17, (5, 3), 1, 2, 1),
        ((1, 11, 12, 6), 40, (3, 3), 1, 2, 2),
        ((2, 17, 4), 20, (3,), 1, 1, 1),
        ((1, 5, 6, 7, 4), 18, (3, 3, 3), 1, 1, 1),
    ],
)
def test_direct(shape, out, kernel, stride, pad, dilation) -> None:
    x = value("f32[" + ", ".join(map(str, shape)) + "]")
    rank = len(kernel)
    moved = Abs()(x)
    y = window(rank, stride, pad, dilation, layout=LAST)(moved, weight(out, shape[-1], *kernel))
    check(graph_of(Silu()(Add()(y, weight(out)))))


@pytest.mark.parametrize("channels", [1, 8, 19, 32, 40])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), 1), ((3, 3), 2), ((5, 7), 1), ((3,), 2)])
def test_depthwise(channels: int, kernel: tuple[int, ...], stride: int) -> None:
    rank = len(kernel)
    sizes = ", ".join(["2", *["9", "15"][:rank], str(channels)])
    op = window(rank, stride, 1, 1, groups=channels, layout=LAST)
    y = op(Abs()(value(f"f32[{sizes}]")), weight(channels, 1, *kernel))
    check(graph_of(Abs()(Add()(y, weight(channels)))))


@pytest.mark.parametrize("layout", ["channels_first", LAST])
@pytest.mark.parametrize(("dtype", "out"), [("f16", None), ("bf16", None), ("f64", None)])
@pytest.mark.parametrize("groups", [1, 2, 12])
def test_types_and_groups(layout: str, dtype: str, out: object, groups: int) -> None:
    shape = [2, 12, 7, 6] if layout != LAST else [2, 7, 6, 12]
    x = value(f"{dtype}{shape}")
    op = Conv((2, 1), (1, 0), (0, 2), (1, 2), groups=groups, layout=layout)
    check(graph_of(op(x, weight(24, 12 // groups, 3, 2, dtype=dtype))))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_converted_before_a_convolution(dtype: str) -> None:
    """A chain of them has no step besides: each step converts its own result."""
    x, kernel = value(f"{dtype}[1, 7, 6, 24]"), weight(24, 24, 3, 3, dtype=dtype)
    op = window(2, 1, 1, layout=LAST)
    graph = graph_of(op(Abs()(op(Abs()(x), kernel)), kernel))
    check(graph, steps=3)
    steps = lower(graph, CpuTarget()).program.steps
    assert [s.region.anchor.inputs[0].dtype for s in steps if s.region.anchor] == [f32, f32]


def test_halves_that_meet_few_weights_stay_halves() -> None:
    """Depthwise convolutions, and weights that are packed in a run."""
    x, op = Abs()(value("f16[1, 7, 6, 24]")), window(2, 1, 1, layout=LAST)
    apart = replace(op, groups=24)
    for y in (apart(x, weight(24, 1, 3, 3, dtype="f16")), op(x, value("f16[24, 24, 3, 3]", "w"))):
        check(graph_of(y), steps=2)
        anchor = lower(graph_of(y), CpuTarget()).program.steps[1].region.anchor
        assert anchor is not None
        assert anchor.inputs[0].dtype == f16


@pytest.mark.parametrize("layout", ["channels_first", LAST])
def test_integers_wrap_in_their_result(layout: str) -> None:
    shape = [1, 6, 5, 7] if layout != LAST else [1, 5, 7, 6]
    for x, w, out in (("u8", "i8", "i32"), ("i8", "i8", None), ("i32", "i32", None)):
        dtype = parse_type(f"{out}[1]").dtype if out else None
        op = replace(window(2, 1, 1), out=dtype, layout=layout)
        check(graph_of(op(value(f"{x}{shape}"), weight(20, 6, 3, 3, dtype=w))))


@pytest.mark.parametrize("layout", ["channels_first", LAST])
@pytest.mark.parametrize("groups", [1, 3])
def test_transposed(layout: str, groups: int) -> None:
    shape = [2, 6, 4, 5] if layout != LAST else [2, 4, 5, 6]
    for strides, dilations in (((2, 2), (1, 1)), ((3, 2), (2, 1)), ((2, 4), (4, 2))):
        op = ConvTranspose(strides, (1, 0), (0, 1), dilations, (0, 1), groups, layout=layout)
        check(graph_of(Abs()(op(value(f"f32{shape}"), weight(6, 18, 4, 2)))))


@pytest.mark.parametrize("results", [1, 5, 16])
def test_transposed_without_overlap(results: int) -> None:
    """Windows that do not meet: a 1x1 convolution, and a view that takes its results apart."""
    op = ConvTranspose((2, 3), (0, 0), (0, 0), (1, 1), (0, 0), layout=LAST)
    y = op(value("f32[2, 4, 5, 6]"), weight(6, results, 2, 3))
    check(graph_of(Silu()(Add()(y, weight(results)))), steps=2)
    line = ConvTranspose((4,), (0,), (0,), (1,), (0,), layout=LAST)
    check(graph_of(line(value("f16[1, 7, 3]"), weight(3, results, 4, dtype="f16"))))


def test_channel_slices_are_read_in_place() -> None:
    """A split costs nothing: the convolutions read their channels where they are."""
    x = value("f32[1, 12, 12, 16]")
    whole = Abs()(window(2, 1, 1, layout=LAST)(Abs()(x), weight(64, 16, 3, 3)))
    parts = [Slice((0, 0, 0, c), (1, 12, 12, c + 32), (1, 1, 1, 1))(whole) for c in (0, 32)]
    y = Abs()(window(2, 1, 1, layout=LAST)(parts[1], weight(32, 32, 3, 3)))
    joined = Concat(3)(whole, y)
    check(graph_of(window(2, layout=LAST)(joined, weight(16, 96, 1, 1))), steps=4)


def test_padding_of_an_output_of_the_graph() -> None:
    x = value("f32[1, 8, 8, 16]")
    first = Abs()(window(2, 1, 1, layout=LAST)(x, weight(16, 16, 3, 3)))
    second = window(2, 1, 1, layout=LAST)(first, weight(16, 16, 3, 3))
    check(graph_of(first, second))


def test_padding_beside_other_rows() -> None:
    """A part of a spatial join has neighbours where its halo would be."""
    x = value("f32[1, 8, 8, 16]")
    first = Abs()(window(2, 1, 1, layout=LAST)(x, weight(16, 16, 3, 3)))
    second = window(2, 1, 1, layout=LAST)(first, weight(16, 16, 3, 3))
    check(graph_of(Concat(1)(first, second)))


@pytest.mark.parametrize(
    ("shape", "out", "pads"),
    [
        ((1, 8, 8, 16), 16, (1, 1, 1, 1)),
        ((2, 9, 14, 19), 21, (1, 1, 1, 1)),
        ((1, 5, 3, 4), 70, (0, 1, 1, 0)),
        ((1, 20, 20, 32), 48, (0, 0, 0, 0)),
        ((3, 4, 6, 3), 5, (2, 2, 2, 2)),
    ],
)
def test_winograd(shape, out, pads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails of tiles and of channels, any padding, an epilogue with a residual."""
    monkeypatch.setattr(winograd, "pays", lambda *_: True)
    x = Abs()(value("f32[" + ", ".join(map(str, shape)) + "]"))
    op = Conv((1, 1), pads[:2], pads[2:], (1, 1), layout=LAST)
    y = Silu()(Add()(op(x, weight(out, shape[-1], 3, 3)), weight(out)))
    again = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=LAST)(y, weight(out, out, 3, 3))
    check(graph_of(Add()(again, y)))


def test_winograd_where_it_pays() -> None:
    """By an estimate for AVX-512, whatever this host has."""
    features = TABLE["avx512"]
    assert features.vector_bits == 512
    for (size, channels, out), expected in {
        (80, 64, 64): True,
        (40, 64, 64): True,
        (7, 512, 512): False,
        (320, 3, 16): False,
    }.items():
        x = value(f"f32[1, {size}, {size}, {channels}]")
        y = window(2, 1, 1, layout=LAST)(x, weight(out, channels, 3, 3))
        assert winograd.pays(y, features, 2) == expected
