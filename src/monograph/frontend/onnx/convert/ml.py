"""Classical models of ai.onnx.ml that are plain arithmetic: scalers, encoders, linear models.

Trees and support vector machines have their own modules. ONNX does not define how a classifier of
two classes turns a single score into two; this follows ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from monograph.frontend.onnx.convert.common import cast, scalar, softmax
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import required, size_of
from monograph.ir import Array, DType, Literal, MapType, Value, constant
from monograph.ir.dtype import f32, f64, i64, string
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.index import Gather
from monograph.ops.linear import Dot
from monograph.ops.ml import Lookup, MapRows, MapValues
from monograph.ops.reduce import ArgMax, ReduceMax, ReduceSum
from monograph.ops.text import object_array

ML = "ai.onnx.ml"
MAX_MAP = 1 << 24
NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT = POST_TRANSFORMS = (
    "NONE",
    "SOFTMAX",
    "LOGISTIC",
    "SOFTMAX_ZERO",
    "PROBIT",
)


# Shared by all families of models


def strings_array(texts: Sequence[str]) -> Array:
    return object_array(list(texts), (len(texts),))


def wide(x: Value) -> Value:
    """Return f32 as it is, and any other type as f64, which holds it."""
    return x if x.dtype == f32 else cast(x, f64)


def rows(x: Value) -> Value:
    """Rows of features; a vector is one row."""
    shape = x.tensor.shape
    return sh.Unsqueeze((0,))(x) if shape is not None and len(shape) == 1 else x


def post_transform_name(n: Node) -> str:
    name = n.attr_string("post_transform", NONE)
    if name not in POST_TRANSFORMS:
        n.fail("unknown post_transform", expected=" ".join(POST_TRANSFORMS), given=name)
    return name


def post_transform(scores: Value, kind: str) -> Value:
    """Transform scores [N, E] as the node asks. A softmax leaves a single score unchanged."""
    if kind == LOGISTIC:
        return ew.Sigmoid()(scores)
    if kind == PROBIT:
        return _probit(scores)
    if kind == NONE or scores.tensor.dim(-1) == 1:
        return scores
    if kind == SOFTMAX:
        return softmax(scores, (-1,))
    # Scores of zero are left out of the softmax and stay zero.
    counted = ew.Less()(scalar(1e-7, scores), ew.Abs()(scores))
    e = ew.Exp()(ew.Sub()(scores, ReduceMax((-1,), keep=True)(scores)))
    e = ew.Where()(counted, e, scalar(0.0, scores))
    return ew.Div()(e, ReduceSum((-1,), keep=True)(e))


def _probit(p: Value) -> Value:
    """The normal quantile, by Winitzki's formula for the inverse error function.

    sqrt(2) erfinv(2p - 1), with erfinv(x) = sign(x) sqrt(sqrt(v^2 - log(1 - x^2) / a) - v) and v =
    2 / (pi a) + log(1 - x^2) / 2. ONNX leaves the formula open; other implementations use this one
    too.
    """
    a = 0.147
    x = ew.Sub()(ew.Mul()(p, scalar(2.0, p)), scalar(1.0, p))
    log = ew.Log()(ew.Sub()(scalar(1.0, p), ew.Mul()(x, x)))
    v = ew.Add()(scalar(2 / (3.14159 * a), p), ew.Mul()(log, scalar(0.5, p)))
    root = ew.Sqrt()(ew.Sub()(ew.Mul()(v, v), ew.Mul()(log, scalar(1 / a, p))))
    size = ew.Sqrt()(ew.Sub()(root, v))
    return ew.Mul()(ew.Mul()(ew.Sign()(x), size), scalar(2**0.5, p))


def two_scores(s: Value, kind: str, negate: bool) -> Value:
    """Return the transformed scores of two classes, [N, 2], from that of the second, [N, 1]."""
    if kind == LOGISTIC:
        both = [ew.Sigmoid()(ew.Neg()(s)), ew.Sigmoid()(s)]
    elif negate and kind != PROBIT:
        both = [ew.Neg()(s), s]
    else:
        both = [ew.Sub()(scalar(1.0, s), s), s]
    scores = sh.Concat(1)(*both)
    return post_transform(scores, PROBIT) if kind == PROBIT else scores


def class_labels(n: Node, ints: str, strings: str) -> Array | None:
    """The labels of the classes: integers or strings."""
    if n.has(ints) and n.has(strings) and n.attr_ints(ints) and n.attr_strings(strings):
        n.fail(f"only one of {ints} and {strings} may be given")
    if n.attr_strings(strings, ()):
        return strings_array(n.attr_strings(strings))
    labels = n.attr_ints(ints, ())
    return np.array(labels, np.int64) if labels else None


def choose_label(second: Value, labels: Array) -> Value:
    """One of two labels for each row, [N]."""
    return ew.Where()(second, constant(labels[1]), constant(labels[0]))


def top_label(scores: Value, labels: Array) -> Value:
    """The label of the largest score of each row; the first of equal ones."""
    return Gather(0)(constant(labels), ArgMax(1)(scores))


# Elementwise


@converter("Scaler", domain=ML)
def scaler(n: Node) -> Value:
    x = wide(n.input(0))
    offset = constant(np.array(n.attr_floats("offset", (0.0,))), x.dtype)
    scale = constant(np.array(n.attr_floats("scale", (1.0,))), x.dtype)
    return cast(ew.Mul()(ew.Sub()(x, offset), scale), f32)


@converter("Normalizer", domain=ML)
def normalizer(n: Node) -> Value:
    """Divide rows by their norm; a row with norm zero is kept."""
    x = wide(n.input(0))
    norm = n.attr_string("norm", "MAX")
    if norm == "MAX":
        divisor = ReduceMax((-1,), keep=True)(x)
    elif norm == "L1":
        divisor = ReduceSum((-1,), keep=True)(ew.Abs()(x))
    elif norm == "L2":
        divisor = ew.Sqrt()(ReduceSum((-1,), keep=True)(ew.Mul()(x, x)))
    else:
        n.fail("unknown norm", expected="MAX, L1 or L2", given=norm)
    zero = ew.Equal()(divisor, scalar(0.0, x))
    return cast(ew.Where()(zero, x, ew.Div()(x, divisor)), f32)


@converter("Binarizer", domain=ML)
def binarizer(n: Node) -> Value:
    x = n.input(0)
    compared = wide(x)
    threshold = scalar(n.attr_float("threshold", 0.0), compared)
    return cast(ew.Less()(threshold, compared), x.dtype)


@converter("Imputer", domain=ML)
def imputer(n: Node) -> Value:
    x = n.input(0)
    if x.dtype.is_float:
        imputed: Any = n.attr_floats("imputed_value_floats")
        replaced: float = n.attr_float("replaced_value_float", 0.0)
    else:
        imputed = n.attr_ints("imputed_value_int64s")
        replaced = n.attr_int("replaced_value_int64", 0)
    if replaced != replaced:
        missing = ew.IsNan()(x)
    else:
        missing = ew.Equal()(x, scalar(replaced, x))
    return ew.Where()(missing, constant(np.array(imputed), x.dtype), x)


@converter("FeatureVectorizer", domain=ML)
def feature_vectorizer(n: Node) -> Value:
    parts = [rows(x) for x in n.required()]
    for i, size in enumerate(n.attr_ints("inputdimensions", ())[: len(parts)]):
        rule = "an input is of the size declared"
        parts[i] = required(parts[i], rule, [size], [size_of(parts[i], -1)])
    return cast(sh.Concat(1)(*parts), f32)


@converter("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(n: Node) -> Value:
    x = n.input(0)
    chosen = Gather(-1)(x, sh.Reshape((sh.INFER,))(n.input(1)))
    return rows(chosen)


# Tables


def _table(n: Node, kind: str) -> Array:
    """Return the keys or values of a label encoder, from whichever attribute holds them."""
    found: list[Array] = []
    if n.has(f"{kind}_tensor"):
        found.append(n.attr_literal(f"{kind}_tensor").array)
    if n.has(f"{kind}_strings"):
        found.append(strings_array(n.attr_strings(f"{kind}_strings")))
    if n.has(f"{kind}_int64s"):
        found.append(np.array(n.attr_ints(f"{kind}_int64s"), np.int64))
    if n.has(f"{kind}_floats"):
        found.append(np.array(n.attr_floats(f"{kind}_floats"), np.float32))
    if len(found) != 1:
        n.fail(f"exactly one attribute {kind}_* is needed", given=len(found))
    return found[0]


def _default(n: Node, dtype: DType) -> Literal:
    if n.has("default_tensor"):
        given = n.attr_literal("default_tensor").array
        if given.size != 1:
            n.fail("default_tensor has one element", given=list(given.shape))
        return Literal(given.reshape(()).astype(dtype.numpy))
    if dtype.is_string:
        return Literal(np.array(n.attr_string("default_string", "_Unused"), object))
    if dtype.is_float:
        return Literal(np.array(n.attr_float("default_float", -0.0), dtype.numpy))
    return Literal(np.array(n.attr_int("default_int64", -1), dtype.numpy))


def _lookup(n: Node, keys: Array, values: Array, last: bool) -> Value:
    """Build a lookup table with unique keys: the first of equal keys counts, or the last."""
    if keys.shape != values.shape or keys.ndim != 1:
        n.fail("keys and values differ in number", expected=keys.shape, given=values.shape)
    places: dict[Any, int] = {}
    for i, key in enumerate(keys.tolist()):
        # NaN does not equal itself, so it needs a key of its own.
        name = (key,) if key == key else None
        if last or name not in places:
            places[name] = i
    kept = list(places.values())
    dtype = Literal(values).dtype
    return Lookup(Literal(keys[kept]), Literal(values[kept]), _default(n, dtype))(n.input(0))


@converter("LabelEncoder", domain=ML)
def label_encoder_1(n: Node) -> Value:
    """Convert LabelEncoder version 1: strings to indices of a list, or indices to strings."""
    classes = strings_array(n.attr_strings("classes_strings"))
    numbers = np.arange(len(classes))
    if n.input(0).dtype.is_string:
        return _lookup(n, classes, numbers, last=False)
    return _lookup(n, numbers, classes, last=False)


@converter("LabelEncoder", since=2, domain=ML)
def label_encoder_2(n: Node) -> Value:
    return _lookup(n, _table(n, "keys"), _table(n, "values"), last=False)


@converter("LabelEncoder", since=4, domain=ML)
def label_encoder_4(n: Node) -> Value:
    return _lookup(n, _table(n, "keys"), _table(n, "values"), last=True)


@converter("CategoryMapper", domain=ML)
def category_mapper(n: Node) -> Value:
    strings = strings_array(n.attr_strings("cats_strings"))
    numbers = np.array(n.attr_ints("cats_int64s"), np.int64)
    if n.input(0).dtype.is_string:
        return _lookup(n, strings, numbers, last=True)
    return _lookup(n, numbers, strings, last=True)


@converter("OneHotEncoder", domain=ML)
def one_hot_encoder(n: Node) -> Value:
    """Convert OneHotEncoder: compare the index of the category with every index."""
    labels = class_labels(n, "cats_int64s", "cats_strings")
    if labels is None:
        n.fail("one of cats_int64s and cats_strings is needed")
    x = n.input(0)
    x = x if x.dtype.is_string else cast(x, i64)
    places = {key: i for i, key in enumerate(labels.tolist())}
    kept = list(places.values())
    if not x.dtype.is_string and n.attr_flag("zeros", True) and len(kept) == len(labels):
        column = sh.Unsqueeze((x.tensor.rank,))(x)
        return cast(ew.Equal()(column, constant(labels)), f32)
    default = Literal(np.array(-1)) if n.attr_flag("zeros", True) else None
    place = Lookup(Literal(labels[kept]), Literal(np.array(kept)), default)(x)
    column = sh.Unsqueeze((place.tensor.rank,))(place)
    return cast(ew.Equal()(column, constant(np.arange(len(labels)))), f32)


# Maps


@converter("ZipMap", domain=ML)
def zip_map(n: Node) -> Value:
    labels = class_labels(n, "classlabels_int64s", "classlabels_strings")
    if labels is None:
        n.fail("one of classlabels_int64s and classlabels_strings is needed")
    return MapRows(Literal(labels))(rows(n.input(0)))


def _map_type(n: Node) -> MapType:
    given = n.input(0).type
    if not isinstance(given, MapType):
        n.fail("the input must be a map", given=given)
    return given


@converter("DictVectorizer", domain=ML)
def dict_vectorizer(n: Node) -> Value:
    keys = class_labels(n, "int64_vocabulary", "string_vocabulary")
    if keys is None:
        n.fail("one of int64_vocabulary and string_vocabulary is needed")
    return MapValues(_map_type(n).value, Literal(keys))(n.input(0))


@converter("CastMap", domain=ML)
def cast_map(n: Node) -> Value:
    """Convert CastMap: values in the order of their keys, or at the indices that are the keys."""
    targets = {"TO_FLOAT": f32, "TO_STRING": string, "TO_INT64": i64}
    name, form = n.attr_string("cast_to", "TO_FLOAT"), n.attr_string("map_form", "DENSE")
    size = n.attr_int("max_map", 1)
    if name not in targets or form not in ("DENSE", "SPARSE"):
        n.fail("unknown cast_to or map_form", given=f"{name}, {form}")
    if not 1 <= size <= MAX_MAP:
        n.fail("max_map is out of range", expected=f"1..{MAX_MAP}", given=size)
    keys = Literal(np.arange(size)) if form == "SPARSE" else None
    return cast(MapValues(_map_type(n).value, keys)(n.input(0)), targets[name])


# Linear models


def linear_scores(n: Node, count: int | None) -> Value:
    """x W^T + b; `count` checks the number of rows of coefficients."""
    x = rows(wide(n.input(0)))
    weights = np.array(n.attr_floats("coefficients"))
    bias = np.array(n.attr_floats("intercepts", ()))
    features = x.tensor.dim(1)
    if count is None and len(bias):
        count = len(bias)
    if count is None and isinstance(features, int) and features:
        count = len(weights) // features
    fits = count is not None and count > 0 and len(weights) > 0 and len(weights) % count == 0
    if count is None or not fits or (len(bias) and len(bias) != count):
        n.fail(
            "coefficients and intercepts do not fit",
            expected=f"{count} rows",
            given=f"{len(weights)} coefficients, {len(bias)} intercepts",
        )
    scores = Dot()(x, constant(weights.reshape(count, -1).T, x.dtype))
    return ew.Add()(scores, constant(bias, x.dtype)) if len(bias) else scores


@converter("LinearRegressor", domain=ML)
def linear_regressor(n: Node) -> Value:
    scores = linear_scores(n, n.attr_int("targets", 1))
    return cast(post_transform(scores, post_transform_name(n)), f32)


@converter("LinearClassifier", domain=ML)
def linear_classifier(n: Node) -> Sequence[Value]:
    labels = class_labels(n, "classlabels_ints", "classlabels_strings")
    scores = linear_scores(n, None)
    count = scores.tensor.dim(1)
    kind = post_transform_name(n)
    if count == 1:
        positive = ew.Less()(scalar(0.0, scores), sh.Squeeze((1,))(scores))
        pair = np.arange(2) if labels is None else labels
        if len(pair) != 2:
            n.fail("a single score must belong to two classes", expected=2, given=len(pair))
        shown = post_transform(scores, kind)
        if labels is not None:
            shown = two_scores(scores, kind, negate=False)
        return choose_label(positive, pair), cast(shown, f32)
    if labels is None:
        labels = np.arange(int(count))
    if len(labels) != count:
        n.fail(
            "there must be as many labels as rows of coefficients",
            expected=count,
            given=len(labels),
        )
    return top_label(scores, labels), cast(post_transform(scores, kind), f32)
