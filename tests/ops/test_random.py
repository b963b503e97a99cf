"""Random ops: identity, repeatability, distribution."""

from __future__ import annotations

import copy
import gc
import math
import os
import pickle

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Graph, Input, Op, constant, dtype, evaluate, parse_graph, tensor
from monograph.ops import elementwise as ew
from monograph.ops import random
from monograph.ops.deferred import deferred
from monograph.ops.random import RandomNormal, RandomUniform, fresh_uid
from monograph.ops.scalar import Scalar

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
    before = set(random._turns)
    n, uid = Input("n", tensor(I64, 1))(), fresh_uid()
    held = [
        RandomUniform((2,), F64, seed=7.0, uid=uid),
        deferred(RandomUniform, (), {"shape": n}, dtype=F64, seed=7.0, uid=uid),
    ]
    first = draw(RandomUniform((2,), F64, seed=7.0, uid=uid))
    while held:
        assert set(random._turns) == before | {(uid, 7.0)}
        held.pop()
    gc.collect()
    assert set(random._turns) == before
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


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_words_are_those_that_the_authors_publish(counter, key, words: str) -> None:
    """The vectors of Random123 for philox4x32 with 10 rounds."""
    given = [Scalar(np.array([w], np.uint64), dtype("u64")) for w in counter]
    made = random.philox(random.NumpyScalars(), given, key[0] | key[1] << 32)
    assert " ".join(f"{int(w.reg[0]):08x}" for w in made) == words


def test_a_number_is_a_function_of_seed_turn_and_index() -> None:
    op = RandomUniform((3,), F64, seed=5.0, uid=fresh_uid())
    drawn = draw(op, 2)[1]
    for index, x in enumerate(drawn):
        given = [Scalar(np.array([w], np.uint64), dtype("u64")) for w in (index, 0, 1, 0)]
        low, high = (int(w.reg[0]) for w in random.philox(random.NumpyScalars(), given, 5)[:2])
        assert x == ((high << 32 | low) >> 11) / 2**53


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (-3.0, 0.1), (2.0, 1.0), (1.5, 1.5)])
def test_uniform_numbers_stay_below_the_upper_bound(kind: str, low: float, high: float) -> None:
    (x,) = draw(RandomUniform((50_000,), dtype(kind), low, high, seed=1.0, uid=fresh_uid()))
    x = x.astype(np.float64)
    if low == high:
        assert (x == low).all()
        return
    assert abs(x.mean() - (low + high) / 2) < 6 * abs(high - low) / np.sqrt(12 * x.size) + 1e-3
    assert x.max() < high if low < high else x.min() > high
    assert x.min() >= low if low < high else x.max() <= low


def test_numbers_have_the_bits_of_their_type() -> None:
    for kind, bits in (("f32", 24), ("f64", 53)):
        (x,) = draw(RandomUniform((20_000,), dtype(kind), seed=9.0, uid=fresh_uid()))
        scaled = x.astype(np.float64) * 2.0**bits
        assert (scaled == np.floor(scaled)).all()
        assert (scaled % 2 == 1).mean() == pytest.approx(0.5, abs=0.02)


def test_normal_numbers_are_normal() -> None:
    """Moments, and the distance of Kolmogorov and Smirnov; each within 5 standard errors."""
    n = 100_000
    (x,) = draw(RandomNormal((n,), F64, seed=11.0, uid=fresh_uid()))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 5 * np.sqrt(variance / n)
    below = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in np.sort(x)])
    assert np.abs(below - (np.arange(n) + 0.5) / n).max() < 1.95 / np.sqrt(n)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / np.sqrt(n)


def test_turns_and_seeds_are_independent() -> None:
    first = draw(RandomNormal((20_000,), F64, seed=1.0, uid=fresh_uid()), 2)
    drawn = [*first, *draw(RandomNormal((20_000,), F64, seed=2.0, uid=fresh_uid()))]
    correlation = np.corrcoef(drawn) - np.eye(3)
    assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_draws_other_numbers_without_a_seed() -> None:
    ops = [RandomUniform((4,), F64, seed=seed, uid=fresh_uid()) for seed in (None, 7.0)]
    reader, writer = os.pipe()
    child = os.fork()
    drawn = b"".join(draw(op)[0].tobytes() for op in ops)
    if not child:
        os.write(writer, drawn)
        os._exit(0)
    os.waitpid(child, 0)
    given = os.read(reader, len(drawn))
    os.close(reader)
    os.close(writer)
    assert given[:32] != drawn[:32]
    assert given[32:] == drawn[32:]


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
