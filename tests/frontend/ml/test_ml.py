"""Scalers, encoders and linear models of ai.onnx.ml, by hand and against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import ExecutionError, FeedError, ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

ML = "ai.onnx.ml"
X = np.array([[0.5, -1.0], [2.0, 1.0], [-1.0, 0.2]], np.float32)
POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def strings(*items: str) -> np.ndarray:
    return np.array(items, object)


def run(op: str, *inputs: np.ndarray, opset: int = 3, **options) -> list[np.ndarray]:
    return run_node(op, *inputs, opset=opset, domain=ML, **options)


def agrees(op: str, *inputs: np.ndarray, opset: int = 3, **options) -> list[np.ndarray]:
    """Return what ONNX Runtime gives too: labels exactly, scores to a few roundings of f32."""
    ours = run(op, *inputs, opset=opset, **options)
    theirs = runtime_node(op, *inputs, opset=opset, domain=ML, **options)
    for a, b in zip(ours, theirs, strict=True):
        if a.dtype.kind == "f":
            close([a], [b], 2e-6)
        else:
            assert a.tolist() == np.asarray(b).tolist()
    return ours


def refused(op: str, *inputs: np.ndarray, match: str, opset: int = 3, **options) -> None:
    with pytest.raises(ModelError, match=match):
        monograph.load(node_model(op, inputs, opset=opset, domain=ML, **options))


def test_scaler_subtracts_and_multiplies() -> None:
    (y,) = agrees("Scaler", X, offset=[1.0, 0.5], scale=[2.0, 10.0])
    np.testing.assert_allclose(y, [[-1, -15], [2, 5], [-4, -3]], rtol=1e-6)
    agrees("Scaler", X, offset=[1.0], scale=[2.0])


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64])
def test_scaler_gives_floats_of_any_number(kind: type) -> None:
    (y,) = agrees("Scaler", X.astype(kind), offset=[1.0], scale=[0.5])
    assert y.dtype == np.float32


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = np.array([[1, -3, 2], [0, 0, 0], [-4, -5, -1]], np.float32)
    (y,) = agrees("Normalizer", x, norm=norm)
    assert y[1].tolist() == [0, 0, 0], "a row whose norm is zero stays"
    agrees("Normalizer", x[0], norm=norm)
    agrees("Normalizer", x.astype(np.int64), norm=norm)


def test_normalizer_of_another_norm_is_refused() -> None:
    refused("Normalizer", X, norm="L3", match="unknown norm")


def test_binarizer_is_strict() -> None:
    (y,) = agrees("Binarizer", X, threshold=1.0)
    assert y.tolist() == [[0, 0], [1, 0], [0, 0]]
    assert run("Binarizer", np.array([[3, 4]]), threshold=3.5)[0].tolist() == [[0, 1]]


def test_imputer_replaces_a_value_or_nan() -> None:
    x = np.array([[2.0, np.nan], [np.nan, 2.0]], np.float32)
    nan = float("nan")
    (y,) = agrees("Imputer", x, imputed_value_floats=[5.0, 6.0], replaced_value_float=nan)
    assert y.tolist() == [[2, 6], [5, 2]]
    agrees("Imputer", x, imputed_value_floats=[7.0], replaced_value_float=2.0)
    i = np.array([[3, 1]])
    (y,) = agrees("Imputer", i, imputed_value_int64s=[9], replaced_value_int64=3)
    assert y.tolist() == [[9, 1]]


def test_feature_vectorizer_joins_columns() -> None:
    agrees("FeatureVectorizer", X, X[:, :1], inputdimensions=[2, 1])
    (y,) = agrees("FeatureVectorizer", X[0], X[1], inputdimensions=[2, 2])
    assert y.shape == (1, 4), "a vector is one row"
    refused("FeatureVectorizer", X, inputdimensions=[3], match="of the size declared")


def test_array_feature_extractor_picks_columns() -> None:
    (y,) = agrees("ArrayFeatureExtractor", X, np.array([1, 0, 1]))
    assert y.shape == (3, 3)
    (y,) = agrees("ArrayFeatureExtractor", X[0], np.array([[1, 0]]))
    assert y.tolist() == [[-1.0, 0.5]]
    (y,) = agrees("ArrayFeatureExtractor", strings("a", "b"), np.array([1]))
    assert y.tolist() == [["b"]]


def test_label_encoder_of_version_1_goes_both_ways() -> None:
    classes = ["red", "blue"]
    (y,) = agrees("LabelEncoder", strings("blue", "?", "red"), opset=1, classes_strings=classes)
    assert y.tolist() == [1, -1, 0]
    places = np.array([1, 0, 2, -1])
    (y,) = agrees("LabelEncoder", places, opset=1, classes_strings=classes, default_string="none")
    assert y.tolist() == ["blue", "red", "none", "none"]


@pytest.mark.parametrize(
    ("x", "table"),
    [
        (strings("a", "z"), {"keys_strings": ["a", "b"], "values_int64s": [4, 5]}),
        (strings("a", "z"), {"keys_strings": ["a", "b"], "values_floats": [0.5, 1.5]}),
        (np.array([[7, 8]]), {"keys_int64s": [7], "values_strings": ["seven"]}),
        (np.array([7, 8]), {"keys_int64s": [8], "values_int64s": [-3], "default_int64": 77}),
        (np.array([1.5, 2.5], np.float32), {"keys_floats": [2.5], "values_floats": [9.0]}),
        (np.array([1.5, -0.0], np.float32), {"keys_floats": [0.0], "values_strings": ["zero"]}),
    ],
)
@pytest.mark.parametrize("opset", [2, 4])
def test_label_encoder_of_every_kind(x: np.ndarray, table: dict, opset: int) -> None:
    agrees("LabelEncoder", x, opset=opset, **table)


def test_label_encoder_finds_nan_and_takes_the_last_of_equal_keys() -> None:
    x = np.array([np.nan, 1.0], np.float32)
    table = {"keys_floats": [float("nan"), 1.0, 1.0], "values_int64s": [1, 2, 3]}
    assert run("LabelEncoder", x, opset=4, **table)[0].tolist() == [1, 3]
    assert run("LabelEncoder", x, opset=2, **table)[0].tolist() == [1, 2]


def test_label_encoder_with_tensors() -> None:
    keys = onnx.numpy_helper.from_array(np.array([3, 4], np.int16))
    values = onnx.numpy_helper.from_array(np.array([0.25, 0.75]))
    default = onnx.numpy_helper.from_array(np.array([-1.5]))
    x = np.array([[4, 3], [5, 4]], np.int16)
    (y,) = run(
        "LabelEncoder", x, opset=4, keys_tensor=keys, values_tensor=values, default_tensor=default
    )
    assert y.dtype == np.float64
    assert y.tolist() == [[0.75, 0.25], [-1.5, 0.75]]


def test_label_encoder_without_a_proper_table_is_refused() -> None:
    x = strings("a")
    refused("LabelEncoder", x, opset=2, keys_strings=["a"], match=r"exactly one attribute values")
    refused(
        "LabelEncoder", x, opset=4, keys_strings=["a"], values_int64s=[1, 2],
        match="differ in number",
    )  # fmt: skip
    refused(
        "LabelEncoder", x, opset=4, keys_int64s=[1], values_int64s=[1],
        match="keys of another element type",
    )  # fmt: skip


def test_category_mapper() -> None:
    table = {"cats_int64s": [4, 5], "cats_strings": ["a", "b"]}
    assert agrees("CategoryMapper", strings("b", "?"), **table)[0].tolist() == [5, -1]
    assert agrees("CategoryMapper", np.array([4, 9]), **table)[0].tolist() == ["a", "_Unused"]


def test_one_hot_encoder() -> None:
    x = np.array([[1, 2], [5, 3]])
    (y,) = agrees("OneHotEncoder", x, cats_int64s=[1, 2, 3])
    assert y.shape == (2, 2, 3)
    assert y[1, 0].tolist() == [0, 0, 0]
    agrees("OneHotEncoder", np.array([1.7, 2.0], np.float32), cats_int64s=[1, 2])
    agrees("OneHotEncoder", strings("b", "a"), cats_strings=["a", "b", "c"])
    with pytest.raises(ExecutionError, match="not in the table"):
        run("OneHotEncoder", x, cats_int64s=[1, 2, 3], zeros=0)


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_linear_classifier_of_three_classes(post: str, kind: type) -> None:
    agrees(
        "LinearClassifier", X.astype(kind), outputs=2, post_transform=post,
        coefficients=[0.3, 0.4, 0.1, 0.2, 0.5, 0.0], intercepts=[0.1, 0.0, 0.3],
        classlabels_strings=["a", "b", "c"],
    )  # fmt: skip


@pytest.mark.parametrize("post", POSTS)
def test_linear_classifier_of_one_score(post: str) -> None:
    label, scores = agrees(
        "LinearClassifier", X, outputs=2, post_transform=post,
        coefficients=[0.3, 0.4], intercepts=[0.1], classlabels_ints=[7, 9],
    )  # fmt: skip
    assert label.tolist() == [7, 9, 7]
    assert scores.shape == (3, 2)


def test_linear_classifier_without_intercepts_has_none() -> None:
    label, scores = run(
        "LinearClassifier", X, outputs=2, coefficients=[1.0, 0.0, 0.0, 1.0], classlabels_ints=[3, 4]
    )
    np.testing.assert_array_equal(scores, X)
    assert label.tolist() == [3, 3, 4]


def test_linear_classifier_that_does_not_fit_is_refused() -> None:
    refused(
        "LinearClassifier", X, outputs=2, coefficients=[1.0, 2.0, 3.0], intercepts=[0.0, 0.0],
        match="do not fit",
    )  # fmt: skip
    refused(
        "LinearClassifier", X, outputs=2, coefficients=[1.0] * 6, intercepts=[0.0] * 3,
        classlabels_ints=[1, 2], match="as many labels",
    )  # fmt: skip


@pytest.mark.parametrize("post", [*POSTS, "PROBIT"])
def test_linear_regressor_of_two_targets(post: str) -> None:
    x = np.array([[0.5, 0.25], [0.1, 0.9]], np.float32)
    agrees(
        "LinearRegressor", x, coefficients=[0.3, 0.4, 0.1, 0.2], intercepts=[0.1, 0.2], targets=2,
        post_transform=post,
    )  # fmt: skip


def test_linear_regressor_applies_a_logistic_to_one_target() -> None:
    (y,) = run("LinearRegressor", X, coefficients=[1.0, 1.0], post_transform="LOGISTIC")
    np.testing.assert_allclose(y[:, 0], 1 / (1 + np.exp(-X.sum(1))), rtol=1e-6)


def test_any_number_of_rows_runs() -> None:
    model = node_model(
        "LinearClassifier", [X], opset=1, domain=ML, outputs=2, symbolic=True,
        coefficients=[0.3, 0.4, 0.1, 0.2], intercepts=[0.1, 0.0], classlabels_ints=[1, 2],
    )  # fmt: skip
    session = monograph.load(model)
    assert session.run({"x0": X})[1].shape == (3, 2)
    assert session.run({"x0": X[:0]})[0].shape == (0,)


# Maps


def map_model(op: str, key: int, value: int, **attributes) -> onnx.ModelProto:
    kind = onnx.TypeProto()
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = value
    kind.map_type.value_type.tensor_type.shape.SetInParent()
    node = helper.make_node(op, ["x"], ["y"], domain=ML, **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", kind)], [onnx.ValueInfoProto(name="y")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 3)])


def test_zip_map_gives_dicts() -> None:
    (y,) = run("ZipMap", X, classlabels_strings=["no", "yes"])
    assert y[1] == {"no": 2.0, "yes": 1.0}
    assert y == runtime_node("ZipMap", X, opset=3, domain=ML, classlabels_strings=["no", "yes"])[0]
    assert run("ZipMap", X[1], classlabels_int64s=[5, 6]) == [[{5: 2.0, 6: 1.0}]]
    refused("ZipMap", X, classlabels_int64s=[1, 2, 3], match="as many columns as keys")


def test_zip_map_of_a_declared_type() -> None:
    kind = onnx.TypeProto()
    inner = kind.sequence_type.elem_type.map_type
    inner.key_type = TensorProto.INT64
    inner.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model = node_model("ZipMap", [X], opset=3, domain=ML, classlabels_int64s=[0, 1])
    model.graph.output[0].type.CopyFrom(kind)
    session = monograph.load(model)
    assert str(session.outputs[0].type) == "seq<map<i64, f32>>"
    assert len(session.run({"x0": X})[0]) == 3


def test_dict_vectorizer() -> None:
    words = ["a", "c", "b", "z"]
    model = map_model(
        "DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, string_vocabulary=words
    )
    session = monograph.load(model)
    (y,) = session.run({"x": {"a": 4.0, "c": 8}})
    assert y.dtype == np.float32
    assert y.tolist() == [[4, 8, 0, 0]]
    for wrong in ({1: 4.0}, {"a": "b"}, [4.0]):
        with pytest.raises(FeedError, match="expected a dict of str to f32"):
            session.run({"x": wrong})


def test_cast_map() -> None:
    numbers = (TensorProto.INT64, TensorProto.FLOAT)
    dense = monograph.load(map_model("CastMap", *numbers, cast_to="TO_INT64"))
    assert dense.run({"x": {3: 4.5, 1: 8.5}})[0].tolist() == [[8, 4]]
    sparse = monograph.load(map_model("CastMap", *numbers, map_form="SPARSE", max_map=5))
    assert sparse.run({"x": {3: 4.5, 7: 1.0}})[0].tolist() == [[0, 0, 0, 4.5, 0]]
    with pytest.raises(ModelError, match="max_map"):
        monograph.load(map_model("CastMap", *numbers, map_form="SPARSE", max_map=1 << 60))
    with pytest.raises(ModelError, match="must be a map"):
        run("CastMap", X)
