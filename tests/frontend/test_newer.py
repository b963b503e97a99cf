"""Changes of ONNX releases after 1.21, whichever of them is installed."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from monograph.errors import ModelError
from monograph.frontend.onnx import importer
from monograph.frontend.onnx.tensors import _decode
from monograph.ir import dtype
from monograph.ops.cast import Cast
from tests.frontend.nodes import run_node

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def no_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older onnx does not know the attributes that a newer one added."""
    monkeypatch.setattr(importer, "find_signature", lambda *key: None)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_mod_of_floats_follows_the_divisor_or_the_dividend(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An older onnx does not know the opset, and models of it would be refused.
    monkeypatch.setattr(onnx.defs.C, "schema_version_map", lambda: {"": (1, 28)})
    x = np.array([7.5, -7.5, 7.5, -7.5, 1.0, -1.0, 1.0], kind)
    y = np.array([2.0, 2.0, -2.0, -2.0, np.inf, np.inf, 0.0], kind)
    (floor,) = run_node("Mod", x, y, opset=28)
    assert floor.tolist()[:6] == [1.5, 0.5, -0.5, -1.5, 1.0, np.inf]
    assert np.isnan(floor[6])
    (truncated,) = run_node("Mod", x, y, opset=28, fmod=1)
    assert truncated.tolist()[:6] == [1.5, -1.5, 1.5, -1.5, 1.0, -1.0]


def test_space_to_depth_undoes_depth_to_space_in_both_orders() -> None:
    x = RNG.normal(size=(2, 8, 3, 2)).astype(np.float32)
    for mode in ("DCR", "CRD"):
        (wide,) = run_node("DepthToSpace", x, opset=21, blocksize=2, mode=mode)
        (back,) = run_node("SpaceToDepth", wide, opset=21, blocksize=2, mode=mode)
        np.testing.assert_array_equal(back, x)


def test_shifts_past_the_width_leave_the_sign_only() -> None:
    x, y = np.array([-8, 8, -8, 8], np.int8), np.array([9, 8, -1, 1], np.int8)
    (right,) = run_node("BitShift", x, y, opset=21, direction="RIGHT")
    assert right.tolist() == [-1, 0, -1, 4]
    (left,) = run_node("BitShift", x, y, opset=21, direction="LEFT")
    assert left.tolist() == [0, 0, 0, 16]


def test_floats_of_six_bits_lie_across_bytes() -> None:
    for name in ("f6e2m3", "f6e3m2"):
        kind = dtype(name)
        codes = RNG.integers(0, 64, 9).astype(np.uint8)
        bits = [(int(c) >> i) & 1 for c in codes for i in range(6)]
        raw = np.packbits(bits, bitorder="little")
        assert len(raw) == 7
        read = _decode(raw, kind, (3, 3))
        np.testing.assert_array_equal(read.view(np.uint8), codes.reshape(3, 3))


def test_floats_of_six_bits_saturate() -> None:
    x = np.array([1.1, 100.0, -np.inf, 0.0], np.float32)
    assert Cast(dtype("f6e2m3")).reference(x).astype(float).tolist() == [1.125, 7.5, -7.5, 0.0]
    assert Cast(dtype("f6e3m2")).reference(x).astype(float).tolist() == [1.0, 28.0, -28.0, 0.0]


# Attention


def expected(q, k, v, offset, counted, causal, left, right, mask, softcap):
    """Attention by its definition, and the scores after each step."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1).astype(np.float64) for x in (k, v))
    raw = q.astype(np.float64) @ np.swapaxes(k, 2, 3) / np.sqrt(q.shape[3])
    capped = softcap * np.tanh(raw / softcap) if softcap else raw
    batch, _, queries, keys = raw.shape
    seen = np.ones((batch, 1, queries, keys), bool)
    for b, i, j in itertools.product(range(batch), range(queries), range(keys)):
        place = i + offset[b]
        seen[b, 0, i, j] = (
            j < counted[b]
            and (not causal or j <= place)
            and (left < 0 or j >= place - left)
            and (right < 0 or j <= place + right)
        )
    masked = capped if mask is None or mask.dtype == bool else capped + mask
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    masked = np.where(seen, masked, -np.inf)
    top = masked.max(-1, keepdims=True)
    weights = np.exp(masked - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    shares = np.where(total == 0, 0, weights / np.where(total == 0, 1, total))
    return shares @ v, [raw, capped, masked, shares]


@pytest.mark.parametrize("cache", ["none", "past", "external"])
@pytest.mark.parametrize(
    ("causal", "left", "right"), [(1, -1, -1), (0, 1, 2), (1, 2, -1), (0, 0, 0)]
)
@pytest.mark.parametrize("mask_kind", [None, bool, np.float32])
def test_attention(cache: str, causal: int, left: int, right: int, mask_kind: type | None) -> None:
    q = RNG.normal(size=(2, 4, 3, 8)).astype(np.float32)
    k, v = (
        RNG.normal(size=(2, 2, 3 if cache != "external" else 6, 8)).astype(np.float32) for _ in "kv"
    )
    past = [RNG.normal(size=(2, 2, 2, 8)).astype(np.float32) for _ in "kv"]
    lengths = np.array([2, 6])
    keys = {"none": 3, "past": 5, "external": 6}[cache]
    mask = None
    if mask_kind is not None:
        mask = RNG.normal(size=(3, keys)).astype(np.float32)
        mask = mask > -1 if mask_kind is bool else mask
    given = [q, k, v, mask, None, None, None]
    whole, offset, counted = (k, v), [0, 0], [keys, keys]
    if cache == "past":
        given[4:6] = past
        whole = tuple(np.concatenate([p, x], 2) for p, x in zip(past, (k, v), strict=True))
        offset = [2, 2]
    if cache == "external":
        given[6] = lengths
        offset, counted = (lengths - 3).tolist(), lengths.tolist()
    rule = {"is_causal": causal, "left_window_size": left, "right_window_size": right}
    wanted, steps = expected(q, *whole, offset, counted, causal, left, right, mask, 2.0)
    for mode in range(4):
        y, _, _, scores = run_node(
            "Attention",
            *given,
            opset=25,
            outputs=4,
            qk_matmul_output_mode=mode,
            softcap=2.0,
            **rule,
        )
        np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(scores, steps[mode], rtol=2e-5, atol=2e-6)


def test_attention_of_packed_heads_and_symbolic_sizes() -> None:
    q = RNG.normal(size=(1, 3, 16)).astype(np.float32)
    k = RNG.normal(size=(1, 3, 8)).astype(np.float32)
    options = {"opset": 24, "q_num_heads": 2, "kv_num_heads": 1, "is_causal": 1}
    (fixed,) = run_node("Attention", q, k, k, **options)
    heads = q.reshape(1, 3, 2, 8).transpose(0, 2, 1, 3)
    alone = k[:, None]
    wanted, _ = expected(heads, alone, alone, [0], [3], 1, -1, -1, None, 0.0)
    np.testing.assert_allclose(fixed, wanted.transpose(0, 2, 1, 3).reshape(1, 3, 16), rtol=1e-5)


def test_attention_takes_both_halves_of_a_past() -> None:
    x = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(ModelError, match="a past of keys or of values is missing"):
        run_node("Attention", x, x, x, None, x, opset=24)
    with pytest.raises(ModelError, match="qk_matmul_output_mode"):
        run_node("Attention", x, x, x, opset=24, outputs=4, qk_matmul_output_mode=4)
