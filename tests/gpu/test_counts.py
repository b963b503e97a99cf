"""The number of kernels of a run: reported and launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.codegen.triton.module.kernel import Call, Candidate
from monograph.codegen.triton.module.launch import ARCHES
from monograph.ir import Graph, constant, unpack
from monograph.ops.control import If, Loop, Scan
from monograph.ops.elementwise import Add, Exp, Less, Mul, Sub
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, Slice
from monograph.program.program import Step
from monograph.runtime.gpu import executable as executables
from monograph.runtime.gpu.capture.control import BRANCH, REPEAT, LaunchTree, count_kernels
from monograph.runtime.gpu.cross_compiler import OfflineExecutable
from monograph.runtime.gpu.driver.devices import Interpreter, Record
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu import gpu_models
from tests.rules.checks import graph_of, value

pytestmark = gpu_models.INTERPRETED
rng = np.random.default_rng(4)


class Counting(Interpreter):
    """The interpreter, which counts what it is given to do."""

    def __init__(self) -> None:
        self.launched = 0

    def record(self, launch: Any, arguments: Any, stem: str) -> Record:
        return self.counted(super().record(launch, arguments, stem))

    def counted(self, record: Any) -> Any:
        plain = record.launch

        def launch(stream: int) -> None:
            self.launched += 1
            plain(stream)

        record.launch = launch
        return record


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    library = executables.LibraryRecord
    monkeypatch.setattr(executables, "LibraryRecord", lambda *a: made.counted(library(*a)))
    return made


def counts(
    graph: Graph, device: Counting, way: str = "", streams: int = 1, **given: Any
) -> tuple[int, int]:
    """The kernels that an executable names, and those of a run by the candidates of a name."""

    def choose(step: Step, found: list[Candidate]) -> Candidate:
        return next((c for c in found if way and way in c.name), found[0])

    made = GpuExecutable(compile_for_gpu(graph, device.arch, choose, streams=streams), device)
    feeds = {
        n: np.asarray(rng.normal(size=v.tensor.static)).astype(v.dtype.numpy)
        for n, v in zip(graph.input_names, graph.inputs, strict=True)
    }
    before = device.launched
    made.run(feeds | {name: np.asarray(x) for name, x in given.items()})
    return made.kernels, device.launched - before


def product(depth: int = 512) -> Graph:
    return graph_of(Exp()(Dot()(value(f"f32[20, {depth}]"), value(f"f32[{depth}, 16]", "y"))))


def test_streams_change_nothing(device: Counting) -> None:
    x = value("f32[20, 20]")
    graph = graph_of(*(Dot()(x, value("f32[20, 20]", n)) for n in "abcd"))
    assert counts(graph, device) == counts(graph, device, streams=4) == (4, 4)


def test_a_split_sum(device: Counting) -> None:
    assert counts(product(), device, "split 4") == (1, 1)


def test_a_sum_of_two_launches(device: Counting) -> None:
    graph = graph_of(ReduceSum((1,))(value("f32[2, 70000]")))
    named, launched = counts(graph, device)
    assert named == launched > 1


def test_a_librarys_call_and_what_follows_it(device: Counting) -> None:
    assert counts(product(), device, "library") == (2, 2)
    plain = graph_of(Dot()(value("f32[20, 33]"), value("f32[33, 16]", "y")))
    assert counts(plain, device, "library") == (1, 1)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_counts_by_its_longer_side(device: Counting, chosen: bool) -> None:
    x = value("f32[5, 33]", "a")
    longer = Exp()(Dot()(Dot()(x, value("f32[33, 33]", "u")), value("f32[33, 33]", "u")))
    then = Graph((x, value("f32[33, 33]", "u")), (("r", longer),))
    orelse = Graph((x,), (("r", Sub()(x, x)),))
    xs, us = value("f32[5, 33]"), value("f32[33, 33]", "y")
    graph = graph_of(*unpack(If(then, orelse)(value("bool[]", "c"), xs, us, xs)))
    named, launched = counts(graph, device, c=chosen)
    if chosen:
        assert named == launched
    else:
        assert named == launched + 1


def test_a_loop_of_a_known_count(device: Counting) -> None:
    state, slice_ = value("f32[5]", "s"), value("f32[5]", "v")
    new = Add()(Mul()(state, state), slice_)
    inner = Graph((state, slice_), (("n", new), ("o", Exp()(new))))
    scan = Scan(inner, (0,), (False,), (0,), (False,))
    graph = graph_of(*unpack(scan(value("f32[5]"), value("f32[7, 5]", "z"))))
    named, launched = counts(graph, device)
    assert named == launched >= 7


def test_a_loop_that_data_end_counts_one_turn(device: Counting) -> None:
    i, go, state = value("i64[]", "i"), value("bool[]", "go"), value("f32[3]", "s")
    new = Add()(state, constant(np.float32(1)))
    first = Reshape(())(Slice((0,), (1,), (1,))(new))
    inner = Graph(
        (i, go, state), (("go", Less()(first, constant(np.float32(9)))), ("new", new)), "body"
    )
    loop = Loop(inner, 1)(value("i64[]", "n"), value("bool[]", "yes"), value("f32[3]"))
    graph = graph_of(*unpack(loop))
    named, once = counts(graph, device, n=1, yes=True, x=np.zeros(3, "f"))
    assert named == once
    named, thrice = counts(graph, device, n=3, yes=True, x=np.zeros(3, "f"))
    assert thrice > named


def test_the_same_without_a_device() -> None:
    x = value("f32[20, 20]")
    graph = graph_of(Concat(0)(Exp()(x), x), Dot()(x, x), Dot()(x, x))
    module = compile_for_gpu(graph, ARCHES["sm_90"], streams=3)
    assert not any(isinstance(b.work, Call) for b in module.works)
    made = OfflineExecutable(module, {})
    assert made.kernels == made.launches == len(module.works) > 2


def test_loops_and_branches_inside_each_other() -> None:
    plain = LaunchTree()
    branch = LaunchTree(BRANCH, (2, 1))
    loop = LaunchTree(REPEAT, (2,), 5)
    endless = LaunchTree(REPEAT, (1,))
    assert count_kernels([plain, branch, plain, plain, plain, plain]) == 4
    assert count_kernels([loop, branch, plain, plain, plain, plain, plain]) == 5 * 3 + 1
    assert count_kernels([endless, loop, plain, plain]) == 10
    assert count_kernels([]) == 0
