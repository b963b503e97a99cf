"""Partition and reads of direct convolutions: lines along any axis, edges of inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import monograph
from monograph.codegen.llvm.conv import direct_variants
from monograph.codegen.llvm.conv.general import pixel_blocks
from monograph.codegen.llvm.conv.tiling import ConvTiling, make_plan
from monograph.codegen.llvm.image.windows import correlated, transposed
from monograph.codegen.llvm.matmul.tiles import RegisterTile
from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Value, constant, parse_type
from monograph.ops.composite import Silu
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Abs, Add
from monograph.ops.shape import Transpose
from monograph.program.lowering import lower
from tests.cpu.against import check
from tests.frontend.nodes import node_model
from tests.rules.checks import graph_of, value

LAST = "channels_last"
rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant(rng.normal(size=shape).astype(np.float32))


def test_tiles_run_along_the_axis_that_has_the_pixels() -> None:
    for shape, kernel, axis in (
        ((2, 508, 1, 256), (5, 1), 0),
        ((2, 1, 508, 256), (1, 5), 1),
        ((1, 40, 40, 64), (3, 3), 1),
        ((1, 120, 160, 32), (1, 1), 1),  # 120 fits tiles better, but pixels would lie far apart
        ((1, 9, 120, 1, 16), (1, 3, 1), 1),
    ):
        rank = len(kernel)
        op = Conv((1,) * rank, (0,) * rank, (0,) * rank, (1,) * rank, layout=LAST)
        y = op(value(f"f32{list(shape)}"), weight(512, shape[-1], *kernel))
        assert make_plan(y, host_features()).axis == axis


def test_turning_and_back() -> None:
    for axis in range(3):
        plan = ConvTiling(axis, RegisterTile(1, 1), 0.0)
        assert plan.turned("abc")[-1] == "abc"[axis]
        assert "".join(plan.turned_back(plan.turned("abc"))) == "abc"


@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [
        ((1, 40, 1, 6), (5, 1), (1, 1)),
        ((1, 33, 2, 8), (3, 2), (2, 1)),
        ((3, 5, 30, 1, 4), (2, 3, 1), (1, 2, 1)),
    ],
)
def test_tall_images(shape, kernel, stride) -> None:
    """Few lines, so that the threads share panels of channels and parts of lines."""
    rank = len(kernel)
    pads = tuple(k // 2 for k in kernel)
    op = Conv(stride, pads, pads, (1,) * rank, layout=LAST)
    y = op(Abs()(value(f"f32{list(shape)}")), weight(70, shape[-1], *kernel))
    check(graph_of(Silu()(Add()(y, weight(70)))))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation"),
    [
        ((1, 300, 1), (40,), (7,), (1,)),  # two pieces and a rest
        ((2, 400, 1), (64,), (80,), (2,)),  # pieces only, further apart than the window is long
        ((1, 150, 3), (33,), (1,), (1,)),
        ((1, 90, 1, 2), (35, 1), (2, 1), (1, 1)),
        ((1, 6, 60, 2), (3, 41), (1, 2), (1, 1)),
    ],
)
def test_long_windows(shape, kernel, stride, dilation) -> None:
    rank = len(kernel)
    op = Conv(stride, (0,) * rank, (0,) * rank, dilation, layout=LAST)
    check(graph_of(op(Abs()(value(f"f32{list(shape)}")), weight(37, shape[-1], *kernel))))
    pads = tuple(k // 2 for k in kernel)
    padded = Conv(stride, pads, pads, dilation, layout=LAST)
    check(graph_of(padded(value(f"f32{list(shape)}"), weight(37, shape[-1], *kernel))))


def test_code_of_a_long_window_does_not_grow_with_its_taps() -> None:
    def lines(taps: int) -> int:
        op = Conv((160,), (0,), (0,), (1,), layout=LAST)
        graph = graph_of(op(value("f32[1, 9000, 1]"), weight(100, 1, taps)))
        program = lower(graph, CpuTarget()).whole
        texts = compile_program(program, host_features(), 2).texts
        return "".join(texts).count("\n")

    assert lines(512) <= lines(64) + 10


def test_few_lines_and_many_weights() -> None:
    x = Abs()(value("f32[1, 3, 5, 96]"))
    y = Conv((1, 1), (0, 0), (0, 0), (1, 1), layout=LAST)(x, weight(200, 96, 3, 3))
    check(graph_of(Add()(y, weight(200))))


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "begin", "end", "dilations"),
    [
        ((2, 20, 60, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
        ((1, 20, 61, 3), (7, 7), (2, 2), (3, 3), (3, 3), (1, 1)),
        ((1, 9, 8, 2), (5, 4), (1, 3), (4, 0), (0, 5), (2, 1)),
        ((1, 2, 3, 1), (3, 3), (2, 2), (7, 6), (5, 9), (3, 2)),
        ((2, 90, 4), (5,), (1,), (2,), (2,), (1,)),
        ((1, 5, 6, 7, 2), (3, 2, 3), (1, 1, 2), (1, 1, 1), (1, 0, 1), (1, 2, 1)),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_inputs_are_read_up_to_their_edges(
    shape, kernel, strides, begin, end, dilations, first: bool
) -> None:
    """Whatever the order of their dimensions, inputs are not copied to have zeros around them."""
    rank = len(kernel)
    x = value(f"f32{list(shape)}")
    if first:
        x = value(f"f32{[shape[0], shape[-1], *shape[1:-1]]}")
        x = Transpose((0, *range(2, rank + 2), 1))(x)
    y = Conv(strides, begin, end, dilations, layout=LAST)(x, weight(37, shape[-1], *kernel))
    assert direct_variants.serves_edges(y)
    check(graph_of(Silu()(Add()(y, weight(37)))), steps=1)


def test_many_channels_are_copied_first() -> None:
    x = Transpose((0, 2, 3, 1))(value("f32[1, 32, 9, 9]"))
    y = Conv((2, 2), (1, 1), (1, 1), (1, 1), layout=LAST)(x, weight(16, 32, 3, 3))
    assert not direct_variants.serves_edges(y)
    check(graph_of(y), steps=2)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("channels", "out", "groups", "kernel"),
    [
        (12, 24, 1, (3, 3)),
        (12, 40, 2, (3, 3)),
        (24, 48, 8, (1, 1)),
        (8, 8, 8, (3, 2)),
        (6, 150, 3, (2, 3)),
    ],
)
def test_groups_and_narrow_floats(
    dtype: str, channels: int, out: int, groups: int, kernel: tuple[int, int]
) -> None:
    """The kernels of constant weights serve them all, and copy nothing but the padded input."""
    x = Abs()(value(f"{dtype}[2, 7, 9, {channels}]"))
    weights = rng.normal(size=(out, channels // groups, *kernel))
    w = constant(weights.astype(parse_type(f"{dtype}[1]").dtype.numpy))
    y = Conv((1, 2), (1, 0), (0, 1), (1, 1), groups=groups, layout=LAST)(x, w)
    check(graph_of(Abs()(y)), steps=2)


def test_infinities_stay_in_their_group() -> None:
    w = weight(8, 2, 1, 1)
    y = Conv((1, 1), (0, 0), (0, 0), (1, 1), groups=4, layout=LAST)(value("f32[1, 3, 3, 8]"), w)
    data = np.ones((1, 3, 3, 8), np.float32)
    data[0, 1, 1, 2] = np.inf
    check(graph_of(y), {"x": data})


@pytest.mark.parametrize("sizes", [(3, 1, 0), (2, 3, 0, 5), (2, 3, 5, 0), (1, 4, 0, 0), (0, 2, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_an_image_without_pixels_has_no_results(sizes: tuple[int, ...], groups: int) -> None:
    """Tiles of nothing are no tiles; with padding, what is left is zeros."""
    channels, spatial = sizes[1] * groups, len(sizes) - 2
    x = np.zeros((sizes[0], channels, *sizes[2:]), np.float32)
    w = np.ones((2 * groups, sizes[1], *(1,) * spatial), np.float32)
    for pads in ([0] * 2 * spatial, [1] * 2 * spatial):
        model = node_model("Conv", [x, w], constant=[1], group=groups, pads=pads)
        (given,) = monograph.load(model, "cpu", cache_dir="").run({"x0": x})
        (expected,) = monograph.load(model, "reference").run({"x0": x})
        np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("shape", [(1, 4, 0), (0, 4, 3), (2, 4, 0, 5)])
@pytest.mark.parametrize("per_group", [1, 2])
def test_a_depthwise_convolution_of_nothing_compiles(
    shape: tuple[int, ...], per_group: int
) -> None:
    x = np.zeros(shape, np.float32)
    w = np.ones((4 * per_group, 1, *(1,) * (len(shape) - 2)), np.float32)
    model = node_model("Conv", [x, w], constant=[1], group=4)
    (given,) = monograph.load(model, "cpu", cache_dir="").run({"x0": x})
    assert given.shape == (shape[0], 4 * per_group, *shape[2:])


def given_weights(x: str, w: str, op: Conv | ConvTranspose, steps: int | None = None) -> None:
    """Weights as an input, as a result of another step, and as a view."""
    image, shape = Abs()(value(x)), [int(d) for d in w.split("[")[1][:-1].split(",")]
    turned = [*shape[:2], *reversed(shape[2:])]
    back = Transpose((0, 1, *reversed(range(2, len(shape)))))
    kind = w.split("[")[0]
    check(graph_of(op(image, value(w, "w"))), steps=steps)
    check(graph_of(op(image, Abs()(value(w, "w")))))
    check(graph_of(op(image, back(value(f"{kind}{turned}", "w")))))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i32"])
@pytest.mark.parametrize(
    ("channels", "out", "groups", "kernel"),
    [
        (5, 37, 1, (3, 3)),
        (16, 1, 1, (1, 1)),
        (12, 40, 2, (3, 2)),
        (24, 48, 8, (1, 1)),
        (21, 21, 21, (3, 3)),
        (3, 6, 3, (2, 5)),
    ],
)
def test_weights_that_are_data(
    dtype: str, channels: int, out: int, groups: int, kernel: tuple[int, int]
) -> None:
    """They are packed at the start of a run, for the kernels of constant weights."""
    op = Conv((1, 2), (1, 0), (0, 1), (1, 1), groups=groups, layout=LAST)
    w = f"{dtype}[{out}, {channels // groups}, {kernel[0]}, {kernel[1]}]"
    given_weights(f"{dtype}[2, 7, 9, {channels}]", w, op, steps=2)


@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        ("f32[1, 40, 6]", "f32[70, 6, 5]", 1),
        ("f32[1, 4, 5, 6, 3]", "f32[20, 3, 2, 1, 3]", 1),
        ("f32[1, 1, 1, 1]", "f32[1, 1, 1, 1]", 1),
        ("f32[1, 3, 5, 0]", "f32[4, 0, 3, 3]", 1),
        ("f32[1, 3, 0, 4]", "f32[4, 2, 1, 1]", 2),
    ],
)
def test_weights_that_are_data_of_other_ranks_and_sizes(x: str, w: str, groups: int) -> None:
    rank = w.count(",") - 1
    ones = (1,) * rank
    given_weights(x, w, Conv(ones, ones, ones, ones, groups=groups, layout=LAST))


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize(("groups", "dilation"), [(1, 1), (3, 1), (1, 2)])
def test_transposed_convolutions_by_weights_that_are_data(
    dtype: str, groups: int, dilation: int
) -> None:
    op = ConvTranspose((2, 1), (1, 0), (0, 1), (dilation,) * 2, (0, 0), groups=groups, layout=LAST)
    given_weights(f"{dtype}[2, 5, 4, 6]", f"{dtype}[6, 7, 3, 2]", op)


@pytest.mark.parametrize("channels", [1, 3, 7, 9, 64])
@pytest.mark.parametrize("results", [3, 16, 37])
def test_sums_of_several_channels_side_by_side(channels: int, results: int) -> None:
    op = ConvTranspose((2, 2), (1, 1), (1, 1), (1, 1), (0, 0), layout=LAST)
    graph = graph_of(
        op(value(f"f32[1, 5, 6, {channels}]"), value(f"f32[{channels}, {results}, 4, 4]", "w"))
    )
    check(graph)


@pytest.mark.parametrize("form", [transposed, correlated])
def test_blocks_of_pixels_read_the_same_taps(form: object) -> None:
    found = 0
    ranges = (range(5, 20, 4), range(1, 5), range(1, 4), range(1, 3), range(3))
    for size, kernel, stride, dilation, pad in itertools.product(*ranges):
        reach = (kernel - 1) * dilation + 1
        larger = (size - 1) * stride + reach - 2 * pad
        smaller = (size + 2 * pad - reach) // stride + 1
        outputs = larger if form is transposed else smaller
        if outputs < 1:
            continue
        span = form(outputs, size, kernel, stride, dilation, pad)
        made = pixel_blocks(span, stride if form is transposed else 1, 3)
        if made is None:
            continue
        blocks = made.starts[:, None] + made.apart * np.arange(3)
        every = np.concatenate([blocks.ravel(), made.single])
        assert sorted(every) == list(range(outputs))
        for block in blocks:
            assert np.ptp(span.first[block]) == np.ptp(span.count[block]) == 0
            assert list(np.diff(span.place[block])) == [made.step] * 2
        found += len(blocks)
    assert found > 100


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (3, 2, 1)])
def test_rows_of_pixels(dtype: str, stride: int, dilation: int, groups: int) -> None:
    """Long rows have blocks of pixels, and pixels at the edges that are left."""
    strides, pads = (1, stride), (1, 2)
    spread = ConvTranspose(strides, pads, pads, (1, dilation), (0, 0), groups=groups, layout=LAST)
    x, w = value(f"{dtype}[1, 3, 41, 6]"), value(f"{dtype}[6, 18, 3, 4]", "w")
    check(graph_of(spread(x, w)))
    gathered = Conv(strides, pads, pads, (1, dilation), groups=groups, layout="channels_first")
    x, w = value(f"{dtype}[1, 6, 3, 41]"), value(f"{dtype}[18, {6 // groups}, 3, 4]", "w")
    check(graph_of(gathered(x, w)))


def test_infinite_weights_that_are_data_multiply_padding() -> None:
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout=LAST)
    x = np.ones((1, 3, 4, 2), np.float32)
    w = rng.normal(size=(5, 2, 3, 3)).astype(np.float32)
    w[1, 0, 0, 0], w[2, 1, 2, 2], w[3] = np.inf, np.nan, 0
    graph = graph_of(op(value("f32[1, 3, 4, 2]"), value("f32[5, 2, 3, 3]", "w")))
    check(graph, {"x": x, "w": w})
