"""The com.microsoft domain against ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import MonographError
from tests.frontend.microsoft.nodes import F32, agree, data, microsoft
from tests.frontend.nodes import close, node_model, run_node, runtime_node

# Activations and products


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op: str) -> None:
    agree(op, data(3, 16) * 3)


def test_activations_with_a_bias() -> None:
    agree("BiasGelu", data(2, 3, 16), data(16))
    agree("FastGelu", data(2, 3, 16), data(16))
    agree("QuickGelu", data(3, 16), alpha=0.5)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch", [0, 1])
def test_fused_matmul(trans_a: int, trans_b: int, batch: int) -> None:
    # Of [3, 4, 5] a transposed batch makes [4, 3, 5]; both operands then have 4 matrices.
    a = {0: (4, 3, 5), 1: (4, 5, 3)}[trans_a]
    b = {0: (4, 5, 6), 1: (4, 6, 5)}[trans_b]
    if batch:
        a = {0: (3, 4, 5), 1: (5, 4, 3)}[trans_a]
        b = {0: (5, 4, 6), 1: (6, 4, 5)}[trans_b]
    flags = {"transA": trans_a, "transB": trans_b, "transBatchA": batch, "transBatchB": batch}
    agree("FusedMatMul", data(*a), data(*b), alpha=0.5, **flags)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.5]),
     ("HardSigmoid", [0.3, 0.4])],
)  # fmt: skip
def test_fused_conv(activation: str, parameters: list[float]) -> None:
    extra = {"activation_params": parameters} if parameters else {}
    agree(
        "FusedConv", data(1, 3, 6, 6), data(4, 3, 3, 3), data(4),
        activation=activation, pads=[1, 1, 1, 1], **extra,
    )  # fmt: skip


def test_fused_conv_adds_before_the_activation() -> None:
    agree(
        "FusedConv", data(1, 3, 4, 4), data(4, 3, 1, 1), data(4), data(1, 4, 4, 4),
        activation="Relu",
    )  # fmt: skip


def test_fused_gemm() -> None:
    agree("FusedGemm", data(3, 4), data(5, 4), data(5), transB=1, alpha=0.5, activation="Relu")
    agree(
        "FusedGemm", data(3, 4), data(4, 5), data(5),
        activation="LeakyRelu", activation_alpha=0.2,
    )  # fmt: skip


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int) -> None:
    agree("Trilu", data(2, 4, 5), np.array(1, np.int64), upper=upper)


# Normalisation


@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_norm(bias: bool) -> None:
    x = data(2, 3, 16)
    extra = data(16, seed=5) if bias else None
    inputs = (x, data(2, 3, 16, seed=1), data(16), data(16, seed=3), extra)
    agree("SkipLayerNormalization", *inputs, epsilon=1e-5)
    agree("SkipLayerNormalization", x, data(3, 16), data(16))


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_norm(bias: bool) -> None:
    inputs = (data(2, 3, 16), data(2, 3, 16, seed=1), data(16), data(16, seed=2) if bias else None)
    agree("SkipSimplifiedLayerNormalization", *inputs, epsilon=1e-5)


def test_skip_norms_give_their_sum() -> None:
    x, skip, gamma, bias = data(2, 3, 16), data(2, 3, 16, seed=1), data(16), data(16, seed=2)
    for op, inputs in (
        ("SkipLayerNormalization", (x, skip, gamma, None, bias)),
        ("SkipSimplifiedLayerNormalization", (x, skip, gamma, bias)),
    ):
        model = node_model(op, inputs, outputs=4, domain="com.microsoft", opset=1)
        model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
        del model.graph.output[1:3]
        feeds = {f"x{i}": v for i, v in enumerate(inputs) if v is not None}
        np.testing.assert_allclose(monograph.load(model).run(feeds)[1], x + skip + bias, rtol=1e-6)


def test_simplified_layer_norm_of_the_default_domain() -> None:
    x, gamma = data(2, 3, 16), data(16)
    options = {"opset": 22, "epsilon": 1e-5, "axis": -1, "stash_type": 1}
    ours = run_node("SimplifiedLayerNormalization", x, gamma, **options)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * gamma
    np.testing.assert_allclose(ours[0], expected, rtol=1e-6)


def test_embed_layer_norm() -> None:
    words = np.array([[1, 3, 0], [2, 2, 1]], np.int32)
    segments = np.array([[0, 1, 1], [0, 0, 1]], np.int32)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    tables = (data(4, 8), data(5, 8), data(2, 8))
    inputs = (words, segments, *tables, data(8), data(8, seed=2), mask)
    agree("EmbedLayerNormalization", *inputs, outputs=2, epsilon=1e-5)


# Attention


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def caches(size: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(size)[:, None] / 10.0 ** (2 * np.arange(half) / half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("options", [
    {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"local_window_size": 3},
    {"softcap": 2.0}, {"scale": 0.1}, {"smooth_softmax": 1},
])  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention_of_a_prompt(options: dict[str, Any], packed: bool) -> None:
    q, k, v = data(2, 5, 4 * 16), data(2, 5, 2 * 16), data(2, 5, 2 * 16, seed=1)
    given = (np.concatenate([q, k, v], -1), None, None) if packed else (q, k, v)
    cos_sin = caches(8, 8) if options.get("do_rotary") else (None, None)
    inputs = (*given, None, None, lengths(4, 4), np.array(5, np.int32), *cos_sin)
    agree("GroupQueryAttention", *inputs, outputs=3, num_heads=4, kv_num_heads=2, **options)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("options", [
    {}, {"do_rotary": 1}, {"local_window_size": 2}, {"softcap": 2.0, "do_rotary": 1},
])  # fmt: skip
def test_group_query_attention_of_a_token(options: dict[str, Any], symbolic: bool) -> None:
    """The past is as long as it is used: the present grows by the new row."""
    past = data(1, 2, 6, 16), data(1, 2, 6, 16, seed=1)
    new = data(1, 1, 4 * 16), data(1, 1, 2 * 16), data(1, 1, 2 * 16, seed=1)
    cos_sin = caches(8, 8) if options.get("do_rotary") else (None, None)
    inputs = (*new, *past, lengths(6), np.array(7, np.int32), *cos_sin)
    options = options | {"outputs": 3, "num_heads": 4, "kv_num_heads": 2}
    ours = run_node(
        "GroupQueryAttention", *inputs, domain="com.microsoft", opset=1,
        symbolic=symbolic, **options,
    )  # fmt: skip
    theirs = runtime_node(
        "GroupQueryAttention", *inputs, domain="com.microsoft", opset=1, **options
    )
    close(ours, theirs, F32)


def test_group_query_attention_in_a_buffer_longer_than_the_sequence() -> None:
    """Each batch row has its own length; the new row goes where its past ends."""
    past = data(2, 2, 9, 16), data(2, 2, 9, 16, seed=1)
    new = data(2, 1, 4 * 16), data(2, 1, 2 * 16), data(2, 1, 2 * 16, seed=1)
    used = lengths(6, 3)
    inputs = (*new, *past, used, np.array(7, np.int32), *caches(9, 8))
    options = {"outputs": 3, "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    ours, theirs = microsoft("GroupQueryAttention", *inputs, **options)
    close(ours[:1], theirs[:1], F32)
    for a, b, before in zip(ours[1:], theirs[1:], past, strict=True):
        assert a.shape == b.shape == (2, 2, 9, 16)
        for row, last in enumerate(used):
            # What lies behind the sequence is unspecified; here it stays as it was.
            np.testing.assert_allclose(a[row, :, : last + 1], b[row, :, : last + 1], atol=F32)
            assert np.array_equal(a[row, :, last + 1 :], before[row, :, last + 1 :])


def test_group_query_attention_of_several_tokens_after_a_past() -> None:
    past = data(1, 2, 4, 16), data(1, 2, 4, 16, seed=1)
    new = data(1, 3, 4 * 16), data(1, 3, 2 * 16), data(1, 3, 2 * 16, seed=1)
    inputs = (*new, *past, lengths(6), np.array(7, np.int32), *caches(9, 8))
    agree("GroupQueryAttention", *inputs, outputs=3, num_heads=4, kv_num_heads=2, do_rotary=1)


def test_group_query_attention_with_positions_bias_and_sinks() -> None:
    past = data(1, 2, 4, 16), data(1, 2, 4, 16, seed=1)
    new = data(1, 1, 4 * 16), data(1, 1, 2 * 16), data(1, 1, 2 * 16, seed=1)
    positions, bias = np.array([[2]], np.int64), data(1, 4, 1, 5)
    inputs = (*new, *past, lengths(4), np.array(5, np.int32), *caches(9, 8), positions, bias)
    options = {"outputs": 3, "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    agree("GroupQueryAttention", *inputs, **options)
    agree("GroupQueryAttention", *inputs, data(4), **options)


def test_group_query_attention_with_an_empty_past() -> None:
    past = np.zeros((1, 2, 0, 16), np.float32)
    new = data(1, 3, 4 * 16), data(1, 3, 2 * 16), data(1, 3, 2 * 16, seed=1)
    inputs = (*new, past, past, lengths(2), np.array(3, np.int32))
    options = {"outputs": 3, "num_heads": 4, "kv_num_heads": 2}
    agree("GroupQueryAttention", *inputs, **options)
    theirs = runtime_node(
        "GroupQueryAttention", *inputs, domain="com.microsoft", opset=1, **options
    )
    symbolic = run_node(
        "GroupQueryAttention", *inputs, domain="com.microsoft", opset=1, symbolic=True, **options
    )
    close(symbolic, theirs, F32)


def test_group_query_attention_of_padded_prompts() -> None:
    """The lengths of prompts do not move their rows: all start at the first."""
    past = np.zeros((2, 2, 8, 16), np.float32)
    new = data(2, 5, 4 * 16), data(2, 5, 2 * 16), data(2, 5, 2 * 16, seed=1)
    inputs = (*new, past, past, lengths(4, 2), np.array(5, np.int32), *caches(8, 8))
    options = {"outputs": 3, "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    ours, theirs = microsoft("GroupQueryAttention", *inputs, **options)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
    for row, count in enumerate((5, 3)):
        np.testing.assert_allclose(ours[0][row, :count], theirs[0][row, :count], atol=F32)
        for a, b in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_allclose(a[row, :, :count], b[row, :, :count], atol=F32)


def test_group_query_attention_normalises_queries_and_keys() -> None:
    """No CPU kernel of ONNX Runtime does: compared with norms made beforehand."""

    def normal(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        heads = x.reshape(1, 3, -1, 16)
        root = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
        return (heads / root * weight).reshape(x.shape)

    q, k, v = data(1, 3, 4 * 16), data(1, 3, 2 * 16), data(1, 3, 2 * 16, seed=1)
    weights = data(16), data(16, seed=1)
    rest = (None, None, lengths(2), np.array(3, np.int32), *(None,) * 7)
    options = {"domain": "com.microsoft", "opset": 1, "num_heads": 4, "kv_num_heads": 2}
    ours = run_node("GroupQueryAttention", q, k, v, *rest, *weights, **options)
    before = normal(q, weights[0]), normal(k, weights[1])
    close(ours, run_node("GroupQueryAttention", *before, v, *rest, **options), F32)


def test_group_query_attention_refuses_what_it_cannot_do() -> None:
    new = data(1, 3, 64), data(1, 3, 32), data(1, 3, 32)
    inputs = (*new, None, None, lengths(2), np.array(3, np.int32))
    options = {"domain": "com.microsoft", "opset": 1, "num_heads": 4, "kv_num_heads": 2}
    with pytest.raises(MonographError, match="caches"):
        run_node("GroupQueryAttention", *inputs, sliding_window_cache=1, **options)
    with pytest.raises(MonographError, match="multiple of the heads"):
        run_node("GroupQueryAttention", *inputs, **options | {"num_heads": 5})


QKV = data(2, 5, 32), data(2, 7, 32), data(2, 7, 48, seed=1)


@pytest.mark.parametrize("mask", [
    None, lengths(7, 4), np.array([[1] * 7, [0, 1, 1, 0, 1, 1, 0]], np.int32),
    (data(2, 5, 7, seed=9) > -0.5).astype(np.int32),
], ids=["none", "lengths", "keys", "pairs"])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(mask: np.ndarray | None, bias: bool) -> None:
    extra = data(1, 4, 5, 7) if bias else None
    projection = data(32 + 32 + 48) if bias else None
    agree("MultiHeadAttention", *QKV, projection, mask, extra, num_heads=4)


def test_multi_head_attention_with_a_past() -> None:
    q, k, v = data(2, 3, 32), data(2, 3, 32, seed=1), data(2, 3, 32, seed=2)
    past = data(2, 4, 2, 8), data(2, 4, 2, 8, seed=1)
    inputs = (q, k, v, None, None, None, *past)
    agree("MultiHeadAttention", *inputs, outputs=3, num_heads=4)
    agree("MultiHeadAttention", *inputs, outputs=3, num_heads=4, unidirectional=1, scale=0.5)


def test_multi_head_attention_over_keys_by_head() -> None:
    agree("MultiHeadAttention", data(2, 3, 32), data(2, 4, 5, 8), data(2, 4, 5, 8), num_heads=4)


def test_packed_heads_of_multi_head_attention() -> None:
    """ONNX Runtime's CPU provider has no packed heads: compared with the same heads apart."""
    q, k, v = data(2, 5, 4, 8), data(2, 5, 4, 8, seed=1), data(2, 5, 4, 8, seed=2)
    flat = [x.reshape(2, 5, 32) for x in (q, k, v)]
    options = {"domain": "com.microsoft", "opset": 1, "num_heads": 4}
    apart = run_node("MultiHeadAttention", *flat, **options)
    packed = run_node("MultiHeadAttention", np.stack([q, k, v], 3), **options)
    close(packed, apart, 1e-7)
    pairs = run_node("MultiHeadAttention", flat[0], np.stack([k, v], 3), **options)
    close(pairs, apart, 1e-7)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [
    None, lengths(5, 3), lengths(5, 4, 1, 2), np.array([[1] * 5, [1, 1, 1, 0, 0]], np.int32),
    np.tril(np.ones((2, 5, 5), np.int32)),
], ids=["none", "lengths", "ranges", "keys", "pairs"])  # fmt: skip
def test_packed_attention(mask: np.ndarray | None, causal: int) -> None:
    inputs = (data(2, 5, 16), data(16, 96) * 0.3, data(96), mask)
    # Some queries see padding only: ONNX Runtime rounds their scores at -10000.
    rounded = causal and mask is not None and mask.shape == (4,)
    options = {"tolerance": 1e-3} if rounded else {}
    agree("Attention", *inputs, num_heads=4, unidirectional=causal, **options)


PADDED = np.array([[0] * 5, [0, 0, 1, 1, 0]], np.int32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [
    PADDED, lengths(0, 3), np.stack([PADDED, 1 - PADDED], 1)[:, [0, 1, 1, 0, 0]],
], ids=["keys", "lengths", "pairs"])  # fmt: skip
def test_a_query_that_sees_padding_only_attends_to_it(mask: np.ndarray, causal: int) -> None:
    """ONNX Runtime adds -10000 in f32, which leaves three digits of what is behind the comma."""
    q, k, v = data(2, 5, 32), data(2, 5, 32, seed=1), data(2, 5, 32, seed=2)
    options = {"num_heads": 4, "unidirectional": causal, "tolerance": 3e-3}
    agree("MultiHeadAttention", q, k, v, None, mask, **options)
    bias = data(1, 4, 5, 5)
    agree("MultiHeadAttention", q, k, v, None, mask, bias, **options)
    agree("Attention", data(2, 5, 16), data(16, 96) * 0.3, data(96), mask, **options)


@pytest.mark.parametrize("mask", [None, np.array([[1, 0, 0]], np.int32)])
def test_a_bias_of_minus_infinity_on_all_that_counts(mask: np.ndarray | None) -> None:
    """Without padding that gives NaN; with padding, what is left is the padding."""
    bias = np.zeros((1, 1, 2, 3), np.float32)
    bias[0, 0, 1, 0 if mask is not None else slice(None)] = -np.inf
    inputs = (data(1, 2, 8), data(1, 3, 8), data(1, 3, 8, seed=1), None, mask, bias)
    agree("MultiHeadAttention", *inputs, num_heads=1, tolerance=3e-3)


def test_of_more_queries_than_keys_the_first_is_at_the_first_key() -> None:
    inputs = data(2, 7, 32), data(2, 4, 32), data(2, 4, 32, seed=1)
    agree("MultiHeadAttention", *inputs, num_heads=4, unidirectional=1)
    agree("MultiHeadAttention", *inputs, None, lengths(3, 4), num_heads=4, unidirectional=1)


def test_packed_attention_with_sizes_and_a_past() -> None:
    x = data(2, 3, 16)
    sizes = {"num_heads": 2, "qkv_hidden_sizes": [16, 16, 24]}
    agree("Attention", x, data(16, 56) * 0.3, data(56), **sizes)
    inputs = (x, data(16, 48) * 0.3, data(48), None, data(2, 2, 2, 4, 8))
    agree("Attention", *inputs, outputs=2, num_heads=2, unidirectional=1)
    agree("Attention", *inputs[:4], None, data(1, 2, 3, 3), num_heads=2)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    positions = np.array([[0, 1, 2], [4, 5, 3]], np.int64)
    cos_sin = caches(8, 4)
    agree("RotaryEmbedding", data(2, 3, 32), positions, *cos_sin, interleaved=interleaved)
    agree("RotaryEmbedding", data(2, 4, 3, 8), positions, *cos_sin, interleaved=interleaved)
    first = np.array([2], np.int64)
    agree("RotaryEmbedding", data(2, 3, 32), first, *cos_sin, interleaved=interleaved)
    partial = {"num_heads": 2, "rotary_embedding_dim": 8}
    agree("RotaryEmbedding", data(2, 3, 32), positions, *cos_sin, **partial)
