"""Attention, rotary embedding and cache updates against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, TensorType, Type, parse_tensor_type
from monograph.ir.dtype import f32
from monograph.ir.sizes import SizeScope
from monograph.ops.attention import LENGTHS, MASK, SINKS, Attention, CacheUpdate, Rope


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def typed(op: Any, *types: str) -> Type:
    return op(*(Input(f"x{i}", parse_tensor_type(t))() for i, t in enumerate(types))).type


def looped(q: Any, k: Any, v: Any, seen: Any, scale: float, cap: float = 0.0) -> np.ndarray:
    """One query at a time; `seen(b, i)` lists the keys that query i of batch row b sees."""
    result = np.zeros((*q.shape[:3], v.shape[3]))
    share = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        keys = seen(b, i)
        scores = [q[b, h, i] @ k[b, h // share, j] * scale for j in keys]
        if cap:
            scores = [cap * math.tanh(s / cap) for s in scores]
        weights = np.exp(scores)
        for j, w in zip(keys, weights, strict=True):
            result[b, h, i] += w / weights.sum() * v[b, h // share, j]
    return result


def test_heads_share_keys_and_values_in_runs() -> None:
    q, k, v = data(2, 4, 3, 8), data(2, 2, 5, 8), data(2, 2, 5, 6)
    expected = looped(q, k, v, lambda b, i: range(5), 1 / math.sqrt(8))
    np.testing.assert_allclose(Attention().reference(q, k, v), expected, rtol=1e-12)


def test_causal_places_the_last_query_at_the_last_key() -> None:
    q, k, v = data(1, 1, 2, 4), data(1, 1, 5, 4), data(1, 1, 5, 4, seed=1)
    expected = looped(q, k, v, lambda b, i: range(i + 4), 0.5, cap=2.0)
    y = Attention(0.5, causal=True, softcap=2.0).reference(q, k, v)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_lengths_move_queries_and_a_window_follows_them() -> None:
    q, k, v = data(2, 1, 2, 4), data(2, 1, 6, 4), data(2, 1, 6, 4, seed=1)
    lengths = np.array([6, 3])
    expected = looped(
        q, k, v, lambda b, i: range(max(0, lengths[b] - 3 + i), lengths[b] - 1 + i), 0.5
    )
    y = Attention(0.5, True, 2, extra=(LENGTHS,)).reference(q, k, v, lengths)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_masks_hide_or_add() -> None:
    q, k, v = data(1, 2, 2, 4), data(1, 2, 3, 4), data(1, 2, 3, 4, seed=1)
    hide = np.array([[True, False, True], [False, True, True]])
    expected = looped(q, k, v, lambda b, i: np.flatnonzero(hide[i]), 0.5)
    op = Attention(0.5, extra=(MASK,))
    np.testing.assert_allclose(op.reference(q, k, v, hide), expected, rtol=1e-12)
    added = np.where(hide, 0.0, -np.inf)
    np.testing.assert_allclose(op.reference(q, k, v, added), expected, rtol=1e-12)
    # Adding the same to every key of a query changes nothing.
    even = op.reference(q, k, v, np.full((2, 1), 3.0))
    np.testing.assert_allclose(even, Attention(0.5).reference(q, k, v), rtol=1e-12)


def test_a_query_that_sees_no_key_gives_zero() -> None:
    q, k, v = data(1, 1, 2, 4), data(1, 1, 3, 4), data(1, 1, 3, 4)
    mask = np.array([[False] * 3, [True] * 3])
    y = Attention(extra=(MASK,)).reference(q, k, v, mask)
    assert not y[0, 0, 0].any()
    assert y[0, 0, 1].all()
    nothing = Attention(extra=(LENGTHS,)).reference(q, k, v, np.array([0]))
    assert not nothing.any()


def arithmetic(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """softmax(q kᵀ + mask) v, written out."""
    scores = q @ k.swapaxes(2, 3) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


LOWEST = float(np.finfo(np.float32).min)
FULLY_MASKED = [
    [[-np.inf] * 3, [0.0, -np.inf, 1.0]],
    [[LOWEST] * 3, [0.0, LOWEST, LOWEST]],
    [[-np.inf, LOWEST, -np.inf], [-np.inf] * 3],
    [[LOWEST, LOWEST, -np.inf], [np.inf, 0.0, 0.0]],
]


@pytest.mark.parametrize("mask", FULLY_MASKED)
def test_a_fully_masked_query_gives_nan_where_the_arithmetic_does(mask: list[list[float]]) -> None:
    q, k, v = data(1, 1, 2, 4), data(1, 1, 3, 4), data(1, 1, 3, 4, seed=1)
    added = np.array(mask)
    with np.errstate(all="ignore"):
        expected = arithmetic(q, k, v, added)
        y = Attention(1.0, extra=(MASK,), masked_nan=True).reference(q, k, v, added)
        zero = Attention(1.0, extra=(MASK,)).reference(q, k, v, added)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    hidden = np.isneginf(added).all(-1)
    np.testing.assert_array_equal(zero[0, 0, hidden], 0.0)
    np.testing.assert_allclose(zero[0, 0, ~hidden], expected[0, 0, ~hidden], rtol=1e-12)


def test_fully_masked_queries_of_all_kinds() -> None:
    q, k, v = data(1, 1, 5, 4), data(1, 1, 3, 4), data(1, 1, 3, 4, seed=1)
    hidden = np.zeros((1, 3), bool)
    sinks = np.array([0.0])
    with np.errstate(all="ignore"):
        causal = Attention(causal=True, masked_nan=True).reference(q, k, v)
        length = Attention(extra=(LENGTHS,), masked_nan=True).reference(q, k, v, np.array([0]))
        masked = Attention(extra=(MASK,), masked_nan=True).reference(q, k, v, hidden)
        sunk = Attention(extra=(MASK, SINKS), masked_nan=True).reference(q, k, v, hidden, sinks)
        nothing = Attention(masked_nan=True).reference(q, k[:, :, :0], v[:, :, :0])
    np.testing.assert_array_equal(np.isnan(causal[0, 0, :, 0]), [True, True, False, False, False])
    assert np.isnan(length).all()
    assert np.isnan(masked).all()
    assert not sunk.any()  # the sink takes all of the softmax
    assert nothing.shape == (1, 1, 5, 4)
    assert not nothing.any()  # an empty sum


def test_sinks_take_their_share_of_the_softmax() -> None:
    q, k, v = np.zeros((1, 2, 1, 4)), np.zeros((1, 1, 3, 4)), np.ones((1, 1, 3, 4))
    y = Attention(extra=(SINKS,)).reference(q, k, v, np.array([0.0, math.log(3)]))
    np.testing.assert_allclose(y[0, :, 0, 0], [3 / 4, 3 / 6])


def test_scores_too_large_for_exp_do_not_overflow() -> None:
    q, k, v = np.full((1, 1, 1, 4), 1e3), np.full((1, 1, 2, 4), 1e3), data(1, 1, 2, 4)
    np.testing.assert_allclose(Attention(1.0).reference(q, k, v)[0, 0, 0], v[0, 0].mean(0))


def test_the_scale_is_settled_when_the_size_is_known() -> None:
    types = [parse_tensor_type("f32[1, 1, S, 16]")] * 3
    assert Attention().canonical(*types) == Attention(0.25)


def test_types_with_symbols() -> None:
    k, v = "f32[B, 2, T, 8]", "f32[B, 2, T, 6]"
    assert str(typed(Attention(), "f32[B, 4, S, 8]", k, v)) == "f32[B, 4, S, 6]"


@pytest.mark.parametrize(("op", "types", "words"), [
    (Attention(), ("f32[1, 3, 2, 4]", "f32[1, 2, 2, 4]", "f32[1, 2, 2, 4]"), "no multiple"),
    (Attention(), ("f32[1, 3, 4]", "f32[1, 3, 4]", "f32[1, 3, 4]"), "rank 4"),
    (Attention(), ("f32[1, 1, 2, 4]", "f32[1, 1, 2, 5]", "f32[1, 1, 2, 4]"), "differ"),
    (Attention(), ("f32[1, 1, 2, 4]", "f32[1, 1, 3, 4]", "f32[1, 1, 2, 4]"), "differ"),
    (Attention(), ("f32[1, 1, 2, 4]", "f16[1, 1, 2, 4]", "f32[1, 1, 2, 4]"), "element types"),
    (Attention(window=3), ("f32[1, 1, 2, 4]",) * 3, "needs causal"),
    (Attention(extra=(MASK,)), ("f32[1, 1, 2, 4]",) * 3, "not those named"),
    (Attention(extra=(LENGTHS, MASK)), (*("f32[1, 1, 2, 4]",) * 3, "i64[1]", "bool[2]"), "named"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 2, 4]",) * 3, "bool[3]"), "broadcast"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 1, 4]",) * 3, "bool[3, 1]"), "broadcast to the"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 1, 4]",) * 3, "f32[1, 3]"), "broadcast to the"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 2, 4]",) * 3, "bool[1, 3, 1, 2]"), "broadcast to the"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 2, 4]",) * 3, "bool[3, 1, 2, 2]"), "broadcast to the"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 1, 4]",) * 3, "bool[0, 1]"), "broadcast to the"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 2, 4]",) * 3, "bool[1, 1, 1, 2, 2]"), "rank 4"),
    (Attention(extra=(MASK,)), (*("f32[1, 1, 2, 4]",) * 3, "i32[2]"), "bool or as q"),
    (Attention(extra=(LENGTHS,)), (*("f32[1, 1, 2, 4]",) * 3, "i64[2]"), "differ"),
    (Attention(extra=(SINKS,)), (*("f32[1, 1, 2, 4]",) * 3, "f32[1, 1]"), "vector"),
    (Rope(), ("f32[1, 1, 2, 4]", "f32[1, 2, 3]", "f32[1, 2, 3]"), "more angles"),
    (Rope(), ("f32[1, 1, 2, 4]", "f32[3, 2, 2]", "f32[3, 2, 2]"), "other batch rows"),
    (Rope(), ("f32[2, 1, 2, 4]", "f32[3, 2, 2]", "f32[3, 2, 2]"), "other batch rows"),
    (Rope(), ("f32[1, 2, 4]", "f32[1, 2, 2]", "f32[1, 2, 2]"), "rank 4"),
    (CacheUpdate(1), ("f32[2, 3]", "f32[2, 4]", "i64[2]"), "more rows"),
    (CacheUpdate(0), ("f32[2, 3]", "f32[2, 3]", "i64[2]"), "first dimension"),
    (CacheUpdate(1), ("f32[2, 3, 4]", "f32[2, 3, 5]", "i64[2]"), "differ"),
])  # fmt: skip
def test_wrong_types_are_refused(op: Any, types: tuple[str, ...], words: str) -> None:
    with pytest.raises(InferError, match=words):
        typed(op, *types)


def test_a_mask_of_sizes_that_only_data_tell_is_refused_too() -> None:
    types = ("f32[B, 1, S, 4]", "f32[B, 1, T, 4]", "f32[B, 1, T, 4]", "bool[M, N]")
    assert str(typed(Attention(extra=(MASK,)), *types)) == "f32[B, 1, S, 4]"
    q, k = data(1, 1, 1, 4), data(1, 1, 5, 4)
    with pytest.raises(ExecutionError, match=r"(?s)broadcast to the scores.*1, 1, 1, 5.*3, 5"):
        Attention(extra=(MASK,)).reference(q, k, k, np.ones((3, 5), np.bool_))


def test_rope_turns_pairs_by_their_angle() -> None:
    angles = data(1, 3, 2)
    pairs = data(1, 2, 3, 2) + 1j * data(1, 2, 3, 2, seed=1)
    turned = pairs * np.exp(1j * angles)
    rest = data(1, 2, 3, 1)
    halves = np.concatenate([pairs.real, pairs.imag, rest], -1)
    expected = np.concatenate([turned.real, turned.imag, rest], -1)
    y = Rope().reference(halves, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    mixed = np.stack([pairs.real, pairs.imag], -1).reshape(1, 2, 3, 4)
    expected = np.stack([turned.real, turned.imag], -1).reshape(1, 2, 3, 4)
    y = Rope(interleaved=True).reference(mixed, np.cos(angles), np.sin(angles))
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_cache_updates_write_rows_from_each_start() -> None:
    x, update = np.zeros((2, 5)), np.array([[1, 2], [3, 4]])
    y = CacheUpdate(1).reference(x, update, np.array([0, 3]))
    assert y.tolist() == [[1, 2, 0, 0, 0], [0, 0, 0, 3, 4]]
    assert not x.any(), "the old cache stays as it was"
    around = CacheUpdate(1, circular=True).reference(x, update, np.array([4, 0]))
    assert around.tolist() == [[2, 0, 0, 0, 1], [3, 4, 0, 0, 0]]
    with pytest.raises(ExecutionError, match="out of bounds"):
        CacheUpdate(1).reference(x, update, np.array([0, 4]))


def test_a_mask_of_open_sizes_broadcasts_or_has_the_sizes_of_the_scores() -> None:
    scope = SizeScope(least=1)
    n = scope.symbol("n", 5)
    q = TensorType(f32, (n, 4, n, 8))
    op = Attention(extra=(MASK,))
    for sizes in [(n, 1, 1, n), (1, 1, n, n)]:
        assert op.infer(q, q, q, TensorType(f32, sizes)) == q
    assert not scope.guards
    one = (n + 7) // 8  # in this run
    assert op.infer(q, q, q, TensorType(f32, (one, 1, n, n))) == q
    assert scope.holds(dict.fromkeys(scope.hints, 8))
    assert not scope.holds(dict.fromkeys(scope.hints, 9))
    with pytest.raises(InferError):
        op.infer(q, q, q, TensorType(f32, (n + 1, 1, n, n)))
