"""Matrix products on the GPU target."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype
from monograph.ops.cast import Cast
from monograph.ops.composite import Silu
from monograph.ops.elementwise import Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Transpose, Unsqueeze
from monograph.runtime.gpu.executable import compile_for_gpu
from tests.gpu.against import candidate_names, check, device
from tests.rules.checks import graph_of


def tensor(name: str, shape: tuple[int, ...], kind: str = "f32") -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


def weights(shape: tuple[int, ...], kind: str = "f32") -> Value:
    data = np.random.default_rng(1).normal(size=shape) * 0.2
    return constant(data.astype(dtype(kind).numpy))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [1, 3, 17, 40])
def test_a_layer_is_one_kernel(kind: str, rows: int) -> None:
    x = tensor("x", (rows, 48), kind)
    y = Silu()(Add()(Dot()(x, weights((48, 33), kind)), weights((33,), kind)))
    check(Graph((x,), (("y", y),)), steps=1, every=kind == "f32")


def test_operands_are_read_through_views() -> None:
    x, y = tensor("x", (2, 3, 20, 9)), tensor("y", (2, 5, 3, 20))
    z = Dot()(Transpose((0, 1, 3, 2))(x), Transpose((0, 2, 3, 1))(y))
    check(Graph((x, y), (("z", z),)), steps=1)


def test_batches_broadcast() -> None:
    x, y = tensor("x", (4, 1, 9, 33)), tensor("y", (3, 33, 5))
    check(Graph((x, y), (("z", Mul()(Dot()(x, y), Dot()(x, y))),)), steps=1)


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [("u8", "i8", "i64"), ("i64", "i64", "i64"), ("f64", "f64", "f64")],
)
def test_other_types(left: str, right: str, out: str) -> None:
    x, y = tensor("x", (18, 40), left), tensor("y", (40, 20), right)
    check(Graph((x, y), (("z", Dot(dtype(out))(x, y)),)), every=False)


@pytest.mark.parametrize("left", ["i8", "u8"])
@pytest.mark.parametrize("right", ["i8", "u8"])
def test_bytes_are_products_of_the_matrix_units(left: str, right: str) -> None:
    """All bytes occur, the outermost in most sums; a constant and an input on the right."""
    x, y = tensor("x", (18, 70), left), tensor("y", (70, 20), right)
    given = np.random.default_rng(0)
    ends = {"i8": [-128, -1, 127], "u8": [0, 128, 255]}
    feeds = {
        v.op.label: np.where(
            given.random(v.tensor.static) < 0.5,
            given.choice(ends[str(v.dtype)], v.tensor.static),
            given.integers(ends[str(v.dtype)][0], ends[str(v.dtype)][-1] + 1, v.tensor.static),
        ).astype(v.dtype.numpy)
        for v in (x, y)
    }
    out = Dot(dtype("i32"))
    graph = graph_of(out(x, y), out(x, constant(feeds["y"])))
    check(graph, feeds, every=False)
    for bound in compile_for_gpu(graph, device().arch).works:
        assert isinstance(bound.work, Launch)
        assert "out_dtype=tl.int32" in bound.work.source
        assert "[:, :, None]" not in bound.work.source


def test_long_sums_are_split() -> None:
    x = tensor("x", (20, 1024))
    check(Graph((x,), (("y", Add()(Dot()(x, weights((1024, 16))), weights((16,)))),)))


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_a_single_element(kind: str) -> None:
    """One kernel of a library finishes a whole block for one element."""
    product = Dot()(tensor("x", (1, 600), kind), tensor("y", (600, 1), kind))
    y = Silu()(Add()(product, weights((1, 1), kind)))
    names = {n.split()[0] for found in candidate_names(graph_of(y)) for n in found}
    assert "library" in names
    check(graph_of(y), steps=1)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_sums_of_one_product(kind: str) -> None:
    """Views add the dimension that is summed: nothing but the mask says where it ends."""
    x, y = (tensor(name, (size,), kind) for name, size in (("x", 20), ("y", 24)))
    check(graph_of(Dot()(Unsqueeze((1,))(x), Unsqueeze((0,))(y))))


def test_a_sum_of_nothing() -> None:
    x, y = tensor("x", (2, 0)), tensor("y", (0, 3))
    check(Graph((x, y), (("z", Dot()(x, y)),)))


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("rows", [1, 20])
def test_weights_of_few_bits_are_decoded_on_the_way(kind: str, rows: int) -> None:
    generator = np.random.default_rng(3)
    codes = constant(generator.integers(0, 16, (24, 64)).astype(dtype("u4").numpy))
    scales = constant((generator.random((24, 2)) * 0.1).astype(dtype(kind).numpy))
    zeros = constant(generator.integers(0, 16, (24, 2)).astype(dtype("u4").numpy))
    decoded = Dequantize(axis=1, block=32, to=dtype(kind))(codes, scales, zeros)
    x = tensor("x", (rows, 64), kind)
    y = Silu()(Dot()(x, Transpose((1, 0))(decoded)))
    check(Graph((x,), (("y", y),)), steps=1, every=kind == "f32")


def test_the_callers_numbers_are_converted_on_the_way() -> None:
    x = tensor("x", (18, 40))
    y = Dot()(Cast(dtype("f16"))(x), weights((40, 20), "f16"))
    check(Graph((x,), (("y", y),)), steps=1)


def test_weights_of_a_batch_are_packed() -> None:
    x = tensor("x", (3, 1, 40))
    y = Dot()(Dot()(x, weights((3, 40, 24))), weights((2, 1, 24, 9)))
    check(Graph((x,), (("y", y),)), steps=2, every=False)
