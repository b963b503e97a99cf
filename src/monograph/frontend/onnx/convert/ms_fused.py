"""Fused ops of the com.microsoft domain, decomposed into the ops that they fuse."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import onnx

from monograph.frontend.onnx.convert.common import cast
from monograph.frontend.onnx.convert.linear import matmul
from monograph.frontend.onnx.convert.quant import MICROSOFT
from monograph.frontend.onnx.node import Node, converter, find_converter
from monograph.frontend.onnx.sizes import iota, size_value
from monograph.ir import Value, constant
from monograph.ir.dtype import i32
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.index import Gather
from monograph.ops.reduce import ReduceSum

OPSET = 23
"""The opset of the ops that fused ops are decomposed into."""
SKIP_EPSILON = 1e-12


def apply_default(
    n: Node,
    op_type: str,
    inputs: tuple[Value | None, ...],
    outputs: tuple[str, ...] = ("y",),
    version: int = OPSET,
    **attributes: Any,
) -> tuple[Value | None, ...]:
    """Apply an op of the default domain, with the attributes of the node and those given."""
    convert = find_converter("", op_type, version)
    if convert is None:
        n.unsupported(f"{op_type} is needed for it")
    node = copy.copy(n)
    node.op_type, node.domain, node.opset = op_type, "", version
    node.inputs, node.outputs = inputs, outputs
    given = {k: onnx.helper.make_attribute(k, v) for k, v in attributes.items()}
    node.attributes = {**n.attributes, **given}
    result = convert(node)
    return (result,) if isinstance(result, Value) else tuple(result)


def default(n: Node, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
    """Return the first output of an op of the default domain."""
    first = apply_default(n, op_type, inputs, **attributes)[0]
    if first is None:
        n.unsupported(f"{op_type} gives nothing")
    return first


# Activations


@converter("Gelu", domain=MICROSOFT)
def gelu(n: Node) -> Value:
    return default(n, "Gelu", n.input(0))


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(n: Node) -> Value:
    return default(n, "Gelu", ew.Add()(n.input(0), n.input(1)))


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(n: Node) -> Value:
    x, bias = n.input(0), n.optional(1)
    return default(n, "Gelu", x if bias is None else ew.Add()(x, bias), approximate="tanh")


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(n: Node) -> Value:
    x = n.input(0)
    alpha = constant(n.attr_float("alpha", 1.702), x.dtype)
    return ew.Mul()(x, ew.Sigmoid()(ew.Mul()(x, alpha)))


def activated(n: Node, y: Value, parameters: tuple[float, ...]) -> Value:
    """Apply the activation that an attribute of a fused op names."""
    name = n.attr_string("activation", "")
    if not name:
        return y
    if name in ("Relu", "Sigmoid", "Tanh"):
        return default(n, name, y)
    if name == "LeakyRelu":
        return default(n, name, y, alpha=(*parameters, 0.01)[0])
    if name == "HardSigmoid" and len(parameters) >= 2:
        return default(n, name, y, alpha=parameters[0], beta=parameters[1])
    if name == "Clip" and len(parameters) >= 2:
        return ew.Clip(parameters[0], parameters[1])(y)
    n.unsupported(f"the activation {name}")


# Products


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(n: Node) -> Value:
    a = _arranged(n.input(0), n.attr_flag("transBatchA"), n.attr_flag("transA"))
    b = _arranged(n.input(1), n.attr_flag("transBatchB"), n.attr_flag("transB"))
    y = matmul(a, b)
    alpha = n.attr_float("alpha", 1.0)
    return y if alpha == 1.0 else ew.Mul()(y, constant(alpha, y.dtype))


def _arranged(x: Value, batch: bool, transposed: bool) -> Value:
    """Move the first dimension of x behind the other batch dimensions, and transpose x."""
    axes = list(range(x.tensor.rank))
    if batch and len(axes) > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if transposed and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else sh.Transpose(tuple(axes))(x)


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(n: Node) -> Value:
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = tuple(n.attr_float(name) for name in names if n.has(name))
    return activated(n, default(n, "Gemm", *n.inputs), parameters)


@converter("FusedConv", domain=MICROSOFT)
def fused_conv(n: Node) -> Value:
    """The activation of conv(x, w) + b + z."""
    y = default(n, "Conv", *n.inputs[:3])
    added = n.optional(3)
    y = y if added is None else ew.Add()(y, added)
    return activated(n, y, n.attr_floats("activation_params", ()))


# Normalisation


@converter("SimplifiedLayerNormalization")
@converter("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_norm(n: Node) -> Value:
    return default(n, "RMSNormalization", n.input(0), n.input(1))


def _skipped(n: Node, bias: Value | None) -> Value:
    total = ew.Add()(n.input(0), n.input(1))
    return total if bias is None else ew.Add()(total, bias)


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_norm(n: Node) -> tuple[Value | None, ...]:
    total = _skipped(n, n.optional(3))
    epsilon = n.attr_float("epsilon", SKIP_EPSILON)
    y = default(n, "RMSNormalization", total, n.input(2), epsilon=epsilon)
    return y, None, None, total


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(n: Node) -> tuple[Value | None, ...]:
    total = _skipped(n, n.optional(4))
    epsilon = n.attr_float("epsilon", SKIP_EPSILON)
    y = default(n, "LayerNormalization", total, n.input(2), n.optional(3), epsilon=epsilon)
    return y, None, None, total


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(n: Node) -> tuple[Value | None, ...]:
    """Convert EmbedLayerNormalization: the normalised sum of embeddings, and the word counts."""
    mask = n.optional(7)
    if n.attr_int("mask_index_type", 0 if mask is None else 1) > 1:
        n.unsupported("a mask index of this kind")
    return embedded(n, [n.optional(i) for i in range(2, 7)], mask, n.optional(8))


def embedded(
    n: Node, tables: Sequence[Value | None], mask: Value | None, positions: Value | None
) -> tuple[Value, Value | None, Value]:
    """Return the normalised sum, the word counts and the sum.

    tables: words, positions and segments, then the scale and bias of the norm.
    """
    words, segments = n.input(0), n.optional(1)
    word, position, segment, gamma, beta = tables
    if word is None or position is None or (segments is not None and segment is None):
        n.fail("a table of embeddings is missing")
    places = sh.Unsqueeze((0,))(iota(size_value(words, 1))) if positions is None else positions
    total = ew.Add()(Gather(0)(word, words), Gather(0)(position, places))
    if segments is not None and segment is not None:
        total = ew.Add()(total, Gather(0)(segment, segments))
    epsilon = n.attr_float("epsilon", SKIP_EPSILON)
    y = default(n, "LayerNormalization", total, gamma, beta, epsilon=epsilon)
    count = ReduceSum((1,))(cast(mask, i32)) if mask is not None else None
    return y, count, total


@converter("Trilu", domain=MICROSOFT)
def trilu(n: Node) -> Value:
    return default(n, "Trilu", *n.inputs)
