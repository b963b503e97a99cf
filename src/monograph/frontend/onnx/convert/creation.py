"""Tensors made of sizes: ranges, fills, masks, one-hot codes and random numbers.

Each random node becomes an op with an RNG state of its own, in all graphs of a session.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from monograph.frontend.onnx.convert.common import as_scalar, cast, scalar, softmax, widened
from monograph.frontend.onnx.convert.index import along
from monograph.frontend.onnx.fold import fold
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import iota, size_of, size_value
from monograph.ir import DType, Value, constant
from monograph.ir.dtype import f32, f64, i32, i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.base import normalise_axis
from monograph.ops.deferred import deferred
from monograph.ops.index import Gather
from monograph.ops.random import RandomNormal, RandomUniform
from monograph.ops.reduce import CumSum, ReduceSum


@converter("Constant")
def constant_node(n: Node) -> Value:
    """Convert Constant; its value is in one of several attributes, by type."""
    if n.has("value"):
        return constant(n.attr_literal("value"))
    if n.has("value_float"):
        return constant(np.float32(n.attr_float("value_float")))
    if n.has("value_floats"):
        return constant(np.array(n.attr_floats("value_floats"), np.float32))
    if n.has("value_int"):
        return constant(np.int64(n.attr_int("value_int")))
    if n.has("value_ints"):
        return constant(np.array(n.attr_ints("value_ints"), np.int64))
    if n.has("value_string"):
        return constant(np.array(n.attr_string("value_string"), object))
    if n.has("value_strings"):
        return constant(np.array(n.attr_strings("value_strings"), object))
    if n.has("sparse_value"):
        return constant(n.attr_sparse("sparse_value"))
    n.fail("a Constant has no value")


@converter("ConstantOfShape")
def constant_of_shape(n: Node) -> Value:
    """Convert ConstantOfShape; its value is a tensor of one element, zero by default."""
    literal = n.attr_literal("value", None)
    value = constant(np.float32(0)) if literal is None else constant(literal)
    if value.tensor.size != 1:
        n.fail("the value must have one element", given=value.type)
    return deferred(sh.Broadcast, (as_scalar(value),), {"shape": fold(n.input(0))})


@converter("Range")
def range_node(n: Node) -> Value:
    """Convert Range: start + delta * (0, 1, ...), as many as fit before the limit."""
    start, limit, delta = (as_scalar(n.input(i)) for i in range(3))
    if start.dtype.is_float:
        wide = [cast(v, f64) for v in (start, limit, delta)]
        steps = ew.Ceil()(ew.Div()(ew.Sub()(wide[1], wide[0]), wide[2]))
        # An infinite number of steps must stay too large as an integer.
        steps = ew.Min()(steps, constant(2.0**62, f64))
    else:
        wide = [cast(v, i64) for v in (start, limit, delta)]
        # Division rounds towards zero; the number of steps is rounded up.
        slack = ew.Sub()(wide[2], ew.Sign()(wide[2]))
        steps = ew.Div()(ew.Add()(ew.Sub()(wide[1], wide[0]), slack), wide[2])
    count = ew.Max()(cast(steps, i64), constant(0, i64))
    numbers = cast(iota(fold(count)), start.dtype)
    return ew.Add()(ew.Mul()(numbers, delta), start)


def _rows_and_columns(x: Value) -> tuple[Value, Value]:
    """The row and the column numbers of the matrices in the last two dimensions."""
    rows, columns = iota(size_of(x, -2)), iota(size_of(x, -1))
    return sh.Unsqueeze((1,))(rows), sh.Unsqueeze((0,))(columns)


@converter("EyeLike")
def eye_like(n: Node) -> Value:
    x = n.input(0)
    if n.rank(0) != 2:
        n.fail("the input of EyeLike must be a matrix", expected="rank 2", given=x.type)
    rows, columns = _rows_and_columns(x)
    diagonal = ew.Add()(rows, constant(n.attr_int("k", 0), i64))
    return cast(ew.Equal()(diagonal, columns), n.attr_dtype("dtype", x.dtype))


@converter("Trilu")
def trilu(n: Node) -> Value:
    x, offset = n.input(0), n.optional(1)
    if n.rank(0) < 2:
        n.fail("the input of Trilu must be matrices", expected="rank >= 2", given=x.type)
    rows, columns = _rows_and_columns(x)
    diagonal = rows if offset is None else ew.Add()(rows, as_scalar(offset))
    upper = n.attr_flag("upper", True)
    kept = ew.LessEqual()(*((diagonal, columns) if upper else (columns, diagonal)))
    return ew.Where()(kept, x, constant(0, x.dtype))


@converter("OneHot")
def one_hot(n: Node) -> Value:
    """Convert OneHot: the second value at the index (from the end if negative), else the first."""
    indices, values = cast(n.input(0), i64), n.input(2)
    depth = fold(as_scalar(cast(n.input(1), i64)))
    rank = indices.tensor.rank + 1
    axis = normalise_axis(n.attr_int("axis", -1), rank)
    from_end = ew.Less()(indices, constant(0, i64))
    indices = ew.Where()(from_end, ew.Add()(indices, depth), indices)
    classes = along(iota(depth), axis, rank)
    hot = ew.Equal()(sh.Unsqueeze((axis,))(indices), classes)
    off, on = (Gather(0)(values, constant(i, i64)) for i in range(2))
    return ew.Where()(hot, on, off)


def uniform_like(n: Node, x: Value, dtype: DType, seed: float | None) -> Value:
    """Return uniform numbers in [0, 1) in the shape of x."""
    return _draw_like(RandomUniform, x, dtype=dtype, **_identity(n, seed))


def _draw_like(op: type[RandomUniform | RandomNormal], x: Value, **static: Any) -> Value:
    if x.tensor.is_static:
        return op(x.tensor.static, **static)()
    return deferred(op, (), {"shape": sh.ShapeOf()(x)}, **static)


def _seed(n: Node) -> float | None:
    return n.attr_float("seed") if n.has("seed") else None


def _identity(n: Node, seed: float | None) -> dict[str, Any]:
    return {"seed": seed, "uid": n.scope.importer.random_identity(n.label, seed)}


def _spread(n: Node) -> tuple[type[RandomUniform | RandomNormal], dict[str, Any]]:
    if n.op_type.startswith("RandomUniform"):
        low, high = n.attr_float("low", 0.0), n.attr_float("high", 1.0)
        return RandomUniform, {"low": low, "high": high}
    return RandomNormal, {"mean": n.attr_float("mean", 0.0), "scale": n.attr_float("scale", 1.0)}


@converter("RandomUniform", "RandomNormal")
def random(n: Node) -> Value:
    op, spread = _spread(n)
    dtype = n.attr_dtype("dtype", f32)
    return op(n.attr_ints("shape"), dtype, **spread, **_identity(n, _seed(n)))()


@converter("RandomUniformLike", "RandomNormalLike")
def random_like(n: Node) -> Value:
    op, spread = _spread(n)
    x = n.input(0)
    dtype = n.attr_dtype("dtype", x.dtype)
    return _draw_like(op, x, dtype=dtype, **spread, **_identity(n, _seed(n)))


@converter("Bernoulli")
def bernoulli(n: Node) -> Value:
    """Return 1 with the probability x, else 0."""
    x = n.input(0)
    drawn = ew.Less()(uniform_like(n, x, f64, _seed(n)), cast(x, f64))
    return cast(drawn, n.attr_dtype("dtype", x.dtype))


@converter("Multinomial")
def multinomial(n: Node) -> Value:
    """Draw classes with probabilities softmax(x): search uniform numbers in the running sum."""
    x = n.input(0)
    if x.tensor.rank != 2:
        n.fail("the input must be [batch, classes]", given=x.type)
    count = n.attr_int("sample_size", 1)
    if count < 1:
        n.fail("sample_size must be positive", given=count)
    edges = CumSum(1)(softmax(cast(widened(x), f64), (1,)))
    size = sh.Concat(0)(sh.Reshape((1,))(size_value(x, 0)), constant([count], i64))
    drawn = deferred(RandomUniform, (), {"shape": size}, dtype=f64, **_identity(n, _seed(n)))
    passed = ew.LessEqual()(sh.Unsqueeze((1,))(edges), sh.Unsqueeze((2,))(drawn))
    chosen = ReduceSum((2,))(cast(passed, i64))
    # The last running sum may round to less than one; the last class takes the rest.
    last = ew.Sub()(size_value(x, 1), scalar(1, chosen))
    return cast(ew.Min()(chosen, last), n.attr_dtype("dtype", i32))
