"""Programs that wait for data: computed attributes, branches of unequal shapes, loops."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx.parser
import pytest

import monograph
from monograph.errors import ExecutionError, InferError
from monograph.ir import Value, constant, unpack
from monograph.ir.dtype import f32
from monograph.ops.cast import Cast
from monograph.ops.control import Fail, If, Loop
from monograph.ops.deferred import Deferred, Require
from monograph.ops.elementwise import Add, Exp, Less, Mul, Neg
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, ShapeOf
from monograph.ops.sort import NonZero
from monograph.program.legalise import expand
from tests.cpu.dynamic.staging import body, check_samples, compiled, matches
from tests.cpu.indexing.moving import FEATURES, THREADS
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("op", [If, Loop, Deferred, Require], ids=lambda o: o.name)
def test_samples(op, features, threads: int) -> None:
    check_samples(op, features, threads)


def test_attributes_that_are_data_are_compiled_for() -> None:
    sliced = Deferred("slice", ("starts", "stops"), (("steps", (1,)),))
    x, start, stop = value("f32[9]"), value("i64[1]", "a"), value("i64[1]", "b")
    part = sliced(x, start, stop)
    graph = graph_of(Exp()(part), ShapeOf()(part))
    executable = compiled(graph)
    data = rng.normal(size=9).astype(np.float32)
    for low, high in ((1, 4), (0, 9), (1, 4), (-3, 9), (5, 5)):
        matches(executable, graph, {"x": data, "a": np.array([low]), "b": np.array([high])})
    assert executable.specialisations == 4


def test_an_attribute_that_does_not_fit_fails_the_run_only() -> None:
    graph = graph_of(Deferred("reshape", ("shape",))(value("f32[6]"), value("i64[2]", "n")))
    executable = compiled(graph)
    feeds = {"x": np.arange(6, dtype=np.float32)}
    with pytest.raises(InferError, match="keeps the number of elements"):
        executable.run(feeds | {"n": np.array([4, 2])})
    assert executable.run(feeds | {"n": np.array([3, 2])})[0].shape == (3, 2)


def test_branches_of_unequal_shapes() -> None:
    """Each side is compiled when it is first taken; what follows with it."""
    x, y = value("f32[3, 4]", "p"), value("f32[2, 4]", "q")
    sides = If(body((x,), Neg()(x)), body((y,), Add()(y, y)))
    made = unpack(sides(value("bool[]", "c"), value("f32[3, 4]"), value("f32[2, 4]", "y")))[0]
    graph = graph_of(Exp()(made), ReduceSum((0,))(made))
    executable = compiled(graph)
    feeds = {
        "x": rng.normal(size=(3, 4)).astype(np.float32),
        "y": rng.normal(size=(2, 4)).astype(np.float32),
    }
    for side in (True, False, False, True):
        matches(executable, graph, feeds | {"c": np.array(side)})
    assert executable.specialisations == 2


def test_a_branch_with_sizes_in_its_data() -> None:
    x = value("f32[5]", "p")
    inner = Reshape((-1,))(NonZero()(x))
    sides = If(body((x,), Cast(f32)(inner)), body((x,), x))
    (made,) = unpack(sides(value("bool[]", "c"), value("f32[5]"), value("f32[5]")))
    graph = graph_of(Mul()(made, made))
    executable = compiled(graph)
    for side in (True, False):
        feeds = {"x": np.array([0, 1, 2, 0, 3], np.float32), "c": np.array(side)}
        matches(executable, graph, feeds)


def test_a_branch_that_cannot_run_fails_where_it_is_taken() -> None:
    x = value("f32[3]", "p")
    dead = Fail("no such form", x.type)()
    sides = If(body((x,), Exp()(x)), body((), dead))
    graph = graph_of(*unpack(sides(value("bool[]", "c"), value("f32[3]"))))
    executable = compiled(graph)
    feeds = {"x": np.ones(3, np.float32)}
    matches(executable, graph, feeds | {"c": np.array(True)})
    assert executable.launches == 1
    with pytest.raises(ExecutionError, match="cannot run: no such form"):
        executable.run(feeds | {"c": np.array(False)})
    matches(executable, graph, feeds | {"c": np.array(True)})


def test_sizes_that_must_agree() -> None:
    given = Require("they agree")(value("f32[2, 3]"), constant([2, 3]), value("i64[2]", "n"))
    graph = graph_of(Exp()(given))
    executable = compiled(graph)
    feeds = {"x": rng.normal(size=(2, 3)).astype(np.float32)}
    matches(executable, graph, feeds | {"n": np.array([2, 3])})
    with pytest.raises(ExecutionError, match="they agree") as failed:
        executable.run(feeds | {"n": np.array([2, 4])})
    assert failed.value.given == 4


def loop_inputs() -> tuple[Value, Value]:
    return value("i64[]", "i"), value("bool[]", "go")


def test_a_trip_count_that_is_data() -> None:
    i, go = loop_inputs()
    s = value("f32[3]", "s")
    step = body((i, go, s), go, Add()(s, Cast(f32)(i)), Exp()(s))
    loop = Loop(step, 1)(value("i64[]", "n"), constant(np.array(True)), value("f32[3]"))
    graph = graph_of(*unpack(loop))
    executable = compiled(graph)
    for trips in (3, 0, 7):
        feeds = {"x": np.zeros(3, np.float32), "n": np.int64(trips)}
        matches(executable, graph, feeds)


@pytest.mark.parametrize("threads", THREADS)
def test_a_loop_with_a_condition_collects_as_often_as_it_runs(threads: int) -> None:
    i, go = loop_inputs()
    s = value("f32[40]", "s")
    new = Add()(s, constant(np.float32(1)))
    going = Less()(Reshape(())(ReduceSum((0,))(new)), constant(np.float32(200)))
    step = body((i, go, s), going, new, Exp()(Mul()(s, constant(np.float32(0.1)))), i)
    loop = Loop(step, 1)(constant(np.int64(9)), constant(np.array(True)), value("f32[40]"))
    graph = graph_of(*unpack(loop))
    executable = compiled(graph, threads=threads)
    for start in (0.0, 3.0, 6.0, -20.0):
        matches(executable, graph, {"x": np.full(40, start, np.float32)})
    assert executable.launches == 1
    assert executable.specialisations == 0


def growing(trips: Value) -> Value:
    """Puts the iteration's number behind the state."""
    i, go = loop_inputs()
    s = value('f32["~loop_s"]', "s")
    longer = Concat(0)(s, Reshape((1,))(Cast(f32)(i)))
    return Loop(body((i, go, s), go, longer), 1)(trips, constant(np.array(True)), value("f32[2]"))


def test_state_that_grows_is_unrolled() -> None:
    graph = graph_of(Exp()(unpack(growing(value("i64[]", "n")))[0]))
    executable = compiled(graph)
    for trips in (1, 4):
        matches(executable, graph, {"x": np.zeros(2, np.float32), "n": np.int64(trips)})


def test_state_that_grows_for_long_is_made_turn_by_turn() -> None:
    graph = graph_of(unpack(growing(constant(np.int64(9))))[0])
    with mock.patch.object(expand, "MAX_UNROLLED", 8):
        executable = compiled(graph)
    matches(executable, graph, {"x": np.zeros(2, np.float32)})
    assert executable.specialisations == 1
    assert executable.launches == 9


def test_a_session_tells_of_stages_and_of_the_host() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["": 20]>
        g (float[6] x, bool[6] c, int64[2] n, string[1] s)
            => (float[k] y, float[p, q] z, string[1] t) {
            picked = Compress(x, c)
            y = Neg(picked)
            z = Reshape(x, n)
            t = StringConcat(s, s)
        }
        """
    )
    session = monograph.load(model, target="cpu", cache_bytes=0)
    x = np.arange(6, dtype=np.float32)
    for sizes, mask in (([2, 3], x > 2), ([3, 2], x > 0), ([2, 3], x > 5), ([2, 3], x > 9)):
        feeds = {"x": x, "c": mask, "n": np.array(sizes), "s": np.array(["a"], object)}
        y, z, t = session.run(feeds)
        np.testing.assert_array_equal(y, -x[mask])
        np.testing.assert_array_equal(z, x.reshape(sizes))
        assert t.tolist() == ["aa"]
    stats = session.stats
    assert stats["runs"] == 4
    # One for all shapes that were asked for, and none for the rows that were counted.
    assert stats["specialisations"] == 1
    assert stats["host_reasons"] == {"string_concat": "strings"}


def test_the_short_path_of_a_run_takes_only_arrays_of_the_own_types() -> None:
    """An input that only the later part reads is compared before the first part runs."""
    part = Deferred("slice", ("starts", "stops"), (("steps", (1,)),))
    bounds = value("i64[1]", "a"), value("i64[1]", "b")
    sliced = part(Exp()(value("f32[9]")), *bounds)
    executable = compiled(graph_of(Mul()(sliced, part(value("f32[9]", "y"), *bounds))))
    x, y = (rng.normal(size=9).astype(np.float32) for _ in range(2))
    feeds = {"x": x, "y": y, "a": np.array([1]), "b": np.array([4])}
    expected = executable.run(feeds)[0]
    (found,) = executable.try_run(feeds)
    assert np.array_equal(found, expected)
    runs = executable.runs
    wrong = {"y": (y[:8], y.astype(np.float64), None), "x": (x[::2], x.astype(np.float64))}
    for name, others in wrong.items():
        for other in others:
            assert executable.try_run(feeds | {name: other}) is None
    assert executable.try_run(feeds, {"r0": np.empty(3, np.float32)}) is None
    assert executable.runs == runs


@pytest.mark.parametrize("size", [40, 1 << 20])
def test_results_that_fill_part_of_their_room_belong_to_their_run(size: int) -> None:
    """A large room that is nearly empty is not kept; no two runs or results share memory."""
    found = NonZero()(value(f"f32[{size}]"))
    executable = compiled(graph_of(found, found, Neg()(Cast(f32)(found))))
    first, second = np.zeros(size, np.float32), np.zeros(size, np.float32)
    first[[3, 5, 7]] = 1
    second[[2, 9]] = 1
    made = [executable.run({"x": x}) for x in (first, second)]
    for positions, results in zip(([3, 5, 7], [2, 9]), made, strict=True):
        assert results[0].tolist() == results[1].tolist() == [positions]
        assert results[2].tolist() == [[-p for p in positions]]
    arrays = [x for results in made for x in results]
    for i, x in enumerate(arrays):
        assert not any(np.shares_memory(x, y) for y in arrays[:i])
        room = x if x.base is None else x.base
        assert room.nbytes <= max(2 * x.nbytes, 1 << 20)
