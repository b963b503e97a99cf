"""Random numbers, compiled: those of the reference, drawn anew every time."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ir import Graph, Value, constant, evaluate, unpack
from monograph.ir.dtype import DType, f16, f32, f64
from monograph.ops.control import If, Loop
from monograph.ops.elementwise import Add, Exp
from monograph.ops.random import Random, RandomNormal, RandomUniform, fresh_uid
from tests.cpu.moving import FEATURES
from tests.cpu.staging import body, compiled
from tests.rules.checks import graph_of, value


def uniform(shape: tuple[int, ...], dtype: DType = f32, seed: float | None = None) -> Value:
    return RandomUniform(shape, dtype, -2.0, 3.0, seed, fresh_uid())()


def normal(shape: tuple[int, ...], dtype: DType = f32, seed: float | None = None) -> Value:
    return RandomNormal(shape, dtype, 1.0, 0.5, seed, fresh_uid())()


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("seed", [0.0, 7.0, 2.5, 4294967295.0, -1.0])
@pytest.mark.parametrize("draw", [uniform, normal])
def test_the_numbers_are_those_of_the_reference(features, seed: float, draw) -> None:
    """Two ops of one seed draw the same, turn by turn."""
    for shape in ((), (0,), (3,), (5, 301)):
        for dtype, close in ((f64, 4e-16), (f32, 0), (f16, 0)):
            wanted = graph_of(draw(shape, dtype, seed))
            executable = compiled(graph_of(draw(shape, dtype, seed)), features=features)
            assert not executable.host_steps
            for _ in range(3):
                (expected,), (given,) = evaluate(wanted, {}), executable.run({})
                assert given.dtype == expected.dtype
                assert given.shape == expected.shape
                np.testing.assert_allclose(
                    given.astype(np.float64), expected.astype(np.float64), close, close
                )


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


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_one_draw_serves_all_that_follows(threads: int) -> None:
    drawn = normal((7, 9))
    graph = graph_of(drawn, Exp()(drawn), Add()(drawn, value("f32[9]")))
    executable = compiled(graph, threads=threads)
    ones = np.ones(9, np.float32)
    x, y, z = executable.run({"x": ones})
    np.testing.assert_allclose(y, np.exp(x), 1e-6)
    np.testing.assert_array_equal(z, x + 1)


def drawing_loop(trips: Value) -> Graph:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[4]", "s")
    drawn = normal((4,), seed=3.0)
    step = body((i, go, s), go, Add()(s, drawn), drawn)
    return graph_of(*unpack(Loop(step, 1)(trips, constant(np.array(True)), value("f32[4]"))))


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_draws_in_every_iteration(known: bool) -> None:
    def trips() -> Value:
        return constant(np.int64(3)) if known else value("i64[]", "n")

    wanted, executable = drawing_loop(trips()), compiled(drawing_loop(trips()))
    feeds = {"x": np.zeros(4, np.float32)} | ({} if known else {"n": np.int64(3)})
    for _ in range(2):
        for a, b in zip(executable.run(feeds), evaluate(wanted, feeds), strict=True):
            np.testing.assert_allclose(a, b, 1e-6)
    assert not executable.host_steps


def test_a_branch_that_is_not_taken_does_not_draw() -> None:
    def branching() -> Graph:
        sides = If(body((), uniform((3,), seed=5.0)), body((), constant(np.zeros(3, np.float32))))
        return graph_of(*unpack(sides(value("bool[]", "c"))))

    wanted, executable = branching(), compiled(branching())
    for side in (True, False, False, True):
        feeds = {"c": np.array(side)}
        np.testing.assert_array_equal(executable.run(feeds), evaluate(wanted, feeds))


def test_every_random_op_is_covered() -> None:
    assert {c.__name__ for c in Random.__subclasses__()} == {"RandomNormal", "RandomUniform"}
