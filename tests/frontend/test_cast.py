"""Cast, CastLike and BitCast nodes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import node_model, run_node, runtime_node

T = onnx.TensorProto
X = np.array([0.1, 1.5, -2.7, 300.0], np.float32)


@pytest.mark.parametrize(
    "to", ["FLOAT16", "DOUBLE", "BFLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "BOOL"]
)
def test_casts_agree_with_onnx_runtime(to: str) -> None:
    x = X[:3] if to.startswith("INT8") else X
    x = np.abs(x[:3]) if to.startswith("U") else x
    (result,) = run_node("Cast", x, to=T.DataType.Value(to), symbolic=True)
    if to == "BFLOAT16":
        expected = x.astype(ml_dtypes.bfloat16)
    else:
        (expected,) = runtime_node("Cast", x, to=T.DataType.Value(to))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_texts_agree_with_onnx_runtime() -> None:
    x = np.array([1, 0.1, -2.5, np.inf, -np.inf, np.nan, 1e-7], np.float32)
    (ours,) = run_node("Cast", x, to=T.STRING)
    (theirs,) = runtime_node("Cast", x, to=T.STRING)
    assert [*map(float, ours)][:3] == [*map(float, theirs)][:3]
    assert ours.tolist()[3:6] == ["INF", "-INF", "NaN"] == theirs.tolist()[3:6]
    texts = np.array(["1.5", "-INF", "NaN", "1e-5"], object)
    np.testing.assert_array_equal(
        run_node("Cast", texts, to=T.FLOAT)[0], runtime_node("Cast", texts, to=T.FLOAT)[0]
    )


def test_saturation_is_an_attribute() -> None:
    x = np.array([1e6], np.float32)
    assert run_node("Cast", x, to=T.FLOAT8E4M3FN)[0].astype(float).tolist() == [448]
    (result,) = run_node("Cast", x, to=T.FLOAT8E4M3FN, saturate=0)
    assert np.isnan(result.astype(float)).all()


def test_rounding_is_an_attribute() -> None:
    x = np.array([3.0], np.float32)
    for mode, expected in (("up", 4), ("down", 2)):
        (result,) = run_node("Cast", x, opset=25, to=T.FLOAT8E8M0, round_mode=mode)
        assert result.astype(float).tolist() == [expected]


def test_types_were_named_by_strings_before_opset_6() -> None:
    assert run_node("Cast", X, opset=5, to="INT32")[0].tolist() == [0, 1, -2, 300]
    with pytest.raises(ModelError, match="no such element type"):
        run_node("Cast", X, opset=5, to="INT33")


def test_cast_like_takes_the_type_of_its_second_input() -> None:
    (result,) = run_node("CastLike", X, np.zeros(0, np.int64), opset=19)
    assert result.dtype == np.int64
    assert result.tolist() == [0, 1, -2, 300]


def test_a_cast_to_the_same_type_is_nothing() -> None:
    graph = monograph.load(node_model("Cast", (X,), to=T.FLOAT)).graph
    assert graph.outputs[0][1] is graph.inputs[0]


def test_bits() -> None:
    (result,) = run_node("BitCast", X, opset=26, to=T.INT32)
    np.testing.assert_array_equal(result, X.view(np.int32))
    with pytest.raises(ModelError, match="widths differ"):
        run_node("BitCast", X, opset=26, to=T.INT8)
