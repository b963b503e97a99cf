"""Branches and loops on the GPU target: decided by bools on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.codegen.triton.control import control
from monograph.codegen.triton.matmul import dot
from monograph.codegen.triton.module.kernel import Branch, Call, Candidate, GpuContext, RepeatWork
from monograph.codegen.triton.module.layout import GpuModule
from monograph.config import Config
from monograph.errors import ExecutionError
from monograph.ir import Array, Graph, Item, Op, Value, constant, evaluate, parse_type, unpack
from monograph.ir.dtype import f32
from monograph.ops.cast import Cast
from monograph.ops.control import Fail, If, Loop, Scan
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Less, Mul, Sub
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, Slice, Transpose
from monograph.passes.base import Environment
from monograph.pipeline import optimise
from monograph.program.dynamic.bounded import bounded_loop
from monograph.program.program import Step
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.rewrite import GPU_COST
from monograph.runtime.dynamic.staged import compile_stages
from monograph.runtime.gpu.build.tune import Tuner
from monograph.runtime.gpu.build.tuning_cache import TuningCache
from monograph.runtime.gpu.capture.control import REPEAT, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.executable import (
    GpuExecutable,
    compile_for_gpu,
    compile_program,
    lower_for_gpu,
)
from monograph.runtime.gpu.target import GpuBackend
from monograph.runtime.progress import silent
from tests.gpu.against import check, device
from tests.gpu.gpu_models import FakeDevice
from tests.models.test_real_models import SHARED
from tests.rules.checks import graph_of, value
from tests.samples import sample_graph

rng = np.random.default_rng(0)


def weight(*shape: int) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))


def graph(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")


def executable(outer: Graph) -> GpuExecutable:
    return GpuExecutable(compile_for_gpu(outer, device().arch), device())


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_with_kernels_of_several_kinds(chosen: bool) -> None:
    x, y = value("f32[5, 33]", "a"), value("f32[5, 20]", "b")
    made = Dot()(x, weight(33, 20))
    then = graph((x,), Exp()(made), ReduceSum((1,))(made))
    summed = ReduceSum((1,))(y)
    orelse = graph((y,), Mul()(y, Reshape((5, 1))(summed)), constant(np.arange(5.0, dtype="f")))
    result = If(then, orelse)(value("bool[]", "c"), value("f32[5, 33]"), value("f32[5, 20]", "y"))
    first, second = unpack(result)
    outer = graph_of(Add()(first, first), second, Concat(1)(first, value("f32[5, 2]", "z")))
    check(outer, {**feeds(outer), "c": np.array(chosen)})


def feeds(outer: Graph) -> dict[str, Array]:
    made = {}
    for name, v in zip(outer.input_names, outer.inputs, strict=True):
        made[name] = np.asarray(rng.normal(size=v.tensor.static)).astype(v.dtype.numpy)
    return made


def host_reads(module: GpuModule) -> int:
    """Count the places where the host must read a condition."""
    works = [b.work for b in module.every]
    return sum(isinstance(w, Branch) or (isinstance(w, RepeatWork) and not w.count) for w in works)


def test_the_host_looks_at_one_bool() -> None:
    x = value("f32[7]", "a")
    branch = If(graph((x,), Exp()(x)), graph((x,), Sub()(x, x)))
    result = branch(value("bool[]", "c"), value("f32[7]"), value("f32[7]"))
    made = executable(graph_of(*unpack(result)))
    assert host_reads(made.module) == 1
    data = np.ones(7, np.float32)
    assert made.run({"c": np.array(False), "x": data})[0].tolist() == [0] * 7
    assert made.run({"c": np.array(True), "x": data})[0][0] > 2
    assert made.syncs == 2


def counting_loop(limit: float) -> Graph:
    """Adds a matrix product to the state while the first element stays below a limit."""
    i, go = value("i64[]", "i"), value("bool[]", "go")
    state, other = value("f32[3, 17]", "s"), value("f32[17, 17]", "w")
    product = Dot()(Exp()(Sub()(state, state)), other)
    new = Add()(state, product)
    first = Reshape(())(Slice((0, 0), (1, 1), (1, 1))(new))
    going = Less()(first, constant(np.float32(limit)))
    return graph((i, go, state, other), going, new)


def test_a_loop_ends_by_its_condition_or_its_count() -> None:
    loop = Loop(counting_loop(5.0), 1)
    data = np.full((17, 17), 0.1, np.float32)
    operands = value("i64[]", "n"), value("bool[]", "go"), value("f32[3, 17]"), constant(data)
    outer = graph_of(*unpack(loop(*operands)))
    made = executable(outer)
    zeros = np.zeros((3, 17), np.float32)
    for trips, go, turns in (
        (0, True, 0),
        (7, False, 0),
        (1, True, 1),
        (2, True, 2),
        (50, True, 3),
    ):
        given = {"x": zeros, "n": np.int64(trips), "go": np.array(go)}
        before = made.syncs
        (found,) = made.run(given)
        np.testing.assert_allclose(found, evaluate(outer, given)[0], rtol=1e-6)
        assert made.syncs - before == turns + 1


@pytest.mark.parametrize("number", range(len(Loop.samples)))
def test_loops_that_collect(number: int) -> None:
    """With room for as many as there can be, zeros behind, and their number."""
    outer, given = sample_graph(Loop, Loop.samples[number])
    _, condition, *rest = outer.inputs
    known = constant(given[outer.input_names[0]])
    bounded = bounded_loop(Loop(*_attributes(Loop.samples[number]))(known, condition, *rest))
    assert bounded is not None
    closed = Graph(
        (condition, *rest), tuple((f"y{i}", v) for i, v in enumerate(unpack(bounded))), "bounded"
    )
    check(closed, {n: given[n] for n in closed.input_names})


@pytest.mark.parametrize(
    ("op", "number"), [(op, n) for op in (If, Loop, Scan) for n in range(len(op.samples))]
)
def test_samples_whose_sizes_data_decide(op: type[Op], number: int) -> None:
    """A program that waits for data is compiled when they are there."""
    outer, given = sample_graph(op, op.samples[number])
    side = GpuBackend(Config(target="gpu:interpreter"), device(), lambda g: g, silent)
    found = compile_stages(outer, side).run(given)
    for a, b in zip(found, evaluate(outer, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def _attributes(sample: Any) -> tuple[Graph, int]:
    return sample.attributes["body"], sample.attributes["carried"]


SCANS = [4096, 0]
"""Pieces of work up to which turns are written out: all, none."""


@pytest.mark.parametrize("most", SCANS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scan_over_any_axis(monkeypatch: pytest.MonkeyPatch, axis: int, most: int) -> None:
    monkeypatch.setattr(control, "MAX_UNROLLED", most)
    shape = [4, 19]
    state, slice_ = value("f32[4, 19]", "s"), value("f32[4, 19]", "t")
    new = Add()(Mul()(state, constant(np.float32(0.5))), slice_)
    body = graph((state, slice_), new, Dot()(new, weight(19, 6)))
    whole = shape.copy()
    whole.insert(axis, 5)
    x = value(f"f32[{', '.join(map(str, whole))}]")
    scan = Scan(body, (axis,), (axis == 1,), (2 - axis,), (axis == 2,))
    last, collected = unpack(scan(value("f32[4, 19]", "h"), x))
    outer = graph_of(last, collected)
    check(outer)
    assert host_reads(compile_for_gpu(outer, device().arch)) == 0
    moved = Transpose((2, 1, 0))(collected)
    check(graph_of(Exp()(moved)))


def test_turns_on_dense_slices_copy_nothing() -> None:
    state, slice_ = value("f32[8]", "s"), value("f32[8]", "t")
    new = Add()(state, slice_)
    scan = Scan(graph((state, slice_), new, Mul()(new, slice_)), (0,), (False,), (0,), (True,))
    outer = graph_of(*unpack(scan(value("f32[8]", "h"), value("f32[6, 8]"))))
    module = compile_for_gpu(outer, device().arch)
    inside = compile_for_gpu(scan.body, device().arch)
    assert len(module.works) == 6 * len(inside.works)
    check(outer)


@pytest.mark.parametrize("most", SCANS)
@pytest.mark.parametrize("trips", [0, 1, 6])
def test_a_loop_of_a_known_count_collects(
    monkeypatch: pytest.MonkeyPatch, trips: int, most: int
) -> None:
    monkeypatch.setattr(control, "MAX_UNROLLED", most)
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[3, 17]", "s")
    new = Add()(s, Cast(f32)(i))
    body = graph((i, go, s), go, new, Dot()(new, weight(17, 5)), i)
    loop = Loop(body, 1)
    result = loop(constant(np.int64(trips)), constant(np.array(True)), value("f32[3, 17]"))
    check(graph_of(*unpack(result)))


@pytest.mark.parametrize("chosen", [True, False])
def test_loops_and_branches_inside_each_other(chosen: bool) -> None:
    c, s, w = value("bool[]", "c"), value("f32[3, 17]", "s"), value("f32[17, 17]", "w")
    inner = Loop(counting_loop(9.0), 1)
    looped = unpack(inner(constant(np.int64(4)), constant(np.array(True)), s, w))[0]
    choice = If(graph((s, w), looped), graph((s,), Exp()(s)))
    h = value("f32[3, 17]", "h")
    step = unpack(choice(c, h, w, h))[0]
    i, go = value("i64[]", "i"), value("bool[]", "go")
    body = graph((i, go, h, c, w), go, step)
    operands = value("f32[3, 17]"), value("bool[]", "c"), weight(17, 17)
    outer = Loop(body, 1)(value("i64[]", "n"), constant(np.array(True)), *operands)
    data = rng.normal(size=(3, 17)).astype(np.float32) / 4
    check(graph_of(*unpack(outer)), {"c": np.array(chosen), "x": data, "n": np.int64(2)})


def test_padded_windows_inside_a_loop() -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[1, 6, 5, 4]", "s")
    conv = Conv((1, 1), (1, 1), (1, 1), (1, 1), layout="channels_last")
    body = graph((i, go, s), go, conv(Add()(s, s), weight(4, 4, 3, 3)))
    loop = Loop(body, 1)(value("i64[]", "n"), constant(np.array(True)), value("f32[1, 6, 5, 4]"))
    outer = graph_of(*unpack(loop))
    check(outer, {**feeds(outer), "n": np.int64(3)})


def test_an_index_out_of_range_inside_a_branch_is_an_error() -> None:
    x, i = value("f32[5]", "a"), value("i64[3]", "b")
    branch = If(graph((x, i), Gather(0)(x, i)), graph((), constant(np.zeros(3, np.float32))))
    result = branch(value("bool[]", "c"), value("f32[5]"), value("i64[3]", "i"))
    made = executable(graph_of(*unpack(result)))
    given = {"x": np.zeros(5, np.float32), "i": np.array([0, 7, 1])}
    made.run(given | {"c": np.array(False)})
    with pytest.raises(ExecutionError, match="out of range"):
        made.run(given | {"c": np.array(True)})


def test_a_branch_that_cannot_run_fails_when_it_is_taken() -> None:
    x = value("f32[4]", "a")
    message = "sizes do not agree"
    kinds = [parse_type("f32[4]"), parse_type("f32[0]")]
    fails = Graph((), tuple((f"y{i}", Fail(message, t)()) for i, t in enumerate(kinds)), "fail")
    then = graph((x,), Exp()(x), Slice((0,), (0,), (1,))(x))
    result = If(then, fails)(value("bool[]", "c"), value("f32[4]"))
    made = executable(graph_of(*unpack(result)))
    given = {"x": np.zeros(4, np.float32)}
    assert made.run(given | {"c": np.array(True)})[0].tolist() == [1] * 4
    with pytest.raises(ExecutionError, match=message) as caught:
        made.run(given | {"c": np.array(False)})
    assert caught.value.given is None
    made.run(given | {"c": np.array(True)})
    nothing = If(graph((x,), Slice((0,), (0,), (1,))(x)), Graph((), fails.outputs[1:], "fail"))
    made = executable(graph_of(*unpack(nothing(value("bool[]", "c"), value("f32[4]")))))
    with pytest.raises(ExecutionError, match=message):
        made.run(given | {"c": np.array(False)})


def test_a_model_with_a_branch_and_a_recurrent_cell() -> None:
    folder = SHARED / "silero_vad_v6"
    if not folder.is_dir():
        pytest.skip("no silero_vad_v6 in ../shared/models beside the repository")
    session = monograph.load(folder / "model.onnx", target="reference")
    arrays = read_archive(folder / "io.npz")
    given, expected = split_archive(arrays, session.inputs, session.outputs)
    outer = optimise(session.bound_graph(given), environment=Environment(GPU_COST))
    made = executable(outer)
    names = [name for name, _ in outer.outputs]
    check(outer, given, every=False, expected=[expected[n] for n in names])
    assert host_reads(made.module) == 1
    with pytest.raises(ExecutionError, match="cannot run"):
        made.run(given | {"sr": np.array(8000)})


def test_kernels_inside_a_branch_are_measured_and_chosen() -> None:
    x = value("f32[7, 33]", "a")
    then = graph((x,), Dot()(x, weight(33, 20)))
    orelse = graph((), constant(np.zeros((7, 20), np.float32)))
    outer = graph_of(*unpack(If(then, orelse)(value("bool[]", "c"), value("f32[7, 33]"))))
    fake = FakeDevice()
    fake.clock = lambda number: 5.0 if number == 2 else 10.0 + number
    tuner = Tuner(fake, TuningCache(None))
    program = lower_for_gpu(outer)
    tuner.tune(program)
    chosen: dict[str, str] = {}

    def choose(step: Step, found: list[Candidate]) -> Candidate:
        way = tuner.chooser(program)(step, found)
        chosen[step.region.kind] = way.name
        return way

    compile_program(program, fake.arch, choose)
    (entry,) = (e for e in tuner.entries.values() if e["problem"].startswith("dot"))
    assert chosen["dot"] == entry["winner"] != entry["default"]


def test_a_library_sees_strided_values_inside_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(context: GpuContext) -> list[Candidate]:
        anchor = context.step.region.anchor
        assert anchor is not None
        operands = (*anchor.inputs, context.step.region.root)
        call = Call("matmul", operands, lambda x, y, z: z.copy_(x @ y))
        return [Candidate("library", lambda: (call,))]

    monkeypatch.setattr(dot, "candidates", library)
    x, w = value("f32[3, 4]", "a"), value("f32[4, 5]", "w")
    product = Dot()(Add()(x, x), w)
    then = graph((x, w), Concat(1)(Exp()(x), product))
    orelse = graph((), constant(np.zeros((3, 9), np.float32)))
    result = If(then, orelse)(value("bool[]", "c"), value("f32[3, 4]"), value("f32[4, 5]", "v"))
    outer = graph_of(*unpack(result))
    check(outer, {**feeds(outer), "c": np.array(True)})


def test_one_result_of_a_branch_alone() -> None:
    x = value("f32[4]", "a")
    branch = If(graph((x,), Exp()(x), x), graph((x,), x, Sub()(x, x)))
    result = branch(value("bool[1]", "c"), value("f32[4]"), value("f32[4]"))
    for chosen in (True, False):
        data = np.arange(4, dtype=np.float32)
        check(graph_of(Item(1)(result)), {"c": np.array([chosen]), "x": data})


def test_a_condition_is_not_read_while_a_caller_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for it would spoil what they record."""

    class Flag:
        is_cuda = True

        def item(self) -> bool:
            return False

    loop: Any = ConditionalLaunch(LaunchTree(REPEAT, (1,)))
    loop.bodies, loop.flag = [[]], Flag()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ExecutionError, match="caller's graph"):
        loop.launch(0)
    assert loop.syncs == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    loop.launch(0)
    assert loop.syncs == 1
