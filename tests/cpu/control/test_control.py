"""Branches and loops, compiled with everything inside them."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.select import CpuTarget
from monograph.errors import ExecutionError
from monograph.ir import Graph, Item, Value, constant, unpack
from monograph.ir.dtype import f32
from monograph.ops.cast import Cast
from monograph.ops.control import If, Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Less, Mul, Sub
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, Slice, Transpose
from monograph.ops.sort import NonZero, TopK
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.indexing.moving import FEATURES, THREADS, check, check_samples, host
from tests.program.unsplit import unsplit
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))


def graph(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    check_samples(Scan, features, threads)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_with_kernels_of_every_kind(features, threads: int, chosen: bool) -> None:
    x, y = value("f32[5, 33]", "a"), value("f32[5, 20]", "b")
    found = TopK(20, 1)(Dot()(x, weight(33, 40)))
    then = graph((x,), Exp()(Item(0)(found)), Item(1)(found))
    summed = Reshape((5, 1))(ReduceSum((1,))(y))
    orelse = graph((y,), Mul()(y, summed), constant(np.arange(100).reshape(5, 20)))
    result = If(then, orelse)(value("bool[]", "c"), value("f32[5, 33]"), value("f32[5, 20]", "y"))
    first, second = unpack(result)
    outer = graph_of(Add()(first, first), second, Concat(1)(first, value("f32[5, 2]", "z")))
    given = {"c": np.array(chosen), "x": rng.normal(size=(5, 33)).astype(np.float32)}
    check(outer, given, features=features, threads=threads)


def counting_loop(limit: float) -> Graph:
    """Adds a matrix product to the state while the first element stays below a limit."""
    i, go = value("i64[]", "i"), value("bool[]", "go")
    state, other = value("f32[3, 17]", "s"), value("f32[17, 17]", "w")
    product = Dot()(Exp()(Sub()(state, state)), other)
    new = Add()(state, product)
    first = Reshape(())(Slice((0, 0), (1, 1), (1, 1))(new))
    going = Less()(first, constant(np.float32(limit)))
    return graph((i, go, state, other), going, new)


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_a_loop_ends_by_its_condition_or_its_count(features, threads: int) -> None:
    loop = Loop(counting_loop(5.0), 1)
    operands = value("i64[]", "n"), value("bool[]", "go"), value("f32[3, 17]"), weight(17, 17)
    outer = graph_of(*unpack(loop(*operands)))
    executable = check(
        outer,
        {"n": np.int64(3), "go": np.array(True)},
        features=features,
        threads=threads,
    )
    feeds = {"x": np.zeros((3, 17), np.float32)}
    for trips, go in ((0, True), (7, False), (1000, True)):
        given = feeds | {"n": np.int64(trips), "go": np.array(go)}
        check(outer, given, features=features, threads=threads)
    assert executable.launches == 1


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scan_over_any_axis(threads: int, axis: int) -> None:
    shape = [4, 19]
    state, slice_ = value("f32[4, 19]", "s"), value("f32[4, 19]", "t")
    new = Add()(Mul()(state, constant(np.float32(0.5))), slice_)
    body = graph((state, slice_), new, Dot()(new, weight(19, 6)))
    whole = shape.copy()
    whole.insert(axis, 7)
    x = value(f"f32[{', '.join(map(str, whole))}]")
    scan = Scan(body, (axis,), (axis == 1,), (2 - axis,), (axis == 2,))
    last, collected = unpack(scan(value("f32[4, 19]", "h"), x))
    check(graph_of(last, collected), threads=threads)
    moved = Transpose((2, 1, 0))(collected)
    check(graph_of(Exp()(moved)), threads=threads)


def test_loops_and_branches_inside_each_other() -> None:
    c, s, w = value("bool[]", "c"), value("f32[3, 17]", "s"), value("f32[17, 17]", "w")
    inner = Loop(counting_loop(9.0), 1)
    looped = unpack(inner(constant(np.int64(4)), constant(np.array(True)), s, w))[0]
    choice = If(graph((s, w), looped), graph((s,), Exp()(s)))
    h = value("f32[3, 17]", "h")
    step = unpack(choice(c, h, w, h))[0]
    i, go = value("i64[]", "i"), value("bool[]", "go")
    body = graph((i, go, h, c, w), go, step)
    operands = value("f32[3, 17]"), value("bool[]", "c"), weight(17, 17)
    outer = Loop(body, 1)(constant(np.int64(2)), constant(np.array(True)), *operands)
    for chosen in (True, False):
        data = rng.normal(size=(3, 17)).astype(np.float32) / 4
        check(graph_of(*unpack(outer)), {"c": np.array(chosen), "x": data})


def test_padded_windows_inside_a_loop() -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[1, 6, 5, 4]", "s")
    conv = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout="channels_last")
    body = graph((i, go, s), go, conv(Add()(s, s), weight(4, 4, 3, 3)))
    loop = Loop(body, 1)(value("i64[]", "n"), constant(np.array(True)), value("f32[1, 6, 5, 4]"))
    check(graph_of(*unpack(loop)), {"n": np.int64(3)})


def test_an_index_out_of_range_inside_a_branch_is_an_error() -> None:
    x, i = value("f32[5]", "a"), value("i64[3]", "b")
    branch = If(graph((x, i), Gather(0)(x, i)), graph((), constant(np.zeros(3, np.float32))))
    result = branch(value("bool[]", "c"), value("f32[5]"), value("i64[3]", "i"))
    executable = compile_graph(graph_of(*unpack(result)), host(), 2)
    feeds = {"x": np.zeros(5, np.float32), "i": np.array([0, 7, 1])}
    executable.run(feeds | {"c": np.array(False)})
    with pytest.raises(ExecutionError, match="out of range"):
        executable.run(feeds | {"c": np.array(True)})


@pytest.mark.parametrize("threads", THREADS)
def test_sizes_that_data_decide_inside_a_loop(threads: int) -> None:
    """They are counted there, as long as they stay there."""
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[9]", "s")
    places = Reshape((-1,))(NonZero()(Less()(constant(np.float32(0)), s)))
    total = ReduceSum((0,))(Gather(0)(s, places))
    new = Sub()(s, Mul()(total, constant(np.float32(0.1))))
    loop = Loop(graph((i, go, s), go, new), 1)(
        value("i64[]", "n"), constant(np.array(True)), value("f32[9]")
    )
    outer = graph_of(*unpack(loop))
    data = np.linspace(-1, 2, 9).astype(np.float32)
    check(outer, {"n": np.int64(5), "x": data}, threads=threads)


def test_what_cannot_be_compiled_inside_stays_a_host_step_and_says_why() -> None:
    x = value("f32[4]", "a")
    every_other = Slice((0, 0), (1, -1), (1, 2))(NonZero()(x))
    sizes = ReduceSum((0, 1))(every_other)
    branch = If(graph((x,), sizes), graph((), constant(np.int64(0))))
    result = branch(value("bool[]", "c"), value("f32[4]"))
    outer = graph_of(*unpack(result))
    with unsplit(CpuTarget):
        executable = check(outer, {"c": np.array(True)}, native=False)
    assert executable.host_reasons == {
        "if": "inside it non_zero: the data decide a size that nothing bounds"
    }


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("trips", [0, 1, 6])
def test_a_loop_of_a_known_count_collects(threads: int, trips: int) -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[3, 17]", "s")
    new = Add()(s, Cast(f32)(i))
    body = graph((i, go, s), go, new, Dot()(new, weight(17, 5)), i)
    loop = Loop(body, 1)
    result = loop(constant(np.int64(trips)), constant(np.array(True)), value("f32[3, 17]"))
    check(graph_of(*unpack(result)), threads=threads)
