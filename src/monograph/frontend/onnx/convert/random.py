"""Random ops. Each node becomes an op with an RNG state of its own, in all graphs of a session."""

from __future__ import annotations

from typing import Any

from monograph.frontend.onnx.convert.common import cast, scalar, softmax, widened
from monograph.frontend.onnx.node import Node, converter
from monograph.frontend.onnx.sizes import size_value
from monograph.ir import DType, Value, constant
from monograph.ir.dtype import f32, f64, i32, i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.random import RandomNormal, RandomUniform
from monograph.ops.reduce import CumSum, ReduceSum


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
    """Draw classes with probabilities softmax(x), by searching uniform numbers in their running
    sum.
    """
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
