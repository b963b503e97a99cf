"""Random numbers, compiled: those of the reference, drawn anew every time."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest

import monograph
from monograph.ir import evaluate
from monograph.ir.dtype import bf16, f16, f32, f64
from monograph.ops import random
from monograph.ops.elementwise import Add, Exp
from monograph.ops.random import Random, RandomNormal, fresh_uid
from monograph.ops.shape import Transpose
from tests.cpu.drawing import check_a_branch, check_a_loop, normal, uniform
from tests.cpu.dynamic.staging import compiled
from tests.cpu.indexing.moving import FEATURES
from tests.rules.checks import graph_of, value


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("seed", [0.0, 7.0, 2.5, 4294967295.0, -1.0])
@pytest.mark.parametrize("draw", [uniform, normal])
def test_the_numbers_are_those_of_the_reference(features, seed: float, draw) -> None:
    """Two ops of one seed draw the same, turn by turn."""
    for shape in ((), (0,), (3,), (5, 301)):
        for dtype in (f64, f32, f16, bf16):
            wanted = graph_of(draw(shape, dtype, seed))
            executable = compiled(graph_of(draw(shape, dtype, seed)), features=features)
            assert not executable.host_steps
            for _ in range(3):
                (expected,), (given,) = evaluate(wanted, {}), executable.run({})
                assert given.dtype == expected.dtype
                assert given.shape == expected.shape
                assert given.tobytes() == expected.tobytes()


def test_one_op_goes_on_whoever_evaluates_it() -> None:
    shared, same = uniform((4,), seed=11.0), uniform((4,), seed=11.0)
    graph, wanted = graph_of(shared), graph_of(same)
    executable, other = compiled(graph), compiled(graph)
    drawn = [executable.run({}), evaluate(graph, {}), other.run({}), executable.run({})]
    np.testing.assert_array_equal(drawn, [evaluate(wanted, {}) for _ in range(4)])


def test_without_a_seed_every_draw_differs() -> None:
    first, second = uniform((50,)), uniform((50,))
    executable = compiled(graph_of(first, second))
    a, b = executable.run({})
    c, d = executable.run({})
    assert len({x.tobytes() for x in (a, b, c, d)}) == 4


def test_a_draw_fuses_with_what_follows() -> None:
    """One kernel takes the turn, and one does all else; views are no obstacle."""
    moved = Transpose((1, 0))(uniform((9, 7), seed=4.0))
    graph = graph_of(Exp()(Add()(moved, value("f32[7, 9]"))))
    executable = compiled(graph)
    assert executable.kernels == 2
    x = np.ones((7, 9), np.float32)
    (drawn,) = evaluate(graph_of(uniform((9, 7), seed=4.0)), {})
    np.testing.assert_allclose(executable.run({"x": x})[0], np.exp(drawn.T + 1), 1e-6)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_one_draw_serves_all_that_follows(threads: int) -> None:
    drawn = normal((7, 9))
    graph = graph_of(drawn, Exp()(drawn), Add()(drawn, value("f32[9]")))
    executable = compiled(graph, threads=threads)
    ones = np.ones(9, np.float32)
    x, y, z = executable.run({"x": ones})
    np.testing.assert_allclose(y, np.exp(x), 1e-6)
    np.testing.assert_array_equal(z, x + 1)


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_draws_in_every_iteration(known: bool) -> None:
    check_a_loop(compiled, known)


def test_a_branch_that_is_not_taken_does_not_draw() -> None:
    check_a_branch(compiled)


NOISY = """
<ir_version: 9, opset_import: ["" : 18]>
noisy (float[N] x) => (float[N] y, float[K, M] z)
{
    r = RandomNormalLike <seed = 3.0> (x)
    y = Add(x, r)
    found = NonZero(x)
    places = Cast <to = 1> (found)
    z = RandomUniformLike (places)
}
"""


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_states_go_with_the_session_that_drew_from_them(target: str) -> None:
    """Also those of shapes that made room for others, and of sizes that data decide."""
    source = onnx.parser.parse_model(NOISY)
    gc.collect()
    before = len(random._turns)
    series = []
    for _ in range(3):
        session = monograph.load(source, target=target, cache_dir="", max_cached_shapes=1)
        ones = {"x": np.ones(4, np.float32)}
        series.append([session.run(ones) for _ in range(3)])
        most = len(random._turns)
        for size in range(5, 9):
            session.run({"x": np.ones(size, np.float32)})
        gc.collect()
        assert before < len(random._turns) <= most
        del session
        gc.collect()
        assert len(random._turns) == before
    for y in zip(*[[y for y, _ in found] for found in series], strict=True):
        np.testing.assert_array_equal(y[1:], y[:-1])
    assert len({z.tobytes() for found in series for _, z in found}) == 9


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_new_shapes_go_on_with_the_series(target: str) -> None:
    """Also those that made room for others in between."""
    session = monograph.load(
        onnx.parser.parse_model(NOISY), target=target, cache_dir="", max_cached_shapes=1
    )
    sizes = (4, 6, 4, 5)
    drawn = [session.run({"x": np.zeros(n, np.float32)})[0] for n in sizes]
    series = graph_of(RandomNormal((4,), f32, seed=3.0, uid=fresh_uid())())
    for found in drawn:
        np.testing.assert_array_equal(found[:4], evaluate(series, {})[0])


def test_every_random_op_is_covered() -> None:
    assert {c.__name__ for c in Random.__subclasses__()} == {"RandomNormal", "RandomUniform"}
