"""Random numbers by the GPU target's kernels: those of the reference, drawn anew every time."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from monograph.config import make_config
from monograph.ir import Graph, constant, evaluate, unpack
from monograph.ir.dtype import f16, f32, f64
from monograph.ops import random
from monograph.ops.control import Loop
from monograph.ops.deferred import Deferred
from monograph.ops.elementwise import Add, Exp
from monograph.ops.random import Random, fresh_uid
from monograph.runtime.dynamic.staged import Executable, compile_stages
from monograph.runtime.gpu import memory
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.target import GpuBackend
from monograph.runtime.gpu.tensors import raw
from monograph.runtime.progress import silent
from tests.cpu.drawing import check_a_branch, check_a_loop, normal, uniform
from tests.cpu.dynamic.staging import body
from tests.gpu.against import device
from tests.rules.checks import graph_of, value


def compiled(graph: Graph) -> Executable:
    config = make_config(target="gpu:interpreter", cache_dir="", tune="off", capture="off")
    return compile_stages(graph, GpuBackend(config, device(), lambda g: g, silent))


@pytest.mark.parametrize("seed", [0.0, 2.5, 4294967295.0])
@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize(("shape", "dtype"), [((), f64), ((3,), f16), ((5, 301), f32)])
def test_the_numbers_are_those_of_the_reference(draw, seed, shape, dtype) -> None:
    """Two ops of one seed draw the same, turn by turn."""
    # A device may round a product and a sum once.
    close = 1e-15 if dtype == f64 and not device().arch.interpreted else 0
    wanted, executable = (
        graph_of(draw(shape, dtype, seed)),
        compiled(graph_of(draw(shape, dtype, seed))),
    )
    assert isinstance(executable, GpuProgram)  # a plain program: it can be captured
    for _ in range(3):
        (expected,), (given,) = evaluate(wanted, {}), executable.run({})
        assert given.dtype == expected.dtype
        assert given.shape == expected.shape
        np.testing.assert_allclose(
            given.astype(np.float64), expected.astype(np.float64), close, close
        )


def test_one_op_goes_on_whichever_executable_draws() -> None:
    shared, same = uniform((4,), seed=11.0), uniform((4,), seed=11.0)
    graph, wanted = graph_of(shared), graph_of(same)
    executable, other = compiled(graph), compiled(graph)
    drawn = [e.run({}) for e in (executable, other, executable)]
    np.testing.assert_array_equal(drawn, [evaluate(wanted, {}) for _ in range(3)])


def test_one_op_goes_on_when_what_drew_from_it_is_gone() -> None:
    graph, wanted = graph_of(uniform((4,), seed=11.0)), graph_of(uniform((4,), seed=11.0))
    (op,) = (v.op for v in graph.values)
    assert isinstance(op, Random)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(graph).run({}), evaluate(wanted, {}))
        gc.collect()
        assert op.turns in memory._known


@pytest.mark.parametrize("seed", [None, 7.0])
def test_a_state_goes_with_all_that_draws_from_it(seed: float | None) -> None:
    gc.collect()
    before = len(memory._known), len(random._turns)
    for _ in range(3):
        executable = compiled(graph_of(uniform((4,), seed=seed)))
        executable.run({})
        gc.collect()  # the executable is all that draws from it now
        assert (len(memory._known), len(random._turns)) == (before[0] + 1, before[1] + 1)
        del executable
        gc.collect()
        assert (len(memory._known), len(random._turns)) == before


def test_without_a_seed_every_draw_differs() -> None:
    executable = compiled(graph_of(uniform((50,)), uniform((50,))))
    found = [x.tobytes() for _ in range(2) for x in executable.run({})]
    assert len(set(found)) == 4


def test_one_draw_serves_all_that_follows() -> None:
    drawn = normal((7, 9))
    executable = compiled(graph_of(drawn, Exp()(drawn), Add()(drawn, value("f32[9]"))))
    x, y, z = executable.run({"x": np.ones(9, np.float32)})
    np.testing.assert_allclose(y, np.exp(x), 1e-6)
    np.testing.assert_array_equal(z, x + 1)


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_draws_in_every_iteration(known: bool) -> None:
    check_a_loop(compiled, known)


def test_a_branch_that_is_not_taken_does_not_draw() -> None:
    check_a_branch(compiled)


def test_what_waits_for_a_shape_goes_on_drawing() -> None:
    """A loop that draws, on a state whose shape is data; numbers as many as the data say."""

    def waiting() -> Graph:
        i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[?]", "s")
        step = body((i, go, s), go, Add()(s, normal((1,), seed=8.0)))
        shape = value("i64[1]", "n")
        start = Deferred("reshape", ("shape",))(value("f32[2, 2]"), shape)
        known = (("dtype", f32), ("seed", 4.0), ("uid", fresh_uid()))
        drawn = Deferred("random_uniform", ("shape",), known)(shape)
        loop = Loop(step, 1)(constant(np.int64(2)), constant(np.array(True)), start)
        return graph_of(*unpack(loop), drawn)

    wanted, executable = waiting(), compiled(waiting())
    feeds = {"x": np.ones((2, 2), np.float32), "n": np.array([4])}
    for _ in range(2):
        for a, b in zip(executable.run(feeds), evaluate(wanted, feeds), strict=True):
            np.testing.assert_allclose(a, b, 1e-6)
    assert not executable.host_steps


def test_every_launch_counts_once_at_a_fixed_address() -> None:
    """As a captured graph does it: nothing but the outputs is the caller's memory."""
    executable, wanted = compiled(graph_of(uniform((4,), seed=6.0))), uniform((4,), seed=6.0)
    assert isinstance(executable, GpuProgram)
    (slot,) = executable.layout.outputs
    assert not executable.layout.inputs
    out = torch.zeros(4, dtype=torch.float32, device=device().place)
    for _ in range(3):
        executable.launch({f"output:{slot.name}": raw(out)})
        (expected,) = evaluate(graph_of(wanted), {})
        np.testing.assert_array_equal(out.cpu().numpy(), expected)
