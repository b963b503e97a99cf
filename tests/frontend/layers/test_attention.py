"""Attention and RotaryEmbedding of the default domain, with ONNX Runtime as a second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import MonographError
from monograph.frontend.onnx.convert import attention
from tests.frontend.nodes import close, node_model, run_node, runtime_node

F32 = 2e-5
"""Sums of at most 32 products of numbers below 4."""


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def agree(*inputs: Any, **options: Any) -> None:
    options = {"opset": 24, **options}
    close(
        run_node("Attention", *inputs, **options),
        runtime_node("Attention", *inputs, **options),
        F32,
    )


QKV = data(2, 4, 3, 8), data(2, 2, 5, 8), data(2, 2, 5, 6)
BOOL = data(2, 1, 3, 5, seed=3) > -0.5


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("options", [
    {}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 1.5}, {"is_causal": 1, "softcap": 1.5},
])  # fmt: skip
def test_attention(options: dict[str, Any], opset: int) -> None:
    agree(*QKV, opset=opset, **options)
    agree(*QKV, BOOL, opset=opset, **options)


def test_attention_of_flat_heads() -> None:
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    agree(data(2, 3, 32), data(2, 5, 16), data(2, 5, 12), data(3, 5), **heads)
    agree(data(2, 3, 32), data(2, 5, 16), data(2, 5, 12), is_causal=1, **heads)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_past(causal: int) -> None:
    new = data(2, 4, 3, 8), data(2, 2, 3, 8), data(2, 2, 3, 8, seed=1)
    past = data(2, 2, 4, 8), data(2, 2, 4, 8, seed=1)
    agree(*new, None, *past, outputs=3, is_causal=causal)
    agree(*new, data(3, 7), *past, outputs=3, is_causal=causal)


@pytest.mark.parametrize("past", [0, 4])
def test_causal_attention_with_symbols(past: int) -> None:
    """The lengths of queries and keys are open; the answer is the same."""
    new = data(1, 2, 3, 8), data(1, 2, 3, 8, seed=1), data(1, 2, 3, 8, seed=2)
    before = (data(1, 2, past, 8), data(1, 2, past, 8, seed=1)) if past else (None, None)
    options = {"is_causal": 1, "opset": 24}
    symbolic = run_node("Attention", *new, None, *before, symbolic=True, **options)
    close(symbolic, run_node("Attention", *new, None, *before, **options), 1e-7)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_cache_that_the_model_keeps(symbolic: bool) -> None:
    """Lengths say how many keys count, and the mask may stop before the cache does."""
    q, k, v = data(2, 2, 3, 8), data(2, 2, 6, 8), data(2, 2, 6, 8, seed=1)
    mask, lengths = data(3, 4), np.array([3, 4], np.int64)
    ours = run_node("Attention", q, k, v, mask, None, None, lengths, opset=24, symbolic=symbolic)
    shorter = [
        run_node("Attention", *(x[i : i + 1, :, :stop] for x, stop in ((q, 3), (k, n), (v, n))),
                 mask[:, :n], opset=24)[0]
        for i, n in enumerate(lengths)
    ]  # fmt: skip
    close(ours, [np.concatenate(shorter)], 1e-6)


def scores(mode: int, *extra: Any, **options: Any) -> np.ndarray:
    q, k, v = QKV
    model = node_model(
        "Attention", (q, k, v, *extra), outputs=4, opset=23, qk_matmul_output_mode=mode, **options
    )
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    del model.graph.output[1:3]
    feeds = {f"x{i}": x for i, x in enumerate((q, k, v, *extra))}
    return monograph.load(model).run(feeds)[1]


@pytest.fixture
def text(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Opset 23 by one of its two texts, whichever ONNX is installed."""
    release = {"published": "1.21.0", "corrected": "1.22.0"}[request.param]
    monkeypatch.setattr(attention.onnx, "__version__", release)
    return str(request.param)


@pytest.mark.parametrize("text", ["published"], indirect=True)
def test_the_scores_at_every_step(text: str) -> None:
    q, k, _ = QKV
    plain = q @ k.repeat(2, 1).swapaxes(2, 3) / np.sqrt(8)
    np.testing.assert_allclose(scores(0, is_causal=1), plain, atol=F32)
    seen = np.tril(np.ones((3, 5), bool))
    masked = np.where(seen, plain, -np.inf)
    np.testing.assert_allclose(scores(1, is_causal=1), masked, atol=F32)
    capped = np.where(seen, 2 * np.tanh(plain / 2), -np.inf)
    np.testing.assert_allclose(scores(2, is_causal=1, softcap=2.0), capped, atol=F32)
    weights = np.exp(capped) / np.exp(capped).sum(-1, keepdims=True)
    np.testing.assert_allclose(scores(3, is_causal=1, softcap=2.0), weights, atol=F32)
    bias = data(3, 5)
    np.testing.assert_allclose(scores(1, bias), plain + bias, atol=F32)


def biased() -> np.ndarray:
    bias = data(3, 5)
    bias[1, 2] = -np.inf
    return bias


@pytest.mark.parametrize("text", ["published", "corrected"], indirect=True)
def test_the_order_of_mask_and_softcap_is_that_of_the_installed_onnx(text: str) -> None:
    q, k, v = QKV
    plain, bias = q @ k.repeat(2, 1).swapaxes(2, 3) / np.sqrt(8), biased()
    masked, capped = plain + bias, 2 * np.tanh(plain / 2)
    last = 2 * np.tanh(masked / 2) if text == "published" else capped + bias
    weights = np.where(np.isinf(bias), 0, np.exp(last))
    expected = weights / weights.sum(-1, keepdims=True) @ v.repeat(2, 1)
    (y,) = run_node("Attention", q, k, v, bias, softcap=2.0, opset=23)
    np.testing.assert_allclose(y, expected, atol=F32)
    first = masked if text == "published" else capped
    np.testing.assert_allclose(scores(1, bias, softcap=2.0), first, atol=F32)
    seen = np.isfinite(bias) & np.ones_like(plain, bool)
    np.testing.assert_allclose(scores(2, bias, softcap=2.0)[seen], last[seen], atol=F32)


def test_the_corrected_order_is_that_of_the_runtime() -> None:
    agree(*QKV, biased(), opset=24, softcap=2.0)


def test_attention_is_one_op() -> None:
    model = node_model("Attention", (data(1, 2, 3, 8),) * 3, opset=24, is_causal=1)
    names = [v.op.name for v in monograph.load(model).graph.values]
    assert names.count("attention") == 1
    assert set(names) <= {"attention", "input"}


def test_wrong_attention_is_refused() -> None:
    with pytest.raises(MonographError, match="past of keys or of values"):
        run_node("Attention", *QKV, None, data(2, 2, 4, 8), opset=24)
    with pytest.raises(MonographError, match="q_num_heads"):
        run_node("Attention", *(data(2, 3, 32),) * 3, opset=24)
    with pytest.raises(MonographError, match="multiple of the heads"):
        run_node("Attention", *(data(2, 3, 32),) * 3, q_num_heads=5, kv_num_heads=5, opset=24)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [8, 4])
def test_rotary_embedding(size: int, interleaved: int, symbolic: bool) -> None:
    x, cos, sin = data(2, 4, 3, 8), data(10, size // 2), data(10, size // 2, seed=1)
    positions = np.array([[0, 1, 2], [7, 8, 9]], np.int64)
    options = {"interleaved": interleaved, "opset": 23, "rotary_embedding_dim": size % 8}
    inputs = (x, cos, sin, positions)
    theirs = runtime_node("RotaryEmbedding", *inputs, **options)
    close(run_node("RotaryEmbedding", *inputs, symbolic=symbolic, **options), theirs, 1e-6)
    chosen = (x, cos[positions], sin[positions])
    close(run_node("RotaryEmbedding", *chosen, symbolic=symbolic, **options), theirs, 1e-6)
    flat = x.transpose(0, 2, 1, 3).reshape(2, 3, 32)
    (y,) = run_node("RotaryEmbedding", flat, *chosen[1:], num_heads=4, **options)
    close([y.reshape(2, 3, 4, 8).transpose(0, 2, 1, 3)], theirs, 1e-6)


def test_wrong_rotary_embedding_is_refused() -> None:
    with pytest.raises(MonographError, match="hold angles for half"):
        run_node("RotaryEmbedding", data(1, 1, 2, 8), data(1, 2, 3), data(1, 2, 3), opset=23)
