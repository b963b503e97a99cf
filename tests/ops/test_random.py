"""Random ops: identity, repeatability, distribution."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, Op, constant, dtype, evaluate, parse_graph, tensor
from monograph.ops import elementwise as ew
from monograph.ops import random
from monograph.ops.deferred import deferred
from monograph.ops.random import RandomNormal, RandomUniform, fresh_uid

F32, F64, I64 = dtype("f32"), dtype("f64"), dtype("i64")


def draw(op: Op, times: int = 1) -> list[np.ndarray]:
    graph = Graph((), (("y", op()),))
    return [evaluate(graph, {})[0] for _ in range(times)]


def test_two_ops_never_merge() -> None:
    a = RandomUniform((2,), F32, seed=1.0, uid=fresh_uid())()
    b = RandomUniform((2,), F32, seed=1.0, uid=fresh_uid())()
    assert a is not b
    assert not a.closed
    assert not ew.Add()(a, constant(np.float32(1))).closed


def test_late_shapes_are_not_constant_either() -> None:
    n = Input("n", tensor(I64, 1))()
    value = deferred(RandomUniform, (), {"shape": n}, dtype=F32, uid=fresh_uid())
    assert not value.closed
    assert value.tensor.dtype == F32
    (result,) = evaluate(Graph((n,), (("y", value),)), {"n": np.array([5])})
    assert result.shape == (5,)
    with pytest.raises(ExecutionError, match="too large"):
        evaluate(Graph((n,), (("y", value),)), {"n": np.array([1 << 50])})


def test_a_seed_repeats_the_whole_series() -> None:
    first = draw(RandomUniform((4,), F64, seed=7.0, uid=fresh_uid()), 3)
    second = draw(RandomUniform((4,), F64, seed=7.0, uid=fresh_uid()), 3)
    np.testing.assert_array_equal(first, second)
    assert len({x.tobytes() for x in first}) == 3
    np.testing.assert_array_equal(first[0], np.random.RandomState(7).uniform(size=4))


def test_a_late_shape_goes_on_drawing() -> None:
    """Though it is another op in every run, which nobody keeps."""
    n = Input("n", tensor(I64, 1))()
    known = {"dtype": F64, "seed": 7.0, "uid": fresh_uid()}
    graph = Graph((n,), (("y", deferred(RandomUniform, (), {"shape": n}, **known)),))
    found = [evaluate(graph, {"n": np.array([4])})[0] for _ in range(3)]
    series = draw(RandomUniform((4,), F64, seed=7.0, uid=fresh_uid()), 3)
    np.testing.assert_array_equal(found, series)
    again = parse_graph(str(graph))
    del graph
    (fourth,) = draw(RandomUniform((4,), F64, seed=7.0, uid=known["uid"]))
    assert fourth.tobytes() not in {x.tobytes() for x in found}
    assert evaluate(again, {"n": np.array([4])})[0].tobytes() != fourth.tobytes()


def test_a_state_lives_as_long_as_something_draws_from_it() -> None:
    gc.collect()
    before = set(random._states)
    n, uid = Input("n", tensor(I64, 1))(), fresh_uid()
    held = [
        RandomUniform((2,), F64, seed=7.0, uid=uid),
        deferred(RandomUniform, (), {"shape": n}, dtype=F64, seed=7.0, uid=uid),
    ]
    first = draw(RandomUniform((2,), F64, seed=7.0, uid=uid))
    while held:
        assert set(random._states) == before | {uid}
        held.pop()
    gc.collect()
    assert set(random._states) == before
    np.testing.assert_array_equal(draw(RandomUniform((2,), F64, seed=7.0, uid=uid)), first)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))]
)
def test_a_copy_of_an_op_is_that_op(copied) -> None:
    op = RandomUniform((4,), F64, seed=7.0, uid=fresh_uid())
    same = RandomUniform((4,), F64, seed=7.0, uid=fresh_uid())
    found = [*draw(op), *draw(copied(op)), *draw(op)]
    np.testing.assert_array_equal(found, draw(same, 3))


@pytest.mark.parametrize("seed", [0.5, -3.0, 1e30])
def test_any_float_is_a_seed(seed: float) -> None:
    first, second = (draw(RandomNormal((4,), F64, seed=seed, uid=fresh_uid())) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    (other,) = draw(RandomNormal((4,), F64, seed=seed + abs(seed), uid=fresh_uid()))
    assert not np.array_equal(first[0], other)


def test_without_a_seed_ops_and_turns_differ() -> None:
    drawn = [x for _ in range(2) for x in draw(RandomUniform((4,), F64, uid=fresh_uid()), 2)]
    assert len({x.tobytes() for x in drawn}) == 4


def test_distributions() -> None:
    (even,) = draw(RandomUniform((20_000,), F32, low=-2.0, high=4.0, seed=3.0, uid=fresh_uid()))
    assert even.dtype == np.float32
    assert -2 <= even.min() < -1.99
    assert 3.99 < even.max() <= 4
    # Standard errors: 6 / sqrt(12 * 20000) = 0.012 and 2 / sqrt(20000) = 0.014.
    assert abs(even.mean() - 1) < 0.06
    (bell,) = draw(RandomNormal((20_000,), F32, mean=5.0, scale=2.0, seed=3.0, uid=fresh_uid()))
    assert abs(bell.mean() - 5) < 0.07
    assert abs(bell.std() - 2) < 0.05


def test_integers_are_refused() -> None:
    with pytest.raises(InferError, match="element type not accepted"):
        RandomUniform((2,), I64)()


@pytest.mark.parametrize(
    "op",
    [
        RandomUniform((2,), F32, low=float("-inf")),
        RandomUniform((2,), F32, high=float("nan")),
        RandomUniform((2,), F64, low=-1e308, high=1e308),
        RandomNormal((2,), F32, scale=-1.0),
        RandomNormal((2,), F32, scale=float("nan")),
    ],
    ids=str,
)
def test_what_is_no_distribution_is_refused(op: RandomUniform | RandomNormal) -> None:
    with pytest.raises(InferError, match="finite"):
        op()
