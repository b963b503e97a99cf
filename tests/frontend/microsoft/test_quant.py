"""Quantised ops of the com.microsoft domain against ONNX Runtime's CPU provider."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.codegen.llvm.module.select import CpuTarget
from monograph.errors import MonographError
from monograph.frontend.onnx.convert.ms_quant import unpack_bits
from monograph.pipeline import optimise
from monograph.program.lowering import lower
from tests.frontend.microsoft.nodes import F32, agree, agree_within_a_step, data, microsoft
from tests.frontend.nodes import close, node_model, run_node

MICROSOFT = {"domain": "com.microsoft", "opset": 1}
S8, S8Z = np.array(0.03, np.float32), np.array(0.05, np.float32)


def test_unpack_bits_takes_low_bits_first() -> None:
    packed = np.array([[0x21, 0xF4]], np.uint8)
    assert unpack_bits(packed, 4).tolist() == [[1, 2, 4, 15]]
    assert unpack_bits(packed, 2).tolist() == [[1, 0, 2, 0, 0, 1, 3, 3]]
    assert unpack_bits(packed, 8) is packed


# Weights in blocks


def nbits_inputs(rows: int, size: int, block: int, bits: int, zeros: str) -> list[Any]:
    blocks = -(-size // block)
    packed = data(rows, blocks, block * bits // 8, dtype=np.uint8)
    scale = np.abs(data(rows, blocks)) * 0.02 + 0.01
    inputs: list[Any] = [data(2, 3, size), packed, scale]
    if zeros == "packed":
        inputs.append(data(rows, -(-blocks * bits // 8), seed=3, dtype=np.uint8))
    elif zeros == "float":
        inputs.append(data(rows, blocks, seed=4) + 7)
    return inputs


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("bits", "size", "block"), [
    (4, 64, 32), (4, 48, 32), (4, 96, 32), (8, 64, 32), (8, 40, 16), (2, 64, 32),
])  # fmt: skip
def test_matmul_nbits(zeros: str, bits: int, size: int, block: int) -> None:
    if bits != 4 and zeros == "float":
        pytest.skip("ONNX Runtime's CPU provider takes float zero points for 4 bits only")
    inputs = nbits_inputs(5, size, block, bits, zeros)
    constant = range(1, len(inputs))
    # Up to 96 products of weights up to 255 steps of 0.1.
    tolerance = F32 * 2 ** (bits - 3)
    agree(
        "MatMulNBits", *inputs, constant=constant, tolerance=tolerance,
        K=size, N=5, bits=bits, block_size=block, accuracy_level=1,
    )  # fmt: skip


def test_matmul_nbits_adds_a_bias() -> None:
    inputs = [*nbits_inputs(5, 64, 32, 4, "none"), None, None, data(5)]
    sizes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    agree("MatMulNBits", *inputs, constant=(1, 2, 5), **sizes)


def test_matmul_nbits_keeps_its_weights_small() -> None:
    """One constant of 4-bit integers and a Dequantize with blocks, for rules to match."""
    inputs = nbits_inputs(5, 64, 32, 4, "none")
    sizes = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    model = node_model("MatMulNBits", inputs, constant=(1, 2), **MICROSOFT, **sizes)
    graph = monograph.load(model).graph
    (found,) = [v for v in graph.values if v.op.name == "dequantize"]
    assert str(found.inputs[0].type) == "i4[5, 64]"
    assert found.op.attributes["block"] == 32
    assert len(found.inputs) == 2


@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_matmul_nbits_runs_the_same_kernel_for_scales_of_older_exporters(
    zeros: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Scales as a vector: the weights stay packed, and every bit of the result is the same."""
    square = nbits_inputs(96, 512, 32, 4, zeros)
    flat = [*square[:2], *(x.reshape(-1) for x in square[2:])]
    sizes = {"K": 512, "N": 96, "bits": 4, "block_size": 32}
    found = []
    for inputs in (square, flat):
        constant = range(1, len(inputs))
        model = node_model("MatMulNBits", inputs, constant=constant, **MICROSOFT, **sizes)
        session = monograph.load(model, cache_dir="")
        (result,) = session.run({session.inputs[0].name: inputs[0]})
        program = lower(optimise(session.graph), CpuTarget()).whole
        kinds = [step.region.kind for step in program.steps]
        stored = sum(v.tensor.nbytes for v in program.graph.values if v.op.name == "constant")
        found.append((result.tobytes(), kinds, stored))
    assert found[0] == found[1]
    assert "dequantize" not in found[0][1]
    assert found[0][1].count("dot") == 1
    assert found[0][2] < 2 * 96 * 512
    assert "decodes constant weights" not in caplog.text


@pytest.mark.parametrize(("level", "bits"), [(0, 0), (1, 0), (4, 8)])
def test_matmul_nbits_permits_what_its_accuracy_level_does(level: int, bits: int) -> None:
    inputs = nbits_inputs(5, 64, 32, 4, "none")
    sizes = {"K": 64, "N": 5, "bits": 4, "block_size": 32, "accuracy_level": level}
    model = node_model("MatMulNBits", inputs, constant=(1, 2), **MICROSOFT, **sizes)
    (found,) = [v for v in monograph.load(model).graph.values if v.op.name == "dot"]
    assert found.op.attributes["left_bits"] == bits


def test_matmul_nbits_refuses_what_does_not_fit() -> None:
    inputs = nbits_inputs(5, 64, 32, 4, "none")
    sizes = {"K": 64, "N": 5, "bits": 4, "block_size": 32, **MICROSOFT}
    with pytest.raises(MonographError, match="wrong size"):
        run_node("MatMulNBits", *inputs, constant=(1, 2), **sizes | {"N": 6})
    with pytest.raises(MonographError, match="3 bits"):
        run_node("MatMulNBits", *inputs, constant=(1, 2), **sizes | {"bits": 3})
    with pytest.raises(MonographError, match="not constants"):
        run_node("MatMulNBits", *inputs, **sizes)
    shuffled = np.arange(64, dtype=np.int32)[::-1].copy() // 32
    with pytest.raises(MonographError, match="g_idx"):
        run_node("MatMulNBits", *inputs, None, shuffled, constant=(1, 2, 4), **sizes)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_block_quantized_from_bytes(bits: int, zeros: bool) -> None:
    width = 32 * bits // 8
    table = data(6, width, dtype=np.uint8)
    scale = np.abs(data(6, 2)) + 0.1
    zero = [data(6, 2 * bits // 8, seed=2, dtype=np.uint8)] if zeros else []
    indices = np.array([[0, 5], [3, 3]], np.int64)
    agree(
        "GatherBlockQuantized", table, indices, scale, *zero, constant=(0, 2, 3),
        bits=bits, block_size=16, quantize_axis=1,
    )  # fmt: skip


def test_gather_block_quantized_from_small_integers() -> None:
    table = data(6, 32, dtype=np.int8).astype(ml_dtypes.int4)
    scale, zero = np.abs(data(6, 2)) + 0.1, np.arange(12).reshape(6, 2).astype(ml_dtypes.int4)
    indices = np.array([4, 0, 1], np.int64)
    options = {"block_size": 16, "quantize_axis": 1, **MICROSOFT}
    (y,) = run_node("GatherBlockQuantized", table, indices, scale, zero, **options)
    centred = table.astype(np.float64) - zero.astype(np.float64).repeat(16, 1)
    np.testing.assert_allclose(y, (centred * scale.repeat(16, 1))[indices], rtol=1e-6)
    same = {"gather_axis": 1, "quantize_axis": 1, "block_size": 16, **MICROSOFT}
    (y,) = run_node("GatherBlockQuantized", table, indices, scale, zero, **same)
    np.testing.assert_allclose(y, (centred * scale.repeat(16, 1))[:, indices], rtol=1e-6)


def tied_embeddings(rows: int, zeros: bool) -> onnx.ModelProto:
    """Ids are looked up in the packed weights of the last product, as genai's builder writes it."""
    size, blocks, block = 128, 4, 32
    packed = numpy_helper.from_array(data(rows, blocks, block // 2, dtype=np.uint8), "packed")
    scale = numpy_helper.from_array(np.abs(data(rows, blocks)) * 0.02 + 0.01, "scale")
    zero = numpy_helper.from_array(data(rows, blocks // 2, seed=2, dtype=np.uint8), "zero")
    shape = numpy_helper.from_array(np.array([rows, blocks * block // 2]), "shape")
    others = ["zero"] if zeros else []
    head = {"K": size, "N": rows, "bits": 4, "block_size": block, "accuracy_level": 1}
    nodes = [
        helper.make_node("Reshape", ["packed", "shape"], ["table"]),
        helper.make_node(
            "GatherBlockQuantized", ["table", "ids", "scale", *others], ["x"],
            domain="com.microsoft", bits=4, block_size=block, gather_axis=0, quantize_axis=1,
        ),
        helper.make_node(
            "MatMulNBits", ["x", "packed", "scale", *others], ["y"], domain="com.microsoft", **head
        ),
    ]  # fmt: skip
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "S", rows])
    weights = [packed, scale, shape, *([zero] if zeros else [])]
    graph = helper.make_graph(nodes, "tied", [ids], [y], weights)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_tied_embeddings_of_any_size(target: str, zeros: bool) -> None:
    """A table of 256 KiB, computed from a constant, is more than import folds."""
    model = tied_embeddings(4096, zeros)
    ids = np.array([[0, 4095, 17]])
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})
    session = monograph.load(model, target=target)
    # 128 products of weights of at most 15 steps of 0.1, both of them.
    close(session.run({"ids": ids}), theirs, 1e-4)
    weights = [v for v in session.graph.values if str(v.type).startswith(("u4[4096", "i4[4096"))]
    assert len([v for v in weights if v.op.name == "constant" and "128" in str(v.type)]) == 1


def test_a_computed_table_may_not_outgrow_its_constants() -> None:
    model = tied_embeddings(64, False)
    model.graph.node[0].CopyFrom(helper.make_node("Tile", ["packed", "shape"], ["table"]))
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.array([16, 16, 16]), "shape"))
    with pytest.raises(MonographError, match="packed data that are not constants"):
        monograph.load(model)


# Products


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_dynamic_quantize_matmul(columns: bool, dtype: Any) -> None:
    scale = np.abs(data(5)) * 0.1 if columns else np.array(0.1, np.float32)
    zero = data(5, dtype=dtype) if columns else np.array(3, dtype)
    inputs = (data(3, 8), data(8, 5, dtype=dtype), scale, zero, data(5))
    # Both quantise alike and add integers exactly; only the scaling rounds.
    agree("DynamicQuantizeMatMul", *inputs, constant=(1, 2, 3, 4), tolerance=1e-5)
    agree("DynamicQuantizeMatMul", *inputs[:3], constant=(1, 2), tolerance=1e-5)


def test_matmul_integer_to_float() -> None:
    a, b = data(3, 8, dtype=np.uint8), data(8, 5, dtype=np.int8)
    inputs = (a, b, np.array(0.02, np.float32), np.abs(data(5)) * 0.1, np.array(7, np.uint8))
    agree("MatMulIntegerToFloat", *inputs, data(5, dtype=np.int8), data(5))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_quantize_lstm(direction: str) -> None:
    """ONNX Runtime also quantises inputs and states to u8 on the way.

    Half a step is 0.0055 for the inputs (range 2.8) and 0.004 for the states (within -1..1); the
    weights of a gate add up to 1.8 and 2.6 in absolute value: a gate moves by less than 0.02. The
    ten errors have signs of their own and a sigmoid passes on a quarter, so half of it is asked.
    """
    count = 2 if direction == "bidirectional" else 1
    w, r = data(count, 4, 24, dtype=np.int8), data(count, 6, 24, dtype=np.int8)
    scale, zero = np.full(count, 0.004, np.float32), np.zeros(count, np.int8)
    inputs = (data(3, 2, 4), w, r, data(count, 48) * 0.1, None, None, None, None)
    options = {"hidden_size": 6, "direction": direction, "outputs": 3}
    ours, theirs = microsoft(
        "DynamicQuantizeLSTM", *inputs, scale, zero, scale, zero, constant=(1, 2, 8, 9, 10, 11),
        **options,
    )  # fmt: skip
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=0.01)


# Elementwise ops and pools


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_binary(op: str, dtype: Any) -> None:
    zero = np.array(5, dtype)
    output = np.array(0.07 if op == "QLinearAdd" else 0.11, np.float32)
    inputs = (data(4, 6, dtype=dtype), S8, zero, data(6, dtype=dtype), S8Z, np.array(9, dtype))
    agree_within_a_step(op, *inputs, output, np.array(17, dtype))
    # ONNX Runtime does not load it without zero points: they are 0.
    nought = np.array(0, dtype)
    without = run_node(op, inputs[0], S8, None, inputs[3], S8Z, None, output, **MICROSOFT)
    zeros = (inputs[0], S8, nought, inputs[3], S8Z, nought, output, nought)
    close(without, run_node(op, *zeros, **MICROSOFT), 0)


@pytest.mark.parametrize("op", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_qlinear_activations(op: str) -> None:
    output = np.array(1 / 256 if op == "QLinearSigmoid" else 0.04, np.float32)
    options = {"alpha": 0.2} if op == "QLinearLeakyRelu" else {}
    for dtype in (np.uint8, np.int8):
        x, zero = data(50, dtype=dtype), np.array(20, dtype)
        parameters = (S8, zero, output, np.array(3, dtype))
        agree_within_a_step(op, x, *parameters, constant=(1, 2, 3, 4), **options)


def test_qlinear_concat() -> None:
    zero = np.array(100, np.uint8)
    parts = (data(2, 3, dtype=np.uint8), S8, zero, data(2, 5, dtype=np.uint8), S8Z, zero)
    agree_within_a_step("QLinearConcat", S8Z, zero, *parts, axis=1)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_pools(last: int) -> None:
    x = data(1, 6, 6, 3, dtype=np.uint8) if last else data(1, 3, 6, 6, dtype=np.uint8)
    zero = np.array(100, np.uint8)
    parameters = (S8, zero, S8Z, np.array(90, np.uint8))
    agree_within_a_step("QLinearGlobalAveragePool", x, *parameters, channels_last=last)
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}
    agree_within_a_step("QLinearAveragePool", x, *parameters, channels_last=last, **window)


def test_quantize_and_dequantize() -> None:
    x, scale, zero = data(3, 4), np.abs(data(4)) + 0.1, np.array([1, -2, 3, 4], np.int8)
    agree("QuantizeLinear", x, scale, zero, axis=1, tolerance=0)
    agree("DequantizeLinear", data(3, 4, dtype=np.int8), scale, zero, axis=1, tolerance=1e-6)
    scalar = np.array(0.1, np.float32)
    agree("QuantizeLinear", x, scalar, np.array(300, np.uint16), tolerance=0)
