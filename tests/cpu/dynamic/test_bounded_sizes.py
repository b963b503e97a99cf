"""Sizes that data decide: every producer with every consumer, for no rows, one, some and all."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import monograph
from monograph.errors import ExecutionError
from monograph.ir import constant
from monograph.ops.elementwise import Add, Div, Mod, Mul
from monograph.ops.reduce import ReduceSum
from monograph.ops.scatter import ScatterNd
from monograph.ops.shape import FAR, Reshape, ShapeOf, Slice, Transpose
from monograph.ops.sort import NonZero
from tests.cpu.dynamic import bounded_chains
from tests.cpu.dynamic.bounded_consumers import CONSUMERS, NEEDS_ROWS, model_of
from tests.cpu.dynamic.bounded_graphs import MOST, PRODUCERS, feeds_of
from tests.cpu.dynamic.bounded_runs import agree, sessions
from tests.cpu.dynamic.staging import compiled, matches
from tests.rules.checks import graph_of, value


@pytest.mark.parametrize("producer", PRODUCERS)
def test_consumers_of_any_number_of_rows(producer: str) -> None:
    model, owners = model_of(producer, [c for c in CONSUMERS if c not in NEEDS_ROWS])
    reference, other = sessions(model, "cpu")
    for count in (0, 1, 4, MOST):
        if count or producer != "unique":  # of six numbers at least one is distinct
            agree(reference, other, feeds_of(count), f"{producer}, {count} rows", owners)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_consumers_of_some_rows(producer: str) -> None:
    model, owners = model_of(producer, sorted(NEEDS_ROWS))
    reference, other = sessions(model, "cpu")
    for count in (1, 4, MOST):
        agree(reference, other, feeds_of(count), f"{producer}, {count} rows", owners)


@pytest.mark.parametrize("seed", range(150, 162))
def test_chains_behind_a_size_that_data_decide(seed: int) -> None:
    bounded_chains.check(seed)


def test_every_producer_finds_as_many_rows_as_are_asked_for() -> None:
    """Otherwise the tests above would not see padding."""
    for producer in PRODUCERS:
        model, _ = model_of(producer, ["flipped_twice"])
        session = monograph.load(model, target="reference")
        for count in (1, 4, MOST):
            feeds = {i.name: feeds_of(count)[i.name] for i in model.graph.input}
            assert session.run(feeds)[0].shape == (count,), producer


def test_the_places_found_are_reversed() -> None:
    """They begin with the last one that counts, not with what lies behind it."""
    graph = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        m (float[8] x) => (int64[1, n] y, int64[2] s)
        <int64[1] start = {-1}, int64[1] stop = {-9223372036854775808}, int64[1] axis = {1}> {
            found = NonZero(x)
            y = Slice(found, start, stop, axis, start)
            s = Shape(y)
        }
    """)
    session = monograph.load(graph, target="cpu")
    for x in ([1, 0, 2, 0, 3, 0, 0, 0], [0] * 8, [0, 0, 0, 0, 0, 0, 0, 1], range(1, 9)):
        y, s = session.run({"x": np.array(x, np.float32)})
        np.testing.assert_array_equal(y, np.nonzero(x)[0][None, ::-1])
        np.testing.assert_array_equal(s, y.shape)


def test_a_slice_of_another_axis_keeps_one_program() -> None:
    """Only the axis that is counted has to be whole and in order."""
    pairs = NonZero()(value("f32[3, 4]"))
    turned = Slice((-1, 0), (-9, FAR), (-1, 1))(pairs)
    flipped = Slice((0, -1), (2, -FAR), (1, -1))(pairs)
    feeds = {"x": np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 0]], np.float32)}
    for part, expected in ((turned, 0), (flipped, 1)):
        graph = graph_of(part, ShapeOf()(part))
        executable = compiled(graph)
        matches(executable, graph, feeds)
        assert executable.specialisations == expected


@pytest.mark.parametrize("reduction", ["none", "max"])
def test_no_row_is_scattered_where_none_counts(reduction: str) -> None:
    """The room holds no place of the tensor then, and that is no error."""
    found = NonZero()(value("f32[7]", "m"))
    places = Add()(Transpose((1, 0))(found), constant(np.int64(-5)))
    rows = Reshape((-1,))(Mul()(places, constant(np.int64(3))))
    graph = graph_of(ScatterNd(reduction)(value("i64[2]"), places, rows))
    executable = compiled(graph)
    given = {"x": np.array([1, 2])}
    for bits in ([0] * 7, [0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1]):
        matches(executable, graph, given | {"m": np.array(bits, np.float32)})
    assert executable.specialisations == 0
    with pytest.raises(ExecutionError, match="out of range"):
        executable.run(given | {"m": np.array([1, 0, 0, 0, 0, 0, 1], np.float32)})


def test_nothing_is_scattered_where_there_is_no_room() -> None:
    places = Transpose((1, 0))(NonZero()(value("f32[0]", "m")))
    for shape in ((2,), (0,)):
        x = value(f"i64[{shape[0]}]")
        graph = graph_of(ScatterNd()(x, places, Reshape((-1,))(places)))
        feeds = {"x": np.arange(shape[0]), "m": np.zeros(0, np.float32)}
        matches(compiled(graph), graph, feeds)


def test_integers_behind_the_count_are_divided_by_nothing() -> None:
    """The room holds zeros, which may be divisors and must not stop the process."""
    places = NonZero()(value("f32[9]"))
    sixty = constant(np.int64(60))
    graph = graph_of(Div()(sixty, places), ReduceSum((1,))(Mod()(sixty, places)))
    executable = compiled(graph)
    for bits in ([0] * 9, [0, 1, 0, 1, 0, 0, 0, 0, 1], [0, *[1] * 8]):
        matches(executable, graph, {"x": np.array(bits, np.float32)})
    assert executable.specialisations == 0
