"""Valid models to mutate: ONNX's own backend models, and small ones of several ops each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MAX_BYTES = 12_000
OPSETS = {"": 21, "com.microsoft": 1, "ai.onnx.ml": 4, "local": 1}


@cache
def seeds() -> tuple[bytes, ...]:
    """Every seed, in a fixed order. Made models stand among the files often enough to be drawn."""
    made = [m.SerializeToString() for m in _made()]
    files = sorted((Path(onnx.__file__).parent / "backend/test/data").glob("*/*/*.onnx"))
    found = [f.read_bytes() for f in files if f.stat().st_size <= MAX_BYTES]
    return (*made * max(1, len(found) // len(made) // 3), *found)


def _info(name: str, shape: list[int | str] | None, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def _floats(name: str, *shape: int) -> TensorProto:
    values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return numpy_helper.from_array(values, name)


def _ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _model(nodes, inputs, outputs, initialisers=(), functions=()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "seed", inputs, outputs, initializer=list(initialisers))
    imports = [helper.make_opsetid(d, v) for d, v in OPSETS.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def _made() -> list[onnx.ModelProto]:
    return [_convolutions(), _attention(), _control_flow(), _shapes(), _quantised(), _recurrent(),
            _functions(), _typed_tensors(), _sequences()]  # fmt: skip


def _convolutions() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w", "b"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        n("BatchNormalization", ["a", "s", "b", "b", "v"], ["c"]),
        n("Clip", ["c", "", "top"], ["d"]),
        n("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        n("Resize", ["e", "", "scales"], ["f"], mode="linear"),
        n("ConvTranspose", ["f", "u"], ["g"], strides=[2, 2]),
        n("GlobalAveragePool", ["g"], ["h"]),
        n("Flatten", ["h"], ["i"]),
        n("Gemm", ["i", "m"], ["j"], transB=1),
        n("Softmax", ["j"], ["y"]),
    ]
    weights = [
        _floats("w", 4, 3, 3, 3), _floats("b", 4), _floats("s", 4), _floats("u", 4, 2, 2, 2),
        numpy_helper.from_array(np.ones(4, np.float32), "v"), _floats("m", 5, 2),
        numpy_helper.from_array(np.float32(6), "top"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
    ]  # fmt: skip
    return _model(nodes, [_info("x", ["N", 3, 8, 8])], [_info("y", None)], weights)


def _attention() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("Gather", ["table", "ids"], ["x"]),
        n("LayerNormalization", ["x", "scale", "bias"], ["a"]),
        n("MatMul", ["a", "wq"], ["q"]),
        n("Reshape", ["q", "split"], ["r"]),
        n("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3]),
        n("Transpose", ["r"], ["k"], perm=[0, 2, 3, 1]),
        n("MatMul", ["t", "k"], ["s"]),
        n("Softmax", ["s"], ["p"], axis=-1),
        n("MatMul", ["p", "t"], ["o"]),
        n("ReduceMean", ["o", "axes"], ["m"], keepdims=0),
        n("Erf", ["m"], ["e"]),
        n("TopK", ["e", "two"], ["y", "z"]),
    ]
    weights = [
        _floats("table", 10, 4), _floats("scale", 4), _floats("bias", 4), _floats("wq", 4, 4),
        _ints("split", 0, 0, 2, 2), _ints("axes", 1, 2), _ints("two", 2),
    ]  # fmt: skip
    inputs = [_info("ids", ["B", "T"], TensorProto.INT64)]
    outputs = [_info("y", None), _info("z", None, TensorProto.INT64)]
    return _model(nodes, inputs, outputs, weights)


def _control_flow() -> onnx.ModelProto:
    n = helper.make_node
    then = helper.make_graph([n("Mul", ["x", "x"], ["t"])], "then", [], [_info("t", None)])
    other = helper.make_graph([n("Neg", ["x"], ["e"])], "else", [], [_info("e", None)])
    body = helper.make_graph(
        [
            n("Add", ["state", "x"], ["next"]),
            n("Identity", ["go"], ["on"]),
            n("Abs", ["next"], ["s"]),
        ],
        "body",
        [_info("i", [], TensorProto.INT64), _info("go", [], TensorProto.BOOL), _info("state", [3])],
        [_info("on", [], TensorProto.BOOL), _info("next", [3]), _info("s", [3])],
    )
    scanned = helper.make_graph(
        [n("Add", ["total", "row"], ["sum"]), n("Identity", ["sum"], ["copy"])],
        "scan",
        [_info("total", []), _info("row", [])],
        [_info("sum", []), _info("copy", [])],
    )
    nodes = [
        n("If", ["c"], ["a"], then_branch=then, else_branch=other),
        n("Loop", ["count", "c", "a"], ["b", "list"], body=body),
        n("Scan", ["zero", "b"], ["last", "y"], body=scanned, num_scan_inputs=1),
    ]
    weights = [_ints("count", 3), numpy_helper.from_array(np.float32(0), "zero")]
    weights[0].dims[:] = []
    inputs = [_info("x", [3]), _info("c", [], TensorProto.BOOL)]
    return _model(nodes, inputs, [_info("y", None), _info("list", None)], weights)


def _shapes() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["s"]),
        n("Gather", ["s", "zero"], ["d"], axis=0),
        n("Concat", ["d", "sizes"], ["t"], axis=0),
        n("Expand", ["one", "t"], ["e"]),
        n("Tile", ["e", "repeats"], ["u"]),
        n("Slice", ["u", "starts", "ends", "axes"], ["v"]),
        n("Pad", ["v", "pads"], ["p"], mode="constant"),
        n("Split", ["p", "halves"], ["q", "r"], axis=1),
        n("Where", ["m", "q", "q"], ["w"]),
        n("ConstantOfShape", ["t"], ["z"]),
        n("Range", ["first", "last", "first"], ["k"]),
        n("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        n("ReduceSum", ["f"], ["g"]),
        n("CumSum", ["w", "first"], ["h"]),
        n("Add", ["h", "g"], ["y"]),
        n("OneHot", ["zero", "last", "pair"], ["o"]),
        n("NonZero", ["p"], ["nz"]),
        n("Einsum", ["w", "w"], ["ei"], equation="ij,kj->ik"),
    ]
    weights = [
        _ints("zero", 0), _ints("sizes", 2), _ints("repeats", 1, 2), _ints("starts", 1),
        _ints("ends", 4), _ints("axes", 1), _ints("pads", 0, 0, 0, 1), _ints("halves", 2, 2),
        _floats("one", 1, 2), numpy_helper.from_array(np.array([[True], [False]]), "m"),
        numpy_helper.from_array(np.array(1, np.int64), "first"),
        numpy_helper.from_array(np.array(5, np.int64), "last"),
        numpy_helper.from_array(np.array([0, 1], np.float32), "pair"),
    ]  # fmt: skip
    outputs = [_info(name, None) for name in ("y", "z", "o", "ei")]
    outputs.append(_info("nz", None, TensorProto.INT64))
    return _model(nodes, [_info("x", [2, "W"])], outputs, weights)


def _quantised() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        n("MatMulInteger", ["q", "w", "z"], ["i"]),
        n("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        n("Mul", ["f", "s"], ["d"]),
        n("QuantizeLinear", ["d", "scale", "zero"], ["e"]),
        n("DequantizeLinear", ["e", "scale", "zero"], ["g"]),
        n("DequantizeLinear", ["packed", "scales"], ["h"], axis=0, block_size=2),
        n("MatMul", ["g", "h"], ["j"]),
        n("QuickGelu", ["j"], ["y"], domain="com.microsoft"),
    ]
    packed = helper.make_tensor("packed", TensorProto.INT4, [4, 2], range(-4, 4))
    weights = [
        numpy_helper.from_array(np.arange(12, dtype=np.int8).reshape(3, 4), "w"),
        numpy_helper.from_array(np.float32(0.1), "scale"), _floats("scales", 2, 2), packed,
        numpy_helper.from_array(np.int8(1), "zero"),
    ]  # fmt: skip
    return _model(nodes, [_info("x", ["N", 3])], [_info("y", None)], weights)


def _recurrent() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("LSTM", ["x", "w", "r", "b"], ["a", "h"], hidden_size=2, direction="bidirectional"),
        n("Squeeze", ["h"], ["s"]),
        n("GRU", ["x", "gw", "gr"], ["", "g"], hidden_size=2),
        n("Concat", ["s", "g"], ["c"], axis=0),
        n("ArgMax", ["c"], ["y"], axis=-1),
    ]
    weights = [
        _floats("w", 2, 8, 3), _floats("r", 2, 8, 2), _floats("b", 2, 16),
        _floats("gw", 1, 6, 3), _floats("gr", 1, 6, 2),
    ]  # fmt: skip
    return _model(nodes, [_info("x", ["T", 2, 3])], [_info("y", None, TensorProto.INT64)], weights)


def _functions() -> onnx.ModelProto:
    n = helper.make_node
    scale = n("LeakyRelu", ["p"], ["q"])
    scale.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    inner = helper.make_function("local", "inner", ["p"], ["q"], [scale], imports, ["slope"])
    outer = helper.make_function(
        "local",
        "outer",
        ["p", "bias"],
        ["r"],
        [n("inner", ["p"], ["t"], domain="local", slope=0.5), n("Add", ["t", "bias"], ["r"])],
        imports,
    )
    nodes = [
        n("outer", ["x", "b"], ["a"], domain="local"),
        n("Celu", ["a"], ["c"]),
        n("HardSwish", ["c"], ["y"]),
    ]
    return _model(
        nodes, [_info("x", [2, 3])], [_info("y", None)], [_floats("b", 3)], [inner, outer]
    )


def _typed_tensors() -> onnx.ModelProto:
    """Data in every kind of field, and a sparse initialiser."""
    n = helper.make_node
    tensors = [
        helper.make_tensor("t0", TensorProto.FLOAT, [2], [1, 2]),
        helper.make_tensor("t1", TensorProto.FLOAT16, [2], [1, 2]),
        helper.make_tensor("t2", TensorProto.DOUBLE, [2], [1, 2]),
        helper.make_tensor("t3", TensorProto.UINT8, [2], [1, 2]),
        helper.make_tensor("t4", TensorProto.UINT64, [2], [1, 2]),
        helper.make_tensor("t5", TensorProto.BOOL, [2], [True, False]),
        helper.make_tensor("t6", TensorProto.BFLOAT16, [2], [1, 2]),
        helper.make_tensor("t7", TensorProto.FLOAT8E4M3FN, [2], [1, 2]),
        helper.make_tensor("t8", TensorProto.UINT4, [2], [1, 2]),
    ]
    nodes = [n("Cast", [t.name], [f"c{i}"], to=1) for i, t in enumerate(tensors)]
    nodes.append(n("Sum", ["sp", *(f"c{i}" for i in range(len(tensors)))], ["y"]))
    made = _model(nodes, [], [_info("y", None)], tensors)
    values = helper.make_tensor("sp", TensorProto.FLOAT, [1], [3.0])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, _ints("", 1), [2]))
    return made


def _sequences() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("SequenceConstruct", ["x", "x"], ["s"]),
        n("SequenceInsert", ["s", "x"], ["t"]),
        n("SequenceAt", ["t", "one"], ["a"]),
        n("ConcatFromSequence", ["t"], ["y"], axis=0),
        n("Unique", ["a"], ["u", "ui"]),
        n("NonMaxSuppression", ["boxes", "scores"], ["nms"]),
    ]
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    boxes = numpy_helper.from_array(np.random.default_rng(0).random((1, 4, 4), np.float32), "boxes")
    inputs = [_info("x", ["N", 2]), _info("scores", [1, 2, 4])]
    outputs = [_info("y", None), _info("u", None), _info("nms", None, TensorProto.INT64)]
    return _model(nodes, inputs, outputs, [one, boxes])
