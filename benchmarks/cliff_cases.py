"""Single ops at the sizes of real models, written in ONNX's text form, for `make cliffs`.

Operands whose names start with `w` are constants of the model; all others are inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

IMPORTS = '"com.microsoft": 1, "ai.onnx.ml": 3'
WORDS = ("red", "green", "blue", "cat", "dog", "bird", "yes", "no")


@dataclass(frozen=True)
class Case:
    """A small model: operands, nodes, and data of operands that are not drawn by their type."""

    operands: str
    body: str
    """Nodes; the outputs of the last one are those of the model. A lone node gives `y`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """An array, or the range (low, high) that elements are drawn from, by operand."""
    opset: int = 23

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Return the model and its inputs."""
        lines = [line.strip() for line in self.body.split(";")]
        lines = [line if re.match(r"[\w, ]+=", line) else f"y = {line}" for line in lines]
        results = lines[-1].partition("=")[0]
        nodes = "\n".join(lines)
        header = f'<ir_version: 10, opset_import: ["": {self.opset}, {IMPORTS}]>'
        text = f"{header} case ({self.operands}) => ({results}) {{ {nodes} }}"
        model = parser.parse_model(text)
        rng = np.random.default_rng(0)
        arrays = {i.name: self._array(rng, i) for i in model.graph.input}
        inputs = [i for i in model.graph.input if not i.name.startswith("w")]
        constants = {n: a for n, a in arrays.items() if n.startswith("w")}
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
        return model, {i.name: arrays[i.name] for i in inputs}

    def _array(self, rng: np.random.Generator, info: onnx.ValueInfoProto) -> np.ndarray:
        kind = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [d.dim_value for d in kind.shape.dim]
        given = self.data.get(info.name)
        if given is not None and not isinstance(given, tuple):
            return np.asarray(given, dtype).reshape(shape)
        if dtype.kind == "O":
            return rng.choice(np.array(WORDS, object), shape)
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if np.issubdtype(dtype, np.floating):
            if given is not None:
                return np.asarray(rng.uniform(*given, shape), dtype)
            scale = np.prod(shape[1:]) ** -0.5 if info.name.startswith("w") else 1.0
            return np.asarray(rng.normal(size=shape) * scale, dtype)
        low, high = given or {np.dtype(np.uint8): (0, 256), np.dtype(np.int8): (-127, 128)}.get(
            dtype, (0, 8)
        )
        return rng.integers(low, high, shape).astype(dtype)


Cases = dict[str, Case]
_IMAGE, _TOKENS = "float[1,64,56,56] x", "float[1,197,768] x"
_UNIT, _POSITIVE = {"x": (-1.0, 1.0)}, {"x": (0.1, 9.0)}
_QUANT = {"ws": [0.02], "wt": [0.001], "wu": [0.05], "wz": [3]}


def _unary(names: str, data: Mapping[str, Any] | None = None, operand: str = _TOKENS) -> Cases:
    return {name: Case(operand, f"{name}(x)", data or {}) for name in names.split()}


def _binary(names: str, element: str = "float") -> Cases:
    operands = f"{element}[1,197,768] x, {element}[1,197,768] z"
    suffix = "" if element == "float" else f" {element}"
    return {f"{n}{suffix}": Case(operands, f"{n}(x, z)", {"z": (1, 7)}) for n in names.split()}


def _reductions(names: str) -> Cases:
    made = {}
    for name in names.split():
        made[name] = Case(f"{_TOKENS}, int64[1] wa", f"{name}(x, wa)", {"wa": [-1], "x": (0.1, 2)})
        made[f"{name} spatial"] = Case(
            f"{_IMAGE}, int64[2] wa", f"{name}(x, wa)", {"wa": [2, 3], "x": (0.1, 2)}
        )
    return made


REPORTED = {
    "dynamic int8 linear": Case(
        "float[1,197,768] x, int8[768,768] w, float[768] ws, int8[768] wz, float[768] wb",
        "q, s, z = DynamicQuantizeLinear(x); p = MatMulInteger(q, w, z, wz);"
        "f = Cast<to=1>(p); t = Mul(s, ws); u = Mul(f, t); Add(u, wb)",
        {"wz": np.zeros(768), "ws": (0.001, 0.01)},
    ),
    "dynamic int8 convolution": Case(
        "float[1,64,56,56] x, int8[64,64,3,3] w, float[1] ws, int8 wz",
        "q, s, z = DynamicQuantizeLinear(x); p = ConvInteger<pads=[1,1,1,1]>(q, w, z, wz);"
        "f = Cast<to=1>(p); t = Mul(s, ws); Mul(f, t)",
        {"wz": 0, "ws": [0.01]},
    ),
    "MatMulInteger of two inputs": Case(
        "uint8[12,197,64] x, uint8[12,64,197] z, uint8 s, uint8 t", "MatMulInteger(x, z, s, t)"
    ),
    "Conv, weights are inputs": Case(
        "float[1,64,56,56] x, float[64,64,3,3] z", "Conv<pads=[1,1,1,1]>(x, z)"
    ),
    "depthwise Conv, weights are inputs": Case(
        "float[1,256,32,32] x, float[256,1,7,7] z", "Conv<group=256>(x, z)"
    ),
    "ConvTranspose, weights are inputs": Case(
        "float[1,64,28,28] x, float[64,32,4,4] z",
        "ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, z)",
    ),
    "MaxPool 13x13": Case(
        "float[1,256,20,20] x", "MaxPool<kernel_shape=[13,13], pads=[6,6,6,6]>(x)"
    ),
    "MaxPool 9x9": Case("float[1,256,20,20] x", "MaxPool<kernel_shape=[9,9], pads=[4,4,4,4]>(x)"),
    "MaxPool 5x5": Case("float[1,256,20,20] x", "MaxPool<kernel_shape=[5,5], pads=[2,2,2,2]>(x)"),
    "AveragePool 7x7": Case(
        "float[1,64,56,56] x", "AveragePool<kernel_shape=[7,7], pads=[3,3,3,3]>(x)"
    ),
    **_unary("Acos Asin Atanh", _UNIT),
    **_unary("Atan Sinh Cosh Asinh Tan"),
    **_unary("Acosh", {"x": (1.0, 9.0)}),
    "Tanh f64": Case("double[1,197,768] x", "Tanh(x)"),
    "ReverseSequence": Case(
        "float[128,16,256] x, int64[16] z",
        "ReverseSequence<time_axis=0, batch_axis=1>(x, z)",
        {"z": (1, 128)},
    ),
    "RoiAlign": Case(
        "float[1,256,50,68] x, float[100,4] z, int64[100] i",
        "RoiAlign<output_height=7, output_width=7, sampling_ratio=2, spatial_scale=0.0625>"
        "(x, z, i)",
        {"z": np.tile([100.0, 80.0, 600.0, 500.0], (100, 1)), "i": (0, 1)}, opset=16,
    ),
    "Resize antialiased": Case(
        "float[1,3,512,512] x, int64[4] ws",
        'Resize<mode="linear", antialias=1>(x, , , ws)',
        {"ws": [1, 3, 224, 224]},
    ),
    "Resize nearest down": Case(
        "float[1,64,112,112] x, int64[4] ws", 'Resize<mode="nearest">(x, , , ws)',
        {"ws": [1, 64, 56, 56]},
    ),
    "ConvTranspose depthwise": Case(
        "float[1,64,56,56] x, float[64,1,4,4] w",
        "ConvTranspose<strides=[2,2], pads=[1,1,1,1], group=64>(x, w)",
    ),
    "ConvTranspose dilated": Case(
        "float[1,32,56,56] x, float[32,32,3,3] w",
        "ConvTranspose<dilations=[2,2], pads=[2,2,2,2]>(x, w)",
    ),
    "Transpose 2048x2048": Case("float[2048,2048] x", "Transpose<perm=[1,0]>(x)"),
    "depthwise 3x3 stride 2": Case(
        "float[1,128,56,56] x, float[128,1,3,3] w",
        "Conv<group=128, strides=[2,2], pads=[1,1,1,1]>(x, w)",
    ),
    "string one-hot pipeline": Case(
        "string[1000,4] x, float[32,2] w, float[2] wb",
        'h = ai.onnx.ml.OneHotEncoder<cats_strings=["red","green","blue","cat","dog","bird","yes",'
        '"no"]>(x); r = Flatten(h); p = MatMul(r, w); Add(p, wb)',
    ),
}  # fmt: skip

POINTWISE = {
    **_unary("Abs Neg Exp Sin Cos Erf Sigmoid Tanh Relu LeakyRelu Elu Selu Celu Gelu HardSwish"),
    **_unary("HardSigmoid Mish Softplus Softsign ThresholdedRelu Shrink Floor Ceil Round Sign"),
    **_unary("IsNaN IsInf Identity"),
    **_unary("Log Sqrt Reciprocal", _POSITIVE),
    **_unary("Not", operand="bool[1,197,768] x"),
    **_unary("BitwiseNot", operand="int32[1,197,768] x"),
    **_binary("Add Sub Mul Div Pow Min Max PRelu Equal Less Greater"),
    **_binary("Add Mul Div Mod Min Equal", "int64"),
    **_binary("BitwiseAnd BitwiseOr BitwiseXor", "int32"),
    **{n: Case("bool[1,197,768] x, bool[1,197,768] z", f"{n}(x, z)") for n in ("And", "Or", "Xor")},
    "Add, broadcast": Case("float[1,197,768] x, float[768] z", "Add(x, z)"),
    "Mul, broadcast columns": Case("float[1,64,56,56] x, float[1,64,1,1] z", "Mul(x, z)"),
    "Where": Case("bool[1,12,197,197] c, float[1,12,197,197] x, float z", "Where(c, x, z)"),
    "Clip": Case(f"{_IMAGE}, float wl, float wh", "Clip(x, wl, wh)", {"wl": 0.0, "wh": 6.0}),
    "Cast to f16": Case(_TOKENS, "Cast<to=10>(x)"),
    "Cast from f16": Case("float16[1,197,768] x", "Cast<to=1>(x)"),
    "Cast from i64": Case("int64[1,197,768] x", "Cast<to=1>(x)"),
    "Cast from u8": Case("uint8[1,512,512,3] x", "Cast<to=1>(x)"),
    "Exp f64": Case("double[1,197,768] x", "Exp(x)"),
    "Sigmoid f64": Case("double[1,197,768] x", "Sigmoid(x)"),
    "Log f64": Case("double[1,197,768] x", "Log(x)", _POSITIVE),
    "Erf f16": Case("float16[1,197,768] x", "Erf(x)"),
}

REDUCTIONS = {
    **_reductions("ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd"),
    **_reductions("ReduceLogSum ReduceLogSumExp ReduceSumSquare"),
    "ReduceMean of channels": Case(f"{_IMAGE}, int64[1] wa", "ReduceMean(x, wa)", {"wa": [1]}),
    "ArgMax": Case("float[1,197,1000] x", "ArgMax<axis=-1>(x)"),
    "ArgMax of channels": Case("float[1,21,256,256] x", "ArgMax<axis=1>(x)"),
    "ArgMin": Case("float[1,197,1000] x", "ArgMin<axis=-1>(x)"),
    "CumSum": Case("float[1,197,768] x, int64 wa", "CumSum(x, wa)", {"wa": 1}),
    "CumSum of rows": Case("float[1,197,768] x, int64 wa", "CumSum(x, wa)", {"wa": 2}),
    "Softmax": Case("float[1,12,197,197] x", "Softmax<axis=-1>(x)"),
    "Softmax of channels": Case("float[1,21,128,128] x", "Softmax<axis=1>(x)"),
    "LogSoftmax": Case("float[1,128,8000] x", "LogSoftmax<axis=-1>(x)"),
    "Hardmax": Case("float[1,197,1000] x", "Hardmax<axis=-1>(x)"),
    "LayerNormalization": Case(
        f"{_TOKENS}, float[768] ws, float[768] wb", "LayerNormalization(x, ws, wb)"
    ),
    "RMSNormalization": Case(f"{_TOKENS}, float[768] ws", "RMSNormalization(x, ws)"),
    "SkipLayerNormalization": Case(
        f"{_TOKENS}, float[1,197,768] z, float[768] ws, float[768] wb",
        "com.microsoft.SkipLayerNormalization(x, z, ws, wb)",
    ),
    "BatchNormalization": Case(
        f"{_IMAGE}, float[64] ws, float[64] wb, float[64] wm, float[64] wv",
        "BatchNormalization(x, ws, wb, wm, wv)", {"wv": (0.5, 2.0)},
    ),
    "InstanceNormalization": Case(
        f"{_IMAGE}, float[64] ws, float[64] wb", "InstanceNormalization(x, ws, wb)"
    ),
    "GroupNormalization": Case(
        f"{_IMAGE}, float[64] ws, float[64] wb", "GroupNormalization<num_groups=8>(x, ws, wb)"
    ),
    "LpNormalization": Case(_TOKENS, "LpNormalization<axis=-1, p=2>(x)"),
    "MeanVarianceNormalization": Case(_IMAGE, "MeanVarianceNormalization(x)"),
    "LRN": Case(_IMAGE, "LRN<size=5>(x)"),
}  # fmt: skip

PRODUCTS = {
    "MatMul": Case(f"{_TOKENS}, float[768,768] w", "MatMul(x, w)"),
    "MatMul of one row": Case("float[1,1,2048] x, float[2048,2048] w", "MatMul(x, w)"),
    "MatMul of two inputs": Case("float[12,197,64] x, float[12,64,197] z", "MatMul(x, z)"),
    "MatMul f64": Case("double[197,256] x, double[256,256] w", "MatMul(x, w)"),
    "MatMul f16": Case("float16[197,256] x, float16[256,256] w", "MatMul(x, w)"),
    "Gemm": Case(
        "float[16,1024] x, float[1024,1024] w, float[1024] wb", "Gemm<transB=1>(x, w, wb)"
    ),
    "Gemm of two inputs": Case("float[256,512] x, float[256,512] z", "Gemm<transB=1>(x, z)"),
    "Einsum": Case(
        "float[1,197,12,64] x, float[1,197,12,64] z",
        'Einsum<equation="bihd,bjhd->bhij">(x, z)',
    ),
    "MatMulNBits": Case(
        "float[1,1,1024] x, uint8[1024,32,16] w, float[1024,32] ws",
        "com.microsoft.MatMulNBits<K=1024, N=1024, bits=4, block_size=32>(x, w, ws)",
    ),
    "QLinearMatMul": Case(
        "uint8[197,768] x, float ws, uint8 wz, int8[768,768] w, float wt, int8 wy, float wu",
        "QLinearMatMul(x, ws, wz, w, wt, wy, wu, wz)",
        {**_QUANT, "wy": 0},
    ),
    "QuantizeLinear": Case(
        f"{_TOKENS}, float ws, uint8 wz", "QuantizeLinear(x, ws, wz)", _QUANT
    ),
    "DequantizeLinear": Case(
        "uint8[1,197,768] x, float ws, uint8 wz", "DequantizeLinear(x, ws, wz)", _QUANT
    ),
    "DynamicQuantizeLinear": Case(_TOKENS, "y, s, z = DynamicQuantizeLinear(x)"),
    "Attention": Case(
        "float[1,12,197,64] q, float[1,12,197,64] k, float[1,12,197,64] v", "Attention(q, k, v)"
    ),
    "MultiHeadAttention": Case(
        "float[1,197,768] q, float[1,197,768] k, float[1,197,768] v",
        "com.microsoft.MultiHeadAttention<num_heads=12>(q, k, v)",
    ),
    "LSTM": Case(
        "float[64,1,64] x, float[1,1024,64] w, float[1,1024,256] wr, float[1,2048] wb",
        "LSTM<hidden_size=256>(x, w, wr, wb)",
    ),
    "LSTM of a batch": Case(
        "float[64,16,64] x, float[1,1024,64] w, float[1,1024,256] wr, float[1,2048] wb",
        "LSTM<hidden_size=256>(x, w, wr, wb)",
    ),
    "GRU": Case(
        "float[64,1,64] x, float[1,768,64] w, float[1,768,256] wr, float[1,1536] wb",
        "GRU<hidden_size=256>(x, w, wr, wb)",
    ),
    "RNN": Case(
        "float[64,1,64] x, float[1,256,64] w, float[1,256,256] wr, float[1,512] wb",
        "RNN<hidden_size=256>(x, w, wr, wb)",
    ),
    "DFT": Case("float[16,512,1] x, int64 wa", "DFT<onesided=1>(x, , wa)", {"wa": 1}),
    "STFT": Case(
        "float[1,16000,1] x, int64 wn, float[400] w", "STFT(x, wn, w)", {"wn": 160}
    ),
    "Det": Case("float[1000,4,4] x", "Det(x)"),
}  # fmt: skip

CONVOLUTIONS = {
    "Conv 3x3": Case(f"{_IMAGE}, float[64,64,3,3] w", "Conv<pads=[1,1,1,1]>(x, w)"),
    "Conv 1x1": Case("float[1,256,28,28] x, float[128,256,1,1] w", "Conv(x, w)"),
    "Conv 3x3 stride 2": Case(
        f"{_IMAGE}, float[128,64,3,3] w", "Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)"
    ),
    "Conv 7x7 stride 2": Case(
        "float[1,3,224,224] x, float[64,3,7,7] w", "Conv<pads=[3,3,3,3], strides=[2,2]>(x, w)"
    ),
    "Conv dilated": Case(
        f"{_IMAGE}, float[64,64,3,3] w", "Conv<pads=[2,2,2,2], dilations=[2,2]>(x, w)"
    ),
    "Conv grouped": Case(
        f"{_IMAGE}, float[64,16,3,3] w", "Conv<pads=[1,1,1,1], group=4>(x, w)"
    ),
    "Conv depthwise 3x3": Case(
        "float[1,128,56,56] x, float[128,1,3,3] w", "Conv<pads=[1,1,1,1], group=128>(x, w)"
    ),
    "Conv depthwise 5x5 stride 2": Case(
        "float[1,240,28,28] x, float[240,1,5,5] w",
        "Conv<pads=[2,2,2,2], strides=[2,2], group=240>(x, w)",
    ),
    "Conv 1-D": Case("float[1,80,3000] x, float[384,80,3] w", "Conv<pads=[1,1]>(x, w)"),
    "Conv 3-D": Case(
        "float[1,16,16,32,32] x, float[32,16,3,3,3] w", "Conv<pads=[1,1,1,1,1,1]>(x, w)"
    ),
    "Conv f16": Case(
        "float16[1,32,28,28] x, float16[32,32,3,3] w", "Conv<pads=[1,1,1,1]>(x, w)"
    ),
    "ConvTranspose 2x2": Case(
        "float[1,64,56,56] x, float[64,32,2,2] w", "ConvTranspose<strides=[2,2]>(x, w)"
    ),
    "ConvTranspose 4x4": Case(
        "float[1,64,28,28] x, float[64,32,4,4] w",
        "ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w)",
    ),
    "ConvTranspose 1-D": Case(
        "float[1,128,200] x, float[128,64,16] w", "ConvTranspose<strides=[8], pads=[4,4]>(x, w)"
    ),
    "ConvInteger": Case(
        "uint8[1,64,28,28] x, int8[64,64,3,3] w", "ConvInteger<pads=[1,1,1,1]>(x, w)"
    ),
    "QLinearConv": Case(
        "uint8[1,64,28,28] x, float ws, uint8 wz, int8[64,64,3,3] w, float wt, int8 wy, float wu",
        "QLinearConv<pads=[1,1,1,1]>(x, ws, wz, w, wt, wy, wu, wz)", {**_QUANT, "wy": 0},
    ),
    "DeformConv": Case(
        "float[1,64,28,28] x, float[64,64,3,3] w, float[1,18,28,28] z",
        "DeformConv<pads=[1,1,1,1], kernel_shape=[3,3]>(x, w, z)",
    ),
}  # fmt: skip

IMAGES = {
    "MaxPool 3x3 stride 2": Case(
        "float[1,64,112,112] x", "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)"
    ),
    "MaxPool 2x2": Case(_IMAGE, "MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "MaxPool with indices": Case(_IMAGE, "y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "AveragePool 2x2": Case(_IMAGE, "AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "AveragePool 3x3": Case(_IMAGE, "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)"),
    "LpPool": Case(_IMAGE, "LpPool<kernel_shape=[3,3], p=2>(x)"),
    "GlobalAveragePool": Case("float[1,512,7,7] x", "GlobalAveragePool(x)"),
    "GlobalMaxPool": Case("float[1,512,7,7] x", "GlobalMaxPool(x)"),
    "MaxUnpool": Case(
        "float[1,64,56,56] x", "y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x);"
        "r = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(y, i)",
    ),
    "Resize linear up": Case(
        "float[1,64,28,28] x, int64[4] ws", 'Resize<mode="linear">(x, , , ws)',
        {"ws": [1, 64, 56, 56]},
    ),
    "Resize linear down": Case(
        "float[1,3,480,640] x, int64[4] ws", 'Resize<mode="linear">(x, , , ws)',
        {"ws": [1, 3, 224, 224]},
    ),
    "Resize cubic": Case(
        "float[1,3,128,128] x, int64[4] ws", 'Resize<mode="cubic">(x, , , ws)',
        {"ws": [1, 3, 256, 256]},
    ),
    "Resize nearest up": Case(
        "float[1,64,28,28] x, int64[4] ws",
        'Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
        'nearest_mode="floor">(x, , , ws)', {"ws": [1, 64, 56, 56]},
    ),
    "GridSample": Case(
        "float[1,64,56,56] x, float[1,56,56,2] z", "GridSample(x, z)", {"z": (-1, 1)}
    ),
    "AffineGrid": Case(
        "float[1,2,3] x, int64[4] ws", "AffineGrid(x, ws)", {"ws": [1, 3, 224, 224]}
    ),
    "NonMaxSuppression": Case(
        "float[1,1000,4] x, float[1,8,1000] z, int64 wn, float wi, float ws",
        "NonMaxSuppression(x, z, wn, wi, ws)",
        {"x": (0, 100), "z": (0, 1), "wn": 50, "wi": 0.5, "ws": 0.3},
    ),
    "DepthToSpace": Case("float[1,64,56,56] x", "DepthToSpace<blocksize=2>(x)"),
    "SpaceToDepth": Case("float[1,16,112,112] x", "SpaceToDepth<blocksize=2>(x)"),
    "Col2Im": Case(
        "float[1,576,784] x, int64[2] ws, int64[2] wk", "Col2Im<pads=[1,1,1,1]>(x, ws, wk)",
        {"ws": [28, 28], "wk": [3, 3]},
    ),
}  # fmt: skip

MOVES = {
    "Transpose of heads": Case("float[1,197,12,64] x", "Transpose<perm=[0,2,1,3]>(x)"),
    "Transpose to channels last": Case("float[1,3,512,512] x", "Transpose<perm=[0,2,3,1]>(x)"),
    "Transpose from channels last": Case("float[1,512,512,3] x", "Transpose<perm=[0,3,1,2]>(x)"),
    "Transpose of channels": Case("float[1,64,56,56] x", "Transpose<perm=[0,2,3,1]>(x)"),
    "Concat": Case("float[1,64,56,56] x, float[1,64,56,56] z", "Concat<axis=1>(x, z)"),
    "Concat of rows": Case("float[197,384] x, float[197,384] z", "Concat<axis=-1>(x, z)"),
    "Split": Case("float[1,197,2304] x", "a, b, c = Split<axis=-1, num_outputs=3>(x)"),
    "Slice": Case(
        "float[1,64,56,56] x, int64[2] wa, int64[2] wb, int64[2] wc, int64[2] wd",
        "Slice(x, wa, wb, wc, wd)",
        {"wa": [0, 0], "wb": [56, 56], "wc": [2, 3], "wd": [2, 2]},
    ),
    "Pad": Case("float[1,64,56,56] x, int64[8] wp", "Pad(x, wp)", {"wp": [0, 0, 1, 1] * 2}),
    "Pad reflect": Case(
        "float[1,64,56,56] x, int64[8] wp", 'Pad<mode="reflect">(x, wp)', {"wp": [0, 0, 3, 3] * 2}
    ),
    "Tile": Case("float[1,64,28,28] x, int64[4] wr", "Tile(x, wr)", {"wr": [1, 1, 2, 2]}),
    "Expand": Case("float[1,197,1] x, int64[3] ws", "Expand(x, ws)", {"ws": [1, 197, 768]}),
    "Gather of rows": Case("float[8000,384] w, int64[1,128] i", "Gather(w, i)", {"i": (0, 8000)}),
    "Gather of columns": Case(
        "float[197,768] x, int64[128] i", "Gather<axis=1>(x, i)", {"i": (0, 768)}
    ),
    "GatherElements": Case(
        "float[197,768] x, int64[197,64] i", "GatherElements<axis=1>(x, i)", {"i": (0, 768)}
    ),
    "GatherND": Case(
        "float[197,197,64] x, int64[1000,2] i", "GatherND(x, i)", {"i": (0, 197)}
    ),
    "ScatterElements": Case(
        "float[197,768] x, int64[197,64] i, float[197,64] u", "ScatterElements<axis=1>(x, i, u)",
        {"i": (0, 768)},
    ),
    "ScatterND": Case(
        "float[1000,256] x, int64[100,1] i, float[100,256] u", "ScatterND(x, i, u)",
        {"i": np.arange(100).reshape(100, 1) * 7},
    ),
    "OneHot": Case(
        "int64[1,128] i, int64 wd, float[2] wv", "OneHot(i, wd, wv)",
        {"i": (0, 1000), "wd": 1000, "wv": [0, 1]},
    ),
    "TopK": Case("float[1,8400] x, int64[1] wk", "v, i = TopK(x, wk)", {"wk": [300]}),
    "TopK of rows": Case("float[197,1000] x, int64[1] wk", "v, i = TopK(x, wk)", {"wk": [5]}),
    "NonZero": Case("bool[1,128,128] x", "NonZero(x)"),
    "Unique": Case("int64[5000] x", "Unique(x)", {"x": (0, 500)}),
    "Compress": Case("float[1000,64] x, bool[1000] c", "Compress<axis=0>(x, c)"),
    "Trilu": Case("float[1,12,197,197] x", "Trilu(x)"),
    "Range": Case("int64 a, int64 wb, int64 wc", "Range(a, wb, wc)", {"a": 0, "wb": 5000, "wc": 1}),
}  # fmt: skip

CLASSICAL = {
    "Scaler": Case(
        "float[1000,16] x", f"ai.onnx.ml.Scaler<offset={[0.5] * 16}, scale={[2.0] * 16}>(x)"
    ),
    "Normalizer": Case("float[1000,16] x", 'ai.onnx.ml.Normalizer<norm="L2">(x)'),
    "LinearRegressor": Case(
        "float[1000,16] x",
        f"ai.onnx.ml.LinearRegressor<coefficients={[0.5] * 16}, intercepts=[1.0]>(x)",
    ),
    "LabelEncoder": Case(
        "string[1000,4] x",
        'ai.onnx.ml.LabelEncoder<keys_strings=["red","green","blue","cat"], '
        "values_int64s=[0,1,2,3], default_int64=-1>(x)",
    ),
    "OneHotEncoder": Case(
        "int64[1000,4] x", f"ai.onnx.ml.OneHotEncoder<cats_int64s={list(range(8))}>(x)"
    ),
    "StringNormalizer": Case(
        "string[1000] x", 'StringNormalizer<case_change_action="UPPER", locale="C">(x)'
    ),
}

CASES: Cases = {
    **REPORTED, **POINTWISE, **REDUCTIONS, **PRODUCTS, **CONVOLUTIONS, **IMAGES, **MOVES,
    **CLASSICAL,
}  # fmt: skip


def write_case(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a case as a model and an archive of its inputs; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower())
    model, feeds = CASES[name].model()
    path, archive = folder / f"{stem}.onnx", folder / f"{stem}.npz"
    onnx.save(model, path)
    np.savez(archive, **{k: v.astype(str) if v.dtype == object else v for k, v in feeds.items()})
    return path, archive
