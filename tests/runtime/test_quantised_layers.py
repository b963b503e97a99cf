"""Layers of dynamic quantisers: roundings cascade through them, and faults are still found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.runtime.numerics.compare import Difference, compare_outputs

LAYERS, ROWS, WIDTH = 6, 12, 48
Weights = dict[str, np.ndarray]


def weights() -> Weights:
    rng = np.random.default_rng(7)
    made: Weights = {}
    for i in range(LAYERS):
        made[f"w{i}"] = rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        made[f"s{i}"] = np.float32(1.5 / (73 * np.sqrt(WIDTH)))
        made[f"b{i}"] = rng.normal(size=WIDTH).astype(np.float32) / 4
    return made


def model(data: Weights) -> bytes:
    """x -> [DynamicQuantizeLinear, MatMulInteger, scale, bias, Tanh, residual] * LAYERS."""
    nodes, x = [], "x"
    for i in range(LAYERS):
        q, s, z, p, f, t, m, a, h, y = (f"{c}_{i}" for c in "qszpftmahy")
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [q, s, z]),
            helper.make_node("MatMulInteger", [q, f"w{i}", z], [p]),
            helper.make_node("Cast", [p], [f], to=TensorProto.FLOAT),
            helper.make_node("Mul", [s, f"s{i}"], [t]),
            helper.make_node("Mul", [f, t], [m]),
            helper.make_node("Add", [m, f"b{i}"], [a]),
            helper.make_node("Tanh", [a], [h]),
            helper.make_node("Add", [x, h], [y]),
        ]
        x = y
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH]) for n in ("x", x)]
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in data.items()]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


FEEDS = {"x": np.random.default_rng(3).normal(size=(ROWS, WIDTH)).astype(np.float32)}


def compared(given: np.ndarray) -> Difference:
    reference = monograph.load(model(weights()), "reference")
    name = reference.outputs[0].name
    (expected,) = reference.run(FEEDS)
    (found,) = compare_outputs({name: given}, {name: expected}, reference.tolerances(FEEDS))
    return found


def on_cpu(data: Weights) -> np.ndarray:
    (given,) = monograph.load(model(data), "cpu", cache_dir="", threads=1).run(FEEDS)
    return given


def test_the_cpu_agrees() -> None:
    assert compared(on_cpu(weights())).ok


def other_scale(data: Weights) -> None:
    data["s1"] *= np.float32(1.25)


def other_weight(data: Weights) -> None:
    data["w3"][5, 7] ^= 64


def other_bias(data: Weights) -> None:
    data["b2"][11] += np.float32(0.3)


def swapped_rows(data: Weights) -> None:
    data["w4"][[3, 4]] = data["w4"][[4, 3]]


@pytest.mark.parametrize("fault", [other_scale, other_weight, other_bias, swapped_rows])
def test_a_fault_in_a_layer_is_found(fault: Callable[[Weights], None]) -> None:
    data = weights()
    fault(data)
    assert not compared(on_cpu(data)).ok


def test_a_fault_in_the_output_is_found() -> None:
    right = on_cpu(weights())
    for at in ((0, 0), (5, 20), (ROWS - 1, WIDTH - 1)):
        wrong = right.copy()
        wrong[at] += np.float32(0.5)
        found = compared(wrong)
        assert found.worst == at
        assert not found.ok
    assert not compared(right[[1, 0, *range(2, ROWS)]]).ok
    assert not compared(right * np.float32(1.25)).ok
