"""Reshape, squeeze, transpose, expand and the like, with sizes known and not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import ModelError, MonographError
from monograph.ops import shape as sh
from monograph.ops.deferred import Deferred
from tests.frontend.nodes import close, node_model, run_node, runtime_node

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def run_typed(op: str, *inputs: np.ndarray, **options: Any) -> np.ndarray:
    """The result of a model that declares its output's type.

    A model whose ranks the feeds decide has no other way to know it before it runs.
    """
    model = onnx.shape_inference.infer_shapes(node_model(op, inputs, **options))
    fed = {i.name for i in model.graph.input}
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if f"x{i}" in fed}
    (result,) = monograph.load(model).run(feeds)
    return result


def in_every_way(op: str, *inputs: np.ndarray, **options: Any) -> np.ndarray:
    """The result with later inputs constant, fed, and with every dimension symbolic."""
    fixed = range(1, len(inputs))
    (result,) = run_node(op, *inputs, constant=fixed, **options)
    for ways in ({}, {"symbolic": True}, {"symbolic": True, "constant": fixed}):
        again = run_typed(op, *inputs, **ways, **options)
        np.testing.assert_array_equal(again, result)
        assert again.dtype == result.dtype
    return result


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        ((4, 6), (4, 6)),
        ((0, -1), (2, 12)),
        ((-1,), (24,)),
        ((2, 0, 2, -1), (2, 3, 2, 2)),
    ],
)
def test_reshape(target: tuple[int, ...], shape: tuple[int, ...]) -> None:
    result = in_every_way("Reshape", X, ints(*target))
    np.testing.assert_array_equal(result, X.reshape(shape))


def test_reshape_allows_zero() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert in_every_way("Reshape", empty, ints(3, 0), allowzero=1).shape == (3, 0)


def test_reshape_of_opset_1() -> None:
    (result,) = run_node("Reshape", X, opset=1, shape=[0, -1])
    assert result.shape == (2, 12)


def test_reshape_to_another_number_of_elements() -> None:
    with pytest.raises(ModelError, match="keeps the number of elements"):
        run_node("Reshape", X, ints(5, 5), constant=[1])
    with pytest.raises(MonographError, match="keeps the number of elements"):
        run_node("Reshape", X, ints(5, 5))


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (1, 24)), (1, (2, 12)), (3, (24, 1)), (-1, (6, 4)), (-3, (1, 24))]
)
def test_flatten(axis: int, shape: tuple[int, ...]) -> None:
    for symbolic in (False, True):
        (result,) = run_node("Flatten", X, axis=axis, symbolic=symbolic)
        np.testing.assert_array_equal(result, X.reshape(shape))


def test_flatten_beyond_the_rank() -> None:
    with pytest.raises(ModelError, match="axis out of range"):
        run_node("Flatten", X, axis=4)


def test_squeeze() -> None:
    x = X.reshape(1, 2, 1, 12)
    assert in_every_way("Squeeze", x, ints(0, -2)).shape == (2, 12)
    assert run_node("Squeeze", x, opset=11, axes=[0])[0].shape == (2, 1, 12)
    assert run_node("Squeeze", x)[0].shape == (2, 12)
    # Which dimensions are 1 is known once the model is fed.
    assert run_typed("Squeeze", x, symbolic=True).shape == (2, 12)


def test_unsqueeze() -> None:
    assert in_every_way("Unsqueeze", X, ints(-1, 0)).shape == (1, 2, 3, 4, 1)
    assert run_node("Unsqueeze", X, opset=11, axes=[1])[0].shape == (2, 1, 3, 4)


def test_transpose() -> None:
    np.testing.assert_array_equal(run_node("Transpose", X)[0], X.T)
    (result,) = run_node("Transpose", X, perm=[1, 0, 2], symbolic=True)
    np.testing.assert_array_equal(result, X.transpose(1, 0, 2))
    assert run_node("Transpose", np.float32(3) * np.ones(()))[0].shape == ()
    with pytest.raises(ModelError, match="not a permutation"):
        run_node("Transpose", X, perm=[0, 0, 1])


def test_expand_and_tile() -> None:
    x = X[:1, :, :1]
    np.testing.assert_array_equal(
        in_every_way("Expand", x, ints(2, 1, 4)), np.broadcast_to(x, (2, 3, 4))
    )
    np.testing.assert_array_equal(in_every_way("Tile", X, ints(1, 2, 1)), np.tile(X, (1, 2, 1)))
    (old,) = run_node("Tile", X, np.float32(2), np.float32(1), opset=1)
    np.testing.assert_array_equal(old, np.tile(X, (1, 2, 1)))


def test_concat() -> None:
    (result,) = run_node("Concat", X, X, axis=-1, symbolic=True)
    np.testing.assert_array_equal(result, np.concatenate([X, X], -1))
    (old,) = run_node("Concat", X, X, opset=1)
    np.testing.assert_array_equal(old, np.concatenate([X, X], 1))
    with pytest.raises(ModelError, match="requires: axis"):
        run_node("Concat", X, X)


@pytest.mark.parametrize(
    ("bounds", "result"),
    [
        ({}, [2, 3, 4]),
        ({"start": 1}, [3, 4]),
        ({"end": -1}, [2, 3]),
        ({"start": -99, "end": 99}, [2, 3, 4]),
        ({"start": 2, "end": 1}, []),
    ],
)
def test_shape(bounds: dict[str, int], result: list[int]) -> None:
    for symbolic in (False, True):
        (sizes,) = run_node("Shape", X, symbolic=symbolic, **bounds)
        assert sizes.tolist() == result
        assert sizes.dtype == np.int64


def test_size() -> None:
    for symbolic in (False, True):
        (count,) = run_node("Size", X, symbolic=symbolic)
        assert count.shape == ()
        assert count == 24


IMAGE = np.arange(2 * 8 * 2 * 4, dtype=np.float32).reshape(2, 8, 2, 4)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_depth_to_space(mode: str, symbolic: bool) -> None:
    ways = {"mode": mode, "blocksize": 2}
    ours = run_node("DepthToSpace", IMAGE, symbolic=symbolic, **ways)
    close(ours, runtime_node("DepthToSpace", IMAGE, **ways), 0)


@pytest.mark.parametrize("symbolic", [False, True])
def test_space_to_depth(symbolic: bool) -> None:
    ours = run_node("SpaceToDepth", IMAGE, blocksize=2, symbolic=symbolic)
    close(ours, runtime_node("SpaceToDepth", IMAGE, blocksize=2), 0)


def test_blocks_of_images_only() -> None:
    with pytest.raises(ModelError, match="image must have rank 4"):
        run_node("DepthToSpace", X, blocksize=2)
    with pytest.raises(ModelError, match="positive"):
        run_node("DepthToSpace", IMAGE, blocksize=0)


def test_col2im_against_the_runtime() -> None:
    x = np.random.default_rng(0).normal(size=(2, 12, 12)).astype(np.float32)
    ways = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
    inputs = (x, ints(5, 5), ints(3, 2))
    theirs = runtime_node("Col2Im", *inputs, constant=[1, 2], **ways)
    close([in_every_way("Col2Im", *inputs, **ways)], theirs, 1e-6)


def chain(nodes: list[onnx.NodeProto], shape: list[Any], **initialisers: Any) -> onnx.ModelProto:
    """A model from x to y around nodes that compute with shapes."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    stored = [
        onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in initialisers.items()
    ]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_shape_arithmetic_on_known_dimensions_is_folded() -> None:
    # x.reshape(x.shape[0], x.shape[1] * x.shape[2]) with an open batch: a plain reshape.
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["a"]),
        helper.make_node("Slice", ["s", "two", "three"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["ab"]),
        helper.make_node("Concat", ["n", "ab"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    model = chain(nodes, ["N", 3, 4], zero=[0], one=[1], two=[2], three=[3])
    session = monograph.load(model)
    (value,) = (v for v in session.graph.values if isinstance(v.op, sh.Reshape))
    assert str(value.type) == "f32[N, 12]"
    assert not any(isinstance(v.op, Deferred) for v in session.graph.values)
    assert session.run({"x": X})[0].shape == (2, 12)


def test_one_size_that_is_not_known_is_what_the_others_leave() -> None:
    # x.reshape(2 * N, 2): N is open, and the product is not a dimension of x.
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Mul", ["s", "two"], ["n2"]),
        helper.make_node("Concat", ["n2", "two"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    session = monograph.load(chain(nodes, ["N", 4], two=[2]))
    assert session.outputs[0].type.shape[1] == 2
    assert session.run({"x": np.zeros((3, 4), np.float32)})[0].shape == (6, 2)


def test_a_rank_that_the_values_of_an_input_decide() -> None:
    # The number of ones among the sizes is known only when they are fed.
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["r"]),
        helper.make_node("Squeeze", ["r"], ["s"]),
        helper.make_node("Transpose", ["s"], ["y"]),
    ]
    model = chain(nodes, [2, 3])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [3]))
    session = monograph.load(model)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert session.run({"x": x, "sizes": ints(2, 1, 3)})[0].tolist() == x.T.tolist()
    assert session.run({"x": x, "sizes": ints(1, 6, 1)})[0].tolist() == x.reshape(-1).tolist()
    assert session.run({"x": x, "sizes": ints(1, 2, 3)})[0].tolist() == x.T.tolist()


def test_huge_results_are_refused_before_they_are_allocated() -> None:
    big = ints(2**30, 2**30)
    with pytest.raises(ModelError, match="too large"):
        monograph.load(node_model("Expand", [np.ones(1, np.float32), big], constant=[1]))
    with pytest.raises(MonographError, match="too large"):
        run_node("Expand", np.ones(1, np.float32), big)
