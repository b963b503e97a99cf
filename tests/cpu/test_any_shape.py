"""Code for any shape: op samples with open dimensions at several sizes, and sessions."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ConfigError, ExecutionError, FeedError, UnsupportedError
from monograph.ops import OPS
from monograph.program.legalise.lower_random import random_ops
from tests.campaign.sides import machines
from tests.cpu.any_shape_cases import open_graph
from tests.samples import SEED, sample_graph
from tests.test_session import model_of

NAMES = [n for n, op in OPS.items() if op.samples]
SHARED = Path(os.environ.get("MONOGRAPH_TEST_MODELS", "../shared/models"))
OTHERS = 2
"""Other sizes at which each sample runs."""


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_right_at_every_size(name: str) -> None:
    for number, sample in enumerate(OPS[name].samples):
        graph, feeds = sample_graph(OPS[name], sample)
        if random_ops(graph):
            continue
        rng = random.Random(SEED + number)
        for chosen in (lambda *_: True, lambda n, i, r=rng: r.random() < 0.5):
            try:
                found = open_graph(graph, chosen)
            except UnsupportedError:
                continue  # it is no single native function: sessions compile exact code
            if found is None:
                continue
            assert found.code.bind({k: np.shape(x) for k, x in feeds.items()}) is not None
            assert found.problem(feeds) is None, f"sample {number}"
            others = (found.other_feeds(feeds, rng) for _ in range(30))
            kept = [f for f in others if f is not None][:OTHERS]
            for other in (*found.feeds_of_one(feeds), *kept):
                assert found.problem(other) is None, f"sample {number}"


def network() -> onnx.ModelProto:
    """A small recogniser: convolutions, pooling, a mean over the open axes, a dot, a softmax."""
    draw = np.random.default_rng(SEED)
    weights = {
        "w1": draw.normal(size=(16, 3, 3, 3)) / 4,
        "w2": draw.normal(size=(16, 1, 3, 3)) / 2,
        "w3": draw.normal(size=(24, 16, 1, 1)) / 4,
        "w4": draw.normal(size=(24, 10)) / 4,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1] * 4, group=16),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["d", "w3"], ["e"]),
        helper.make_node("Sigmoid", ["e"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Mul", ["f", "g"], ["h"]),
        helper.make_node("ReduceMean", ["h", "axes"], ["i"], keepdims=0),
        helper.make_node("Transpose", ["i"], ["j"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["j", "w4"], ["k"]),
        helper.make_node("Softmax", ["k"], ["y"], axis=-1),
    ]
    stored = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()]
    stored.append(numpy_helper.from_array(np.array([2]), "axes"))
    return model_of(
        nodes,
        [("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [("y", TensorProto.FLOAT, ["N", "T", 10])],
        stored,
    )


def image(n: int, h: int, w: int) -> dict[str, np.ndarray]:
    shape = (n, 3, h, w)
    return {"x": np.random.default_rng(n + h + w).normal(size=shape).astype(np.float32)}


def test_session_compiles_once_for_many_shapes() -> None:
    session = monograph.load(network(), specialise="off", threads=2)
    exact = monograph.load(network(), target="reference")
    for n, h, w in [(2, 16, 40), (3, 17, 33), (2, 64, 9), (5, 30, 31), (2, 16, 40)]:
        (given,), (expected,) = (s.run(image(n, h, w)) for s in (session, exact))
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-6)
    stats = session.stats
    assert stats["variants"] == 1
    assert stats["exact_reason"] == ""
    assert len(stats["guards"][0]) <= 6
    assert stats["runs"] == 5


def test_sizes_of_one_need_no_variant_but_none_has_one() -> None:
    session = monograph.load(network(), specialise="off", threads=2)
    reference = monograph.load(network(), target="reference")
    for n, h, w in [(2, 16, 40), (1, 16, 40), (1, 20, 11), (2, 20, 11), (0, 16, 40)]:
        (given,), (expected,) = (s.run(image(n, h, w)) for s in (session, reference))
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-6)
    assert session.stats["variants"] == 2


def test_wrong_size_is_refused_before_anything_runs() -> None:
    weight = numpy_helper.from_array(np.ones((2, 3, 5, 5), np.float32), "w")
    model = model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [("y", TensorProto.FLOAT, ["N", 2, "A", "B"])],
        [weight],
    )
    session = monograph.load(model, specialise="off")
    session.run(image(2, 9, 9))
    for _ in range(2):
        with pytest.raises(FeedError, match="cannot take inputs of these sizes"):
            session.run(image(2, 9, 3))
    session.run(image(2, 8, 9))
    assert session.stats["variants"] == 1


def test_fault_names_the_numbers_of_the_run() -> None:
    model = model_of(
        [
            helper.make_node("Mul", ["x", "x"], ["a"]),
            helper.make_node("Gather", ["a", "i"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", "M"]), ("i", TensorProto.INT64, ["K"])],
        [("y", TensorProto.FLOAT, ["K", "M"])],
    )
    session = monograph.load(model, specialise="off")
    for rows in (3, 5):
        feeds = {"x": np.ones((rows, 4), np.float32), "i": np.array([0, rows + 4])}
        with pytest.raises(ExecutionError, match="an index is out of range") as e:
            session.run(feeds)
        assert (e.value.expected, e.value.given) == (f"-{rows}..{rows - 1}", rows + 4)
    assert session.stats["variants"] == 1


def test_program_in_parts_is_code_for_any_shape() -> None:
    model = model_of(
        [
            helper.make_node("NonZero", ["x"], ["i"]),
            helper.make_node("Transpose", ["i"], ["t"]),
            helper.make_node("TopK", ["t", "k"], ["y", "z"], axis=0),
        ],
        [("x", TensorProto.FLOAT, ["N"]), ("k", TensorProto.INT64, [1])],
        [("y", TensorProto.INT64, None)],
    )
    session = monograph.load(model, specialise="off")
    x = np.array([0, 1, 0, 2, 3, 4], np.float32)
    for size in (5, 6):
        (given,) = session.run({"x": x[:size], "k": np.array([2])}, ["y"])
        assert given.tolist() == [[size - 1], [size - 2]]
    assert session.stats["variants"] == 1
    assert session.stats["exact_reason"] == ""


@pytest.mark.parametrize("options", [{"target": "reference"}, {"target": "gpu:sm_90"}])
def test_other_targets_refuse_the_option(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="any shape"):
        monograph.load(network(), specialise="off", **options)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ppocrv6_rec_tiny", [(1, 3, 48, w) for w in (320, 33, 100, 640)]),
        ("ppocrv6_det_tiny", [(1, 3, h, w) for h, w in ((96, 160), (320, 64), (64, 64))]),
    ],
)
def test_shared_models_run_at_any_size(name: str, shapes: list[tuple[int, ...]]) -> None:
    path = SHARED / name / "model.onnx"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    # The samples run with checked addresses; here that would take a minute.
    session = monograph.load(path, specialise="off", checked=False)
    reference = monograph.load(path, checked=False)
    for shape in shapes:
        x = np.random.default_rng(shape[-1]).normal(size=shape).astype(np.float32)
        (given,), (expected,) = (s.run({"x": x}) for s in (session, reference))
        np.testing.assert_allclose(given, expected, rtol=1e-3, atol=2e-4)
    assert session.stats["variants"] == 1
    assert len(session.stats["guards"][0]) <= 16


def test_columns_and_depth_of_products_are_open() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["p"]),
        helper.make_node("Add", ["p", "z"], ["q"]),
        helper.make_node("Sigmoid", ["q"], ["out"]),
    ]
    shapes = {"x": ["B", "M", "K"], "y": ["B", "K", "N"], "z": ["N"]}
    inputs = [(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]
    model = model_of(nodes, inputs, [("out", TensorProto.FLOAT, ["B", "M", "N"])])
    session = monograph.load(model, specialise="off", threads=2, checked=True)
    draw = np.random.default_rng(SEED)
    for m, k, n in [(13, 17, 19), (2, 2, 2), (24, 31, 33), (7, 64, 64), (5, 3, 15), (40, 1030, 77)]:
        sizes = {"B": 3, "M": m, "K": k, "N": n}
        x, y, z = (
            draw.normal(size=[sizes[d] for d in dims]).astype(np.float32)
            for dims in shapes.values()
        )
        (given,) = session.run({"x": x, "y": y, "z": z})
        expected = 1 / (1 + np.exp(-(x.astype(np.float64) @ y + z)))
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert session.stats["variants"] == 1


def test_vectors_of_open_sizes_are_data_too() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Add", ["s", "n"], ["y"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["f"], ["z"]),
    ]
    outputs = [("s", 7, [3]), ("y", 7, [3]), ("z", TensorProto.FLOAT, [3])]
    added = numpy_helper.from_array(np.array([1, 2, 3]), "n")
    inputs = [("x", TensorProto.FLOAT, ["N", "H", "W"])]
    session = monograph.load(model_of(nodes, inputs, outputs, [added]), specialise="off")
    for shape in [(2, 3, 4), (5, 6, 7), (3, 9, 11)]:
        s, y, z = session.run({"x": np.zeros(shape, np.float32)})
        assert s.tolist() == list(shape)
        assert y.tolist() == [shape[0] + 1, shape[1] + 2, shape[2] + 3]
        assert z.tolist() == [-d for d in shape]
    assert session.stats["variants"] == 1
    assert session.stats["exact_reason"] == ""


LARGE = 1 << 20


@pytest.mark.parametrize("specialise", ["off", "now"])
def test_output_that_is_too_large_is_refused(specialise: str) -> None:
    inputs = [("x", TensorProto.FLOAT, ["N", 1]), ("y", TensorProto.FLOAT, [1, "M"])]
    outputs = [("z", TensorProto.FLOAT, ["N", "M"])]
    model = model_of([helper.make_node("Add", ["x", "y"], ["z"])], inputs, outputs)
    session = monograph.load(model, specialise=specialise)
    for n, m in [(3, 4), (LARGE, LARGE), (5, 2)]:
        feeds = {"x": np.ones((n, 1), np.float32), "y": np.ones((1, m), np.float32)}
        if n == LARGE:
            with pytest.raises(FeedError, match="a tensor is too large"):
                session.run(feeds)
        else:
            assert session.run(feeds)[0].tolist() == [[2.0] * m] * n
    assert not session.stats.get("exact_reason")


def test_input_without_memory_that_is_too_large_is_refused() -> None:
    inputs, outputs = [("x", TensorProto.FLOAT, ["N", "M"])], [("y", TensorProto.FLOAT, [])]
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    session = monograph.load(model_of([node], inputs, outputs), specialise="off")
    assert session.run({"x": np.ones((2, 3), np.float32)})[0] == 6
    with pytest.raises(FeedError, match="a tensor is too large"):
        session.run({"x": np.broadcast_to(np.float32(1), (LARGE, LARGE))})


def test_resize_does_not_count_taps_that_weigh_nothing_at_a_size() -> None:
    """Rows of a dimension that keeps its size are read, but NaN and infinities beside them not."""
    inputs, outputs = [("x", TensorProto.FLOAT, ["N", "M"])], [("y", TensorProto.FLOAT, None)]
    node = helper.make_node("Resize", ["x", "", "", "to"], ["y"], mode="linear")
    model = model_of([node], inputs, outputs)
    model.graph.initializer.append(numpy_helper.from_array(np.int64([8, 6]), "to"))
    session = monograph.load(model, specialise="off")
    right = monograph.load(model, "reference")
    for shape in [(8, 9), (4, 6), (8, 6), (5, 7), (16, 9)]:
        x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        x[2, 3], x[3, 0] = np.inf, np.nan
        expected = right.run({"x": x})[0]
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(session.run({"x": x})[0], expected, 1e-5)


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512"])
def test_attention_with_shared_heads_a_mask_and_a_cap(isa: str) -> None:
    """Heads are looked up one by one, and their elements lie a size of the run apart."""
    if isa not in {name for name, _ in machines()}:
        pytest.skip("this host has no such instructions")
    shapes = {"a": (1, 5, 16), "b": (1, 4, 8), "c": (1, 4, 8), "d": (5, 4)}
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}{i}" for i in range(len(s))])
        for n, s in shapes.items()
    ]
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    node = helper.make_node("Attention", [*shapes], ["y"], softcap=2.0, **heads)
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = monograph.load(model, "cpu", specialise="off", cpu_isa=isa, threads=1, cache_dir="")
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    expected = monograph.load(model, "reference").run(feeds)[0]
    np.testing.assert_allclose(session.run(feeds)[0], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 31, (1 << 33) + 1])
def test_size_beyond_32_bits_has_exact_code(size: int) -> None:
    inputs, outputs = [("x", TensorProto.FLOAT, ["N", "M"])], [("y", TensorProto.FLOAT, None)]
    session = monograph.load(
        model_of([helper.make_node("Neg", ["x"], ["y"])], inputs, outputs), specialise="off"
    )
    for shape in [(2, 3), (size, 0)]:
        assert session.run({"x": np.zeros(shape, np.float32)})[0].shape == shape


def test_padding_beside_one_column_is_not_the_column() -> None:
    """A column is all there is in the compiling run; the second window begins before it."""
    text = """
    <ir_version: 9, opset_import: ["": 21]>
    g (float[T, 1, 1, H] x, float[1] u) => (
        float[j, k, l, m] turned, float[1] v, int64[n, w] flat, int64[o, p, q, r] sums,
        float[a, b, c, d] y
    ) {
        two = Constant<value = float[2, 1, 1, 2] {1, 1, 1, 1}>()
        one = Constant<value = float[1, 2, 1, 1] {1, 1}>()
        count = Constant<value = int64[1] {1}>()
        whole = Constant<value = int64[2] {0, 0}>()
        last = Constant<value = int64 {-1}>()
        column = Conv(x, two)
        best, at = TopK(column, count)
        turned = Transpose(column)
        v = Cast<to = 1>(u)
        flat = Reshape(at, whole)
        sums = CumSum(at, last)
        y = Conv<pads = [1, 1, 1, 0]>(column, one)
    }"""
    model = onnx.parser.parse_model(text)
    session = monograph.load(
        model, target="cpu", specialise="off", cpu_isa="avx512", checked=True, threads=1
    )
    reference = monograph.load(model, target="reference")
    for images, columns in [(1, 2), (2, 3), (1, 5), (3, 2)]:
        x = np.arange(images * columns, dtype=np.float32).reshape(images, 1, 1, columns) + 1
        feeds = {"x": x, "u": np.ones(1, np.float32)}
        for found, wanted in zip(session.run(feeds), reference.run(feeds), strict=True):
            np.testing.assert_array_equal(found, wanted)
