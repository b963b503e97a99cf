"""Ops whose data decide a size: bounded results, and how much of them counts."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError
from monograph.ir import constant, evaluate, parse_tensor_type, unpack
from monograph.ops.composite import LogSoftmax, Softmax
from monograph.ops.elementwise import Add, Div, Exp, Less, Mul
from monograph.ops.index import Gather, GatherNd
from monograph.ops.linear import Dot
from monograph.ops.reduce import CumSum, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from monograph.ops.roi import NonMaxSuppression
from monograph.ops.scatter import ScatterNd
from monograph.ops.shape import Concat, Reshape, ShapeOf, Slice, Transpose
from monograph.ops.sort import NonZero, Unique
from monograph.program.dynamic.bounded import Counted
from tests.cpu.dynamic.staging import check, check_samples, compiled, matches
from tests.cpu.indexing.moving import FEATURES, THREADS
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("op", [NonZero, Unique, NonMaxSuppression], ids=lambda o: o.name)
def test_samples(op, features, threads: int) -> None:
    check_samples(op, features, threads)


def small_numbers(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """A few different numbers, often; among floats NaN and both zeros."""
    low = 0 if text.startswith(("u", "b")) else -2
    data = rng.integers(low, 3, shape).astype(parse_tensor_type(text).dtype.numpy)
    if text.startswith("f") and data.size:
        data.reshape(-1)[[0, -1]] = np.nan
        data.reshape(-1)[1] = -0.0
    return data


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "u64", "bool", "i64"])
@pytest.mark.parametrize("shape", [(7,), (0,), (3, 11), (2, 3, 4)], ids=str)
def test_every_element_type(dtype: str, shape: tuple[int, ...]) -> None:
    text = f"{dtype}[{', '.join(map(str, shape))}]"
    x, data = value(text), small_numbers(text, shape)
    found = [NonZero()(x)]
    for axis in (None, *range(len(shape))):
        for in_order in (True, False):
            found += unpack(Unique(axis, in_order)(x))
    check(graph_of(*found), {"x": data})


@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "i8", "u8", "i32", "i64", "u64", "bool"])
def test_many_single_elements_are_sorted_by_their_bytes(kind: str) -> None:
    """Numbers of every size and sign, many of them equal; NaN, infinities and both zeros."""
    form = parse_tensor_type(f"{kind}[30, 17]").dtype
    if form.is_float:
        data = rng.normal(size=(30, 17)) * 10.0 ** rng.integers(-4, 4, (30, 17))
        data = np.round(data, 1)
        data.reshape(-1)[::50] = np.array(
            [np.nan, np.inf, -np.inf, -0.0, 0.0, np.nan, 1, -1] + [0] * 3
        )
    elif kind == "bool":
        data = rng.random((30, 17)) < 0.3
    else:
        ends = np.iinfo(form.numpy)
        choices = rng.integers(ends.min, ends.max, 200, form.numpy, endpoint=True)
        choices[:6] = [ends.min, ends.max, 0, 1, ends.max - 1, ends.min + 1]
        data = rng.choice(choices, (30, 17))
    x = value(f"{kind}[30, 17]")
    found = [v for in_order in (True, False) for v in unpack(Unique(None, in_order)(x))]
    check(graph_of(*found), {"x": data.astype(form.numpy)})


def boxes(dtype: str, count: int) -> dict[str, np.ndarray]:
    low = rng.uniform(0, 3, (2, count, 2))
    corners = np.concatenate([low, low + rng.uniform(-1, 1.5, (2, count, 2))], 2)
    # Rounded, so that scores are equal now and then.
    scores = np.round(rng.uniform(-1, 1, (2, 3, count)), 1)
    return {"b": corners.astype(dtype), "s": scores.astype(dtype)}


@pytest.mark.parametrize(("name", "dtype"), [("f32", "f4"), ("f64", "f8"), ("f16", "f2")])
@pytest.mark.parametrize("limit", [0, 3, 100])
@pytest.mark.parametrize("centre", [False, True])
def test_the_choice_among_boxes(name: str, dtype: str, limit: int, centre: bool) -> None:
    b, s = value(f"{name}[2, 37, 4]", "b"), value(f"{name}[2, 3, 37]", "s")
    feeds = boxes(dtype, 37)
    feeds["s"][0, 0, 3] = np.nan
    for score in (None, 0.1):
        op = NonMaxSuppression(limit=limit, iou=0.3, score=score, centre=centre)
        check(graph_of(op(b, s)), feeds)


def test_what_lies_behind_the_count_is_zero() -> None:
    x = value("f32[3, 4]")
    feeds = {"x": np.array([[0, 1, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0]], np.float32)}
    graph = graph_of(*unpack(Counted(NonZero())(x)), *unpack(Counted(Unique())(x)))
    check(graph, feeds)
    places, count, *_ = evaluate(graph, feeds)
    assert count == 3
    assert not places[:, 3:].any()


def test_rows_that_are_counted_go_on_in_the_same_program() -> None:
    """However many there are, nothing is compiled again, and one function does it all."""
    x, table = value("f32[6, 5]"), value("f32[6, 5, 8]", "t")
    places = NonZero()(Less()(constant(np.float32(0)), x))
    pairs = Transpose((1, 0))(places)
    rows = GatherNd()(table, pairs)
    column = Reshape((-1,))(Slice((0, 0), (1, 2**62), (1, 1))(places))
    weights = constant(rng.normal(size=(8, 3)).astype(np.float32))
    scores = Exp()(Dot()(Mul()(rows, constant(np.float32(0.5))), weights))
    best = ReduceMax((1,), True)(scores)
    named = Gather(0)(constant(np.arange(12.0).reshape(6, 2)), column)
    graph = graph_of(Concat(1)(scores, best), named, ShapeOf()(rows))
    executable = compiled(graph)
    for seed in range(5):
        generator = np.random.default_rng(seed)
        feeds = {
            "x": (generator.normal(size=(6, 5)) + seed - 2).astype(np.float32),
            "t": generator.normal(size=(6, 5, 8)).astype(np.float32),
        }
        matches(executable, graph, feeds)
    matches(executable, graph, feeds | {"x": np.full((6, 5), -1, np.float32)})
    assert executable.launches == 1
    assert executable.specialisations == 0


def test_two_counts_meet_in_one_program() -> None:
    """Of the first only a sum is left when the second's rows are worked on."""
    x = value("f32[4, 3]")
    total = ReduceSum((1,), True)(NonZero()(x))
    rows = Add()(unpack(Unique()(x))[1], total)
    graph = graph_of(rows, ShapeOf()(rows))
    executable = compiled(graph)
    for most in (0, 1, 3):
        data = rng.integers(-most, most + 1, (4, 3)).astype(np.float32)
        matches(executable, graph, {"x": data})
    assert executable.specialisations == 0


def test_indices_behind_the_count_are_never_out_of_range() -> None:
    x, table = value("f32[7]"), value("f32[2]", "t")
    places = Reshape((-1,))(NonZero()(x))
    # In range for what counts, and for nothing else.
    indices = Add()(places, constant(np.int64(-5)))
    graph = graph_of(Gather(0)(table, indices), GatherNd()(table, Reshape((-1, 1))(indices)))
    executable = compiled(graph)
    feeds = {"x": np.array([0, 0, 0, 1, 0, 1, 1], np.float32), "t": np.float32([3, 4])}
    matches(executable, graph, feeds)
    assert executable.specialisations == 0
    with pytest.raises(ExecutionError, match="out of range"):
        executable.run(feeds | {"x": np.array([0, 0, 1, 1, 0, 1, 1], np.float32)})


def test_an_index_that_is_counted_is_checked_against_the_count() -> None:
    """The room behind what counts is no place to gather from: the size has to be known."""
    x, i = value("f32[6]"), value("i64[2]", "i")
    places = Reshape((-1,))(NonZero()(x))
    graph = graph_of(Gather(0)(places, i))
    executable = compiled(graph)
    feeds = {"x": np.array([1, 0, 2, 0, 0, 3], np.float32), "i": np.array([-1, 0])}
    matches(executable, graph, feeds)
    assert executable.specialisations == 1


@pytest.mark.parametrize("dtype", ["f32", "i64", "bool"])
def test_all_rows_that_are_counted_become_one(dtype: str) -> None:
    """Elements behind the counted ones change nothing, also where none is counted."""
    x, table = value("f32[9]"), value(f"{dtype}[9, 4]", "t")
    rows = Gather(0)(table, Reshape((-1,))(NonZero()(x)))
    made = [ReduceMax((0,))(rows), ReduceMin((0, 1), True)(rows)]
    if dtype != "bool":
        shifted = Add()(rows, constant(np.array(2, rows.dtype.numpy)))
        made += [ReduceSum((0,))(shifted), ReduceProd((0,))(shifted), CumSum(0)(shifted)]
    if dtype == "f32":
        made += [Softmax(0)(rows), LogSoftmax(0)(rows), Softmax(1)(rows)]
    graph = graph_of(*made)
    executable = compiled(graph)
    data = rng.integers(0, 2, (9, 4)) if dtype == "bool" else rng.integers(-5, -1, (9, 4))
    for count in (0, 4, 9):
        feeds = {"x": (np.arange(9) < count).astype(np.float32)}
        matches(executable, graph, feeds | {"t": data.astype(table.dtype.numpy)})
    assert executable.specialisations == 0


@pytest.mark.parametrize("reduction", ["none", "max", "add"])
def test_rows_that_are_counted_are_scattered(reduction: str) -> None:
    """Also where two of them go to one place, or there are none."""
    x, mask = value("f32[6, 2]"), value("bool[5]", "m")
    places = Transpose((1, 0))(NonZero()(mask))
    half = Div()(places, constant(np.int64(2)))
    rows = Exp()(GatherNd()(value("f32[5, 2]", "t"), places))
    graph = graph_of(ScatterNd(reduction)(x, half, rows))
    executable = compiled(graph)
    feeds = {"x": rng.normal(size=(6, 2)).astype(np.float32) + 1}
    feeds["t"] = rng.normal(size=(5, 2)).astype(np.float32)
    for bits in ([0, 0, 0, 0, 0], [1, 1, 0, 1, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]):
        matches(executable, graph, feeds | {"m": np.array(bits, bool)})
    # The count 0 has code of its own.
    assert executable.specialisations == (2 if reduction == "add" else 0)


def test_a_running_sum_from_the_end_needs_the_size() -> None:
    places = NonZero()(value("f32[6]"))
    graph = graph_of(CumSum(1, reverse=True)(places))
    executable = compiled(graph)
    matches(executable, graph, {"x": np.array([0, 1, 1, 0, 1, 0], np.float32)})
    assert executable.specialisations == 1


def test_a_size_that_must_be_known_is_compiled_for_once() -> None:
    x = value("f32[8]")
    places = NonZero()(x)
    graph = graph_of(Slice((0, 0), (1, -1), (1, 1))(Add()(places, places)), places)
    executable = compiled(graph, kept=1)
    for count in (3, 3, 0, 5, 3, 0, 8):
        matches(executable, graph, {"x": (np.arange(8) < count).astype(np.float32)})
    assert executable.specialisations == 2, "no rows, and any number of rows"
    assert executable.launches == 2


def test_products_of_no_rows() -> None:
    x, w = value("f32[5, 4]"), constant(rng.normal(size=(4, 3)).astype(np.float32))
    rows = Gather(0)(x, Reshape((-1,))(NonZero()(value("bool[5]", "m"))))
    graph = graph_of(ReduceSum((0,))(Dot()(rows, w)))
    executable = compiled(graph)
    data = rng.normal(size=(5, 4)).astype(np.float32)
    for mask in ([0, 0, 0, 0, 0], [1, 0, 1, 1, 0]):
        matches(executable, graph, {"x": data, "m": np.array(mask, bool)})
