"""Whole layers as exporters write them, through the whole pipeline; and real models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from monograph.frontend.onnx import import_model, read_model
from monograph.ir import Graph, Value
from monograph.ops.attention import Attention
from monograph.ops.composite import Silu
from monograph.ops.elementwise import Mul, Sigmoid
from monograph.passes.base import Environment, run_pass
from monograph.passes.rule_passes import RecogniseActivations
from monograph.pipeline import optimise
from tests.rules.checks import check_numbers, graph_of, value

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
RNG = np.random.default_rng(11)


def imported(text: str, **weights: np.ndarray) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    arrays = {name: np.asarray(w) for name, w in weights.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in arrays.items())
    return import_model(read_model(model))


def normal(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def ints(*given: int) -> np.ndarray:
    return np.array(given, np.int64)


def f(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def count(graph: Graph) -> Counter[str]:
    return Counter(v.op.name for v in graph.values)


def found(graph: Graph, op: type) -> list[Value]:
    return [v for v in graph.values if isinstance(v.op, op)]


DECODER = """
decoder (float[2, 6, 32] x, float[2, 6, 4] freqs) => (float[2, 6, 32] y) {
  # RMSNorm
  square = Pow (x, two)
  variance = ReduceMean <axes = [-1]> (square)
  shifted = Add (variance, eps)
  root = Sqrt (shifted)
  inverse = Reciprocal (root)
  unit = Mul (x, inverse)
  h = Mul (weight, unit)
  # Heads
  q0 = MatMul (h, wq)
  k0 = MatMul (h, wk)
  v0 = MatMul (h, wv)
  q1 = Reshape (q0, heads_q)
  k1 = Reshape (k0, heads_k)
  v1 = Reshape (v0, heads_k)
  q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
  k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
  v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
  # Rotary embedding
  emb = Concat <axis = -1> (freqs, freqs)
  cos0 = Cos (emb)
  sin0 = Sin (emb)
  cos = Unsqueeze (cos0, one)
  sin = Unsqueeze (sin0, one)
  qc = Mul (q2, cos)
  qa = Slice (q2, zero, four, three)
  qb = Slice (q2, four, end, three)
  qn = Neg (qb)
  qr = Concat <axis = -1> (qn, qa)
  qs = Mul (qr, sin)
  q3 = Add (qc, qs)
  kc = Mul (k2, cos)
  ka = Slice (k2, zero, four, three)
  kb = Slice (k2, four, end, three)
  kn = Neg (kb)
  kr = Concat <axis = -1> (kn, ka)
  ks = Mul (kr, sin)
  k3 = Add (kc, ks)
  # Heads of keys and values, repeated
  k4 = Unsqueeze (k3, two_)
  k5 = Expand (k4, wide)
  k6 = Reshape (k5, repeated)
  v4 = Unsqueeze (v2, two_)
  v5 = Expand (v4, wide)
  v6 = Reshape (v5, repeated)
  # Attention
  kt = Transpose <perm = [0, 1, 3, 2]> (k6)
  s0 = MatMul (q3, kt)
  s1 = Div (s0, divisor)
  s2 = Add (s1, mask)
  p = Softmax <axis = -1> (s2)
  a0 = MatMul (p, v6)
  a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
  a2 = Reshape (a1, flat)
  a3 = MatMul (a2, wo)
  r = Add (x, a3)
  # Gated layer
  g0 = MatMul (r, wg)
  u0 = MatMul (r, wu)
  g1 = Sigmoid (g0)
  g2 = Mul (g0, g1)
  g3 = Mul (g2, u0)
  d = MatMul (g3, wd)
  y = Add (r, d)
}
"""


def decoder() -> Graph:
    lowest = np.finfo(np.float32).min
    return imported(
        DECODER,
        two=f(2), eps=f(1e-6), weight=normal(32), divisor=f(np.sqrt(8)),
        wq=normal(32, 32), wk=normal(32, 16), wv=normal(32, 16), wo=normal(32, 32),
        wg=normal(32, 48), wu=normal(32, 48), wd=normal(48, 32),
        heads_q=ints(2, 6, 4, 8), heads_k=ints(2, 6, 2, 8), wide=ints(2, 2, 2, 6, 8),
        repeated=ints(2, 4, 6, 8), flat=ints(2, 6, 32), one=ints(1), two_=ints(2), zero=ints(0),
        four=ints(4), three=ints(3), end=ints(1 << 62),
        mask=np.where(np.tri(6, dtype=bool), 0, lowest).astype(np.float32)[None, None],
    )  # fmt: skip


def test_a_decoder_layer() -> None:
    before = decoder()
    after = optimise(before)
    counts = count(after)
    assert {n: counts[n] for n in ("rms_norm", "rope", "attention", "silu")} == {
        "rms_norm": 1,
        "rope": 2,
        "attention": 1,
        "silu": 1,
    }
    (attention,) = found(after, Attention)
    assert isinstance(attention.op, Attention)
    assert attention.op.causal
    assert not attention.op.extra
    assert [v.tensor.static[1] for v in attention.inputs] == [4, 2, 2]
    check_numbers(before, after, exact=False)


ENCODER = """
encoder (float[2, 5, 16] x, bool[2, 1, 1, 5] hidden) => (float[2, 5, 16] y) {
  # LayerNorm, before opset 17
  mean = ReduceMean <axes = [-1]> (x)
  diff = Sub (x, mean)
  square = Pow (diff, two)
  variance = ReduceMean <axes = [-1]> (square)
  shifted = Add (variance, eps)
  root = Sqrt (shifted)
  unit = Div (diff, root)
  scaled = Mul (unit, weight)
  h = Add (scaled, bias)
  # Attention
  q0 = MatMul (h, wq)
  k0 = MatMul (h, wk)
  v0 = MatMul (h, wv)
  q1 = Reshape (q0, heads)
  k1 = Reshape (k0, heads)
  v1 = Reshape (v0, heads)
  q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
  k2 = Transpose <perm = [0, 2, 3, 1]> (k1)
  v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
  q3 = Mul (q2, scale)
  k3 = Mul (k2, scale)
  s0 = MatMul (q3, k3)
  s1 = Where (hidden, low, s0)
  p = Softmax <axis = -1> (s1)
  a0 = MatMul (p, v2)
  a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
  a2 = Reshape (a1, flat)
  r = Add (x, a2)
  # GELU
  g0 = MatMul (r, w1)
  g1 = Add (g0, b1)
  g2 = Div (g1, root2)
  g3 = Erf (g2)
  g4 = Add (g3, one)
  g5 = Mul (g1, g4)
  g6 = Mul (g5, half)
  g7 = MatMul (g6, w2)
  y = Add (r, g7)
}
"""


def test_an_encoder_layer() -> None:
    before = imported(
        ENCODER,
        two=f(2), eps=f(1e-5), weight=normal(16), bias=normal(16), heads=ints(2, 5, 2, 8),
        flat=ints(2, 5, 16), scale=f(8**-0.25), low=f(np.finfo(np.float32).min),
        wq=normal(16, 16), wk=normal(16, 16), wv=normal(16, 16), w1=normal(16, 32),
        b1=normal(32), w2=normal(32, 16), root2=f(np.sqrt(2)), one=f(1), half=f(0.5),
    )  # fmt: skip
    after = optimise(before)
    counts = count(after)
    assert {n: counts[n] for n in ("layer_norm", "attention", "gelu", "exp", "erf", "sqrt")} == {
        "layer_norm": 1,
        "attention": 1,
        "gelu": 1,
        "exp": 0,
        "erf": 0,
        "sqrt": 0,
    }
    check_numbers(before, after, exact=False)


def test_long_chains_take_linear_time() -> None:
    v = value("f32[4]")
    for _ in range(5000):
        v = Mul()(v, Sigmoid()(v))
    after = run_pass(RecogniseActivations(), graph_of(v), Environment())
    assert len(found(after, Silu)) == 5000


COUNTS = {
    "ul_yolov10n_e2e": {"silu": 69, "attention": 1, "softmax": 1},
    "hf_bert_sdpa": {"gelu": 4, "layer_norm": 9, "attention": 4},
    "ppocrv6_rec_tiny": {"gelu": 10, "softmax": 1},
    "ppocrv6_det_tiny": {"gelu": 13},
    "khmercut_int8": {"layer_norm": 6},
    "swift_f0": {"softmax": 1},
    "magika_v3_3": {"gelu": 2, "layer_norm": 2, "softmax": 1},
    "face_rfb320": {"softmax": 1},
    "genai_llama_fp32": {"rms_norm": 7, "rope": 6, "attention": 3, "silu": 3},
}


@pytest.mark.parametrize("name", list(COUNTS))
def test_real_models(name: str) -> None:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in ../shared/models beside the repository")
    with np.load(folder / "io.npz") as arrays:
        shapes = {n[3:]: arrays[n].shape for n in arrays.files if n.startswith("in:")}
    after = optimise(import_model(read_model(folder / "model.onnx"), shapes=shapes))
    counts = count(after)
    assert {n: counts[n] for n in COUNTS[name]} == COUNTS[name]
    for gate in found(after, Sigmoid):
        users = [v for v in after.values if isinstance(v.op, Mul) and gate in v.inputs]
        assert all(gate.inputs[0] not in v.inputs for v in users)
