"""Kernels that move elements by index: gathers, padding, tiles, counting, blocks."""

from __future__ import annotations

import itertools
import math
import mmap

import numpy as np
import pytest

from monograph.errors import ExecutionError
from monograph.ir import Value, constant
from monograph.ops.elementwise import Add, Exp
from monograph.ops.index import Gather, GatherElements, GatherNd
from monograph.ops.pad_tile import PAD_MODES, Iota, Pad, Tile
from monograph.ops.scatter import Col2Im, ScatterElements, ScatterNd
from monograph.ops.shape import Reshape, Slice, Transpose
from monograph.ops.signal import Frames
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.indexing.moving import FEATURES, THREADS, check, check_samples, host
from tests.rules.checks import graph_of, value

OPS = (
    *(Gather, GatherElements, GatherNd, ScatterElements, ScatterNd),
    *(Tile, Pad, Iota, Frames, Col2Im),
)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    for op in OPS:
        check_samples(op, features, threads)


def indices(text: str, size: int) -> tuple[Value, np.ndarray]:
    made = value(text, "i")
    rng = np.random.default_rng(len(text))
    return made, rng.integers(-size, size, made.tensor.static).astype(made.dtype.numpy)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "u8", "bool", "i64", "f64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_of_odd_shapes(kind: str, axis: int) -> None:
    size = (5, 7, 37)[axis]
    i, data = indices("i64[3, 6]", size)
    y = Gather(axis)(value(f"{kind}[5, 7, 37]"), i)
    for threads in THREADS:
        check(graph_of(y), {"i": data}, threads=threads)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
def test_an_embedding_with_what_follows_is_one_kernel(features) -> None:
    table = constant(np.random.default_rng(1).normal(size=(50, 24)).astype(np.float32))
    i, data = indices("i32[2, 9]", 50)
    y = Add()(Exp()(Gather(0)(table, i)), value("f32[9, 24]"))
    executable = check(graph_of(y), {"i": data}, features=features, threads=2)
    assert len(executable.program.steps) == 1


def test_gathers_of_elements_and_coordinates() -> None:
    x = value("f32[4, 5, 33]")
    i, data = indices("i32[3, 5, 21]", 33)
    check(graph_of(GatherElements(2)(x, i)), {"i": data})
    i, data = indices("i64[3, 9, 33]", 5)
    check(graph_of(GatherElements(1)(x, i)), {"i": data})
    for text in ("i64[6, 2]", "i64[1, 2]", "i64[1, 3]", "i64[1, 2, 3]"):  # more, or fewer points
        i, data = indices(text, 4)
        check(graph_of(GatherNd()(x, i)), {"i": data})
    i, data = indices("i64[4, 3, 2]", 5)
    check(graph_of(Exp()(GatherNd(1)(x, i))), {"i": data})
    check(graph_of(GatherNd(1)(Transpose((0, 2, 1))(x), i)), {"i": data})


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_vectors_of_indices_of_which_few_are_negative(features, kind: str) -> None:
    i = value(f"{kind}[6, 70]", "i")
    data = np.random.default_rng(0).integers(0, 33, (6, 70)).astype(i.dtype.numpy)
    for row, column in enumerate((0, 15, 16, 63, 69)):
        data[row, column] = -1 - row
    for y in (
        GatherElements(1)(value("f32[6, 33]"), i),
        Exp()(GatherElements(1)(value("f32[6, 33]"), i)),
        Gather(1)(value("f32[4, 33]"), i),
    ):
        check(graph_of(y), {"i": data}, features=features)


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("place", [0, 13, 31, 33])
@pytest.mark.parametrize("wrong", [9, -10, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_within_a_vector(kind: str, place: int, wrong: int) -> None:
    i = value(f"{kind}[34]", "i")
    executable = compile_graph(graph_of(GatherElements(0)(value("f32[9]"), i)), host(), 1)
    feeds = {"x": np.arange(9, dtype=np.float32), "i": np.zeros(34, i.dtype.numpy)}
    bad = feeds["i"].copy()
    bad[place] = wrong
    with pytest.raises(ExecutionError, match="out of range") as caught:
        executable.run(feeds | {"i": bad})
    assert caught.value.given == wrong
    np.testing.assert_array_equal(executable.run(feeds)[0], feeds["x"][feeds["i"]])


def test_narrow_indices_into_a_table_that_is_longer_than_they_reach() -> None:
    """Of such a table, some negative indices are numbers of rows when they are read unsigned."""
    rows = 2**31 + 64
    table = np.frombuffer(mmap.mmap(-1, rows), np.uint8)  # pages that nobody touches cost nothing
    few = np.array([3, -(2**31), 2**31 - 1, -(2**31) + 9, 1, 0], np.int32)
    table[few] = np.arange(1, 7)
    graph = graph_of(GatherElements(0)(value(f"u8[{rows}]"), value("i32[192]", "i")))
    (found,) = compile_graph(graph, host(), 1).run({"x": table, "i": np.tile(few, 32)})
    np.testing.assert_array_equal(found, np.tile(np.arange(1, 7, dtype=np.uint8), 32))


@pytest.mark.parametrize("wrong", [5, -6, 2**40, -(2**62)])
@pytest.mark.parametrize("place", [0, 7])
def test_an_index_out_of_range_is_an_error_and_no_more(wrong: int, place: int) -> None:
    x, i = value("f32[5, 3]"), value("i64[8]", "i")
    for y in (Gather(0)(x, i), GatherElements(0)(value("f32[5]"), i)):
        executable = compile_graph(graph_of(y), host(), 2)
        data = np.arange(y.inputs[0].tensor.size, dtype=np.float32)
        feeds = {"x": data.reshape(y.inputs[0].tensor.static), "i": np.zeros(8, np.int64)}
        good = executable.run(feeds)[0]
        bad = feeds["i"].copy()
        bad[place] = wrong
        with pytest.raises(ExecutionError, match="out of range") as caught:
            executable.run(feeds | {"i": bad})
        assert caught.value.given == wrong
        assert caught.value.expected == "-5..4"
        np.testing.assert_array_equal(executable.run(feeds)[0], good)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("batch", [0, 1])
def test_bytes_by_many_indices_at_once(features, batch: int) -> None:
    """The indices of a vector of bytes are eight times as wide as the bytes."""
    i = value("i64[16, 16, 4, 1]", "i")
    data = np.random.default_rng(0).integers(-1, 1, i.tensor.static)
    check(graph_of(GatherNd(batch)(value("i8[16, 1]"), i)), {"i": data}, features=features)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
def test_rows_whose_elements_lie_apart(features) -> None:
    """The index is that of a whole row, the elements of which are no vector in memory."""
    i, data = indices("i64[3]", 5)
    x = value("f32[40, 5]")
    check(graph_of(Gather(0)(Transpose((1, 0))(x), i)), {"i": data}, features=features)
    apart = Slice((0, 0), (5, 80), (1, 2))(value("f32[5, 80]"))
    check(graph_of(Exp()(Gather(0)(apart, i))), {"i": data}, features=features)
    turned = Reshape((5, 40))(Transpose((0, 2, 1))(value("f32[5, 8, 5]")))
    check(graph_of(Gather(0)(turned, i)), {"i": data}, features=features)


def test_an_index_into_nothing_is_an_error() -> None:
    executable = compile_graph(
        graph_of(Gather(0)(value("f32[0, 3]"), value("i64[2]", "i"))), host(), 2
    )
    with pytest.raises(ExecutionError, match="out of range"):
        executable.run({"x": np.empty((0, 3), np.float32), "i": np.zeros(2, np.int64)})


REDUCTIONS = ["none", "add", "mul", "min", "max"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ["f32", "f16", "i8", "i64", "bool"])
def test_scatters_of_elements(reduction: str, kind: str) -> None:
    x = value(f"{kind}[6, 9, 5]")
    for axis in (0, 1, 2):
        i, data = indices("i64[6, 8, 5]", (6, 9, 5)[axis])
        y = ScatterElements(axis, reduction)(x, i, value(f"{kind}[6, 8, 5]", "u"))
        for threads in THREADS:
            # A few products and sums in f32, where the reference has f64.
            check(graph_of(y), {"i": data}, threads=threads)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatters_of_slices(features, reduction: str) -> None:
    x = value("f32[4, 3, 37]")
    i, data = indices("i64[5, 2, 1]", 4)
    y = ScatterNd(reduction)(x, i, value("f32[5, 2, 3, 37]", "u"))
    for threads in THREADS:
        check(graph_of(y), {"i": data}, features=features, threads=threads)
    i, data = indices("i32[7, 3]", 3)
    y = ScatterNd(reduction)(x, i, value("f32[7]", "u"))
    check(graph_of(y, Exp()(y)), {"i": data}, features=features)


def test_a_scatter_with_what_follows_is_one_kernel() -> None:
    i, data = indices("i64[5, 1]", 4)
    y = ScatterNd()(value("f32[4, 33]"), i, value("f32[5, 33]", "u"))
    executable = check(graph_of(Add()(Exp()(y), value("f32[33]", "b"))), {"i": data})
    assert len(executable.program.steps) == 1


def test_a_scatter_out_of_range_writes_nothing_wild() -> None:
    i = value("i64[3, 1]", "i")
    y = ScatterNd()(value("f32[4, 5]"), i, value("f32[3, 5]", "u"))
    executable = compile_graph(graph_of(y), host(), 2)
    feeds = {"x": np.zeros((4, 5), np.float32), "u": np.ones((3, 5), np.float32)}
    with pytest.raises(ExecutionError, match="out of range") as caught:
        executable.run(feeds | {"i": np.array([[0], [9], [1]])})
    assert caught.value.given == 9


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("mode", PAD_MODES)
@pytest.mark.parametrize(
    "added",
    [
        ((0, 0, 0), (0, 0, 40)),
        ((1, 0, 3), (0, 2, 1)),
        ((2, 1, 50), (0, 0, -3)),
        ((0, -1, -2), (3, 0, 0)),
        ((0, 3, 0), (0, 9, 0)),
    ],
)
def test_padding(features, mode: str, added: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for kind in ("f32", "u8"):
        y = Pad(*added, mode)(value(f"{kind}[2, 5, 37]"))
        check(graph_of(y), features=features, threads=2)
        check(graph_of(Add()(y, y)), features=features, threads=4)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_padding_of_rows_as_long_as_a_vector(features, size: int) -> None:
    """No vector but the one at the start of such a row lies in it."""
    x = value(f"f32[3, {size}]")
    for before, mode in itertools.product((1, size - 1, size + 1), ("constant", "edge")):
        y = Pad((0, before), (0, size + 2), mode)(x)
        check(graph_of(Add()(y, y)), features=features)


def test_padding_with_a_value_that_is_data() -> None:
    x, fill = value("f32[3, 20]"), value("f32[]", "fill")
    check(graph_of(Exp()(Pad((0, 2), (1, 3))(x, fill))))
    check(graph_of(Pad((2, 0), (0, 0))(value("f32[0, 4]"), fill)))


@pytest.mark.parametrize("repeats", [(2, 1, 3), (1, 4, 1), (3, 2, 2)])
def test_tiles_cost_no_kernel_of_their_own(repeats: tuple[int, ...]) -> None:
    executable = check(graph_of(Exp()(Tile(repeats)(value("f32[2, 3, 19]")))))
    assert len(executable.program.steps) == 1


def test_frames_are_views() -> None:
    frames = Frames(1, 16, 5)(value("f32[2, 100]"))
    executable = check(graph_of(Exp()(frames)))
    assert len(executable.program.steps) == 1


def test_counting_with_what_follows() -> None:
    check(graph_of(Add()(Iota(77)(), value("i64[77]"))))


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "i32", "i64", "u8"])
@pytest.mark.parametrize("step", [1, 2])
def test_blocks_over_a_wide_image(kind: str, step: int) -> None:
    op = Col2Im((5, 29), (3, 4), (1, step), (1, 1), (1, 2), (1, 1))
    y = op(value(f"{kind}[2, 36, {math.prod(op.block_counts())}]"))
    for features, threads in itertools.product(FEATURES, THREADS):
        executable = check(
            graph_of(Add()(y, value(f"{kind}[29]", "z"))), features=features, threads=threads
        )
        assert len(executable.program.steps) == 1


def test_blocks_of_one_element_and_of_no_image() -> None:
    check(graph_of(Col2Im((4,), (1,), (1,), (1,), (0,), (0,))(value("f32[1, 3, 4]"))))
    check(graph_of(Col2Im((2,), (4,), (1,), (1,), (0,), (0,))(value("f32[1, 8, 0]"))))
    check(graph_of(Col2Im((4,), (1,), (1,), (1,), (0,), (0,))(value("f32[0, 3, 4]"))))


def test_blocks_far_apart_need_no_large_memory() -> None:
    far = 1 << 30
    y = Col2Im((3,), (2,), (1,), (far,), (far,), (0,))(value("f32[1, 2, 3]"))
    executable = compile_graph(graph_of(y), host(), 1)
    assert executable.program.memory.size < 1 << 20


@pytest.mark.parametrize("kind", ["f32", "f16", "i32"])
def test_blocks_over_an_image(kind: str) -> None:
    op = Col2Im((7, 6), (3, 2), (2, 1), (2, 3), (1, 2), (3, 0))
    y = op(value(f"{kind}[2, 18, 20]"))
    # A few additions in f32; a narrow result is rounded once.
    check(graph_of(y))
