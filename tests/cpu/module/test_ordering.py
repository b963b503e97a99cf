"""Barriers stand between kernels that touch the same memory, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.llvm.module.compile import compile_program
from monograph.codegen.llvm.module.features import host_features
from monograph.codegen.llvm.module.memory import ARENA, ByteSpan
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.ir import Graph, Value, constant
from monograph.ops.attention import CacheUpdate
from monograph.ops.elementwise import Add
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.scatter import ScatterElements
from monograph.program.lowering import lower
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.against import check
from tests.rules.checks import graph_of, value

W = constant(np.random.default_rng(0).normal(size=(48, 48)).astype(np.float32))
V = constant(np.random.default_rng(1).normal(size=(48, 48)).astype(np.float32))


def barriers(graph: Graph, timed: bool = False) -> int:
    module = compile_program(lower(graph, CpuTarget()).whole, host_features(), 2, timed=timed)
    text = "\n".join(module.texts)
    stages = text.count("call i64 @next_part(ptr %context")
    # Between stages, or as calls where threads wait for each other inside kernels.
    return max(stages - 1, 0) + text.count("call void @barrier(ptr %context")


def products() -> tuple[Value, Value]:
    x, y = value("f32[8, 48]"), value("f32[8, 48]", "y")
    return Dot()(x, W), Dot()(y, V)


def test_kernels_that_share_nothing_do_not_wait() -> None:
    graph = graph_of(*products())
    assert barriers(graph) == 0
    check(graph, steps=2)


def test_a_kernel_waits_for_all_that_it_reads_at_once() -> None:
    first, second = products()
    graph = graph_of(Dot()(Add()(first, second), W))
    # The sum is part of the second product's kernel, which therefore waits for the first.
    assert barriers(graph) == len(lower(graph, CpuTarget()).whole.steps) - 1
    check(graph)


def test_memory_that_is_used_again_is_waited_for() -> None:
    """The arena is shared: a result may lie where an operand of the kernel before it was."""
    a, b = products()
    for _ in range(3):
        a, b = Dot()(a, W), Dot()(b, V)
    graph = graph_of(Add()(a, b))
    check(graph)
    program = lower(graph, CpuTarget()).whole
    assert 0 < barriers(graph) < len(program.steps)


def test_state_is_read_before_it_is_written_over() -> None:
    """The sum and the update do not depend on each other, but lie in the same memory."""
    past, new = value("f32[1, 2, 64, 16]", "past"), value("f32[1, 2, 1, 16]", "new")
    at = value("i64[1]", "at")
    present = CacheUpdate(2)(past, new, at)
    outputs = (("total", ReduceSum((3,))(past)), ("present", present))
    plain = Graph((past, new, at), outputs)
    donated = Graph((past, new, at), outputs, donations=(("present", "past"),))
    assert barriers(plain) == 0
    assert barriers(donated) == 1
    state = np.random.default_rng(0).normal(size=(1, 2, 64, 16)).astype(np.float32)
    feeds = {
        "past": state,
        "new": np.ones((1, 2, 1, 16), np.float32),
        "at": np.array([5]),
    }
    executable = compile_graph(donated, host_features(), 2)
    total, _ = executable.run(feeds)
    np.testing.assert_allclose(total, state.sum(3), rtol=1e-5, atol=1e-5)


def test_a_kernel_that_might_wait_inside_stands_for_no_barrier() -> None:
    """An update in place has no barrier of its own, though one that copies first has.

    What comes behind it still waits for what came before it.
    """
    x, state, at = value("f32[8, 48]"), value("f32[4, 48]", "s"), value("i64[1, 48]", "at")
    first = Dot()(x, W)
    second = Dot()(first, V)
    row = value("f32[1, 48]", "row")
    new = ScatterElements(0)(state, at, row)
    outputs = (("first", first), ("new", new), ("second", second))
    assert barriers(Graph((x, state, at, row), outputs, donations=(("new", "s"),))) == 1


def test_timed_steps_do_not_overlap() -> None:
    assert barriers(graph_of(*products()), timed=True) == 1


@pytest.mark.parametrize(
    ("other", "meets"),
    [
        (ByteSpan(ARENA, 64, 128), True),
        (ByteSpan(ARENA, 96, 97), True),
        (ByteSpan(ARENA, 128, 192), False),
        (ByteSpan(ARENA, 0, 64), False),
        (ByteSpan(3), False),
    ],
)
def test_spans(other: ByteSpan, meets: bool) -> None:
    own = ByteSpan(ARENA, 64, 128)
    assert own.meets(other) == meets
    assert other.meets(own) == meets
