"""The batch axis: claims of ops against the reference, and proofs of whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
import monograph.ops
from monograph.ir import Op, TensorType
from monograph.program.dynamic.batch_proof import BatchProof
from tests.samples import make_input

CLAIMS = [
    (cls, i, sample)
    for cls in sorted(Op.registry.values(), key=lambda c: c.name)
    for i, sample in enumerate(cls.samples)
]


def rows_of(results: Any, axis: int, row: int) -> list[np.ndarray]:
    several = results if isinstance(results, tuple) else (results,)
    return [np.asarray(r).take([row], axis) for r in several]


def test_an_op_gives_the_rows_of_its_operands_rows() -> None:
    """For each axis that an op names, a run on one row gives that row of the whole run."""
    checked: set[str] = set()
    for cls, number, sample in CLAIMS:
        if cls.batch_axis is Op.batch_axis and cls.row_axis is Op.row_axis:
            continue
        if cls.name == "reshape" or any(isinstance(x, str) and "str" in x for x in sample.inputs):
            continue
        arrays = [make_input(x, i) for i, x in enumerate(sample.inputs)]
        types = [TensorType(monograph.ir.from_numpy(a.dtype), a.shape) for a in arrays]
        op = cls(**sample.attributes).canonical(*types)
        axes: dict[int, dict[int, int]] = {}
        for i, a in enumerate(arrays):
            for axis in range(a.ndim):
                made = op.batch_axis(i, axis, *types)
                if made is not None:
                    axes.setdefault(made, {})[i] = axis
        for made, operands in axes.items():
            sizes = {arrays[i].shape[axis] for i, axis in operands.items()} - {1}
            if len(sizes) != 1 or sizes == {0} or cls.name == "slice":  # its ends are sizes
                continue
            (size,) = sizes
            whole = op.reference(*arrays)
            for row in range(size):
                given = [
                    a.take([row], operands[i])
                    if i in operands and a.shape[operands[i]] == size
                    else a
                    for i, a in enumerate(arrays)
                ]
                found = rows_of(op.reference(*given), made, 0)
                wanted = rows_of(whole, made, row)
                for f, w in zip(found, wanted, strict=True):
                    assert f.shape == w.shape
                    assert f.tobytes() == w.tobytes(), f"{cls.name} {number} axis {made}"
            checked.add(cls.name)
    assert {"dot", "conv", "reduce_sum", "attention", "gather", "top_k", "quantize"} <= checked


def test_a_running_total_is_not_independent() -> None:
    total = Op.registry["cum_sum"](axis=0)
    type_ = TensorType(monograph.ir.dtype("f32"), (4, 3))
    assert total.row_axis(0, 0, type_) == 0
    assert total.batch_axis(0, 0, type_) is None
    assert total.batch_axis(0, 1, type_) == 1


def model(path: Path, nodes: list[Any], shape: list[Any] | None = None, **weights: Any) -> Path:
    constants = [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(made, path)
    return path


def node(op: str, *inputs: str, name: str = "", to: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), [to], name=name or op, **attributes)


W = np.ones((6, 6), np.float32)
HEADS = [
    node("Shape", "x", to="s", start=0, end=1),
    node("Concat", "s", "rest", to="t", axis=0),
    node("Reshape", "x", "t", to="h"),
    node("Transpose", "h", to="q", perm=[0, 2, 1]),
    node("MatMul", "h", "q", to="p"),
    node("Softmax", "p", to="a", axis=-1),
    node("MatMul", "a", "h", to="o"),
    node("Concat", "s", "flat", to="u", axis=0),
    node("Reshape", "o", "u"),
]
GOOD = {
    "product": ([node("MatMul", "x", "w")], {"w": W}),
    "mean of each row": ([node("ReduceMean", "x", "one")], {"one": np.array([1])}),
    "attention of each row": (HEADS, {"rest": np.array([2, 3]), "flat": np.array([6])}),
    "rows to the back": ([node("Transpose", "x")], {}),
    "zeros of the batch": (
        [node("Shape", "x", to="s"), node("ConstantOfShape", "s", to="z"), node("Add", "x", "z")],
        {},
    ),
    "merged rows": (
        [node("Reshape", "x", "m", to="r"), node("Softmax", "r", to="p"),
         node("Reshape", "p", "b")], {"m": np.array([-1, 2]), "b": np.array([-1, 6])},
    ),
}  # fmt: skip
BAD = {
    "mean over rows": ([node("ReduceMean", "x", "zero")], {"zero": np.array([0])}, "reduces"),
    "dynamic quantisation": (
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="quantise"),
         node("DequantizeLinear", "q", "s", "z")], {}, "reduces over the batch"),
    "softmax over rows": ([node("Softmax", "x", axis=0)], {}, "batch"),
    "running total": ([node("CumSum", "x", "zero")], {"zero": np.array(0)}, "cum_sum"),
    "product of rows": (
        [node("Transpose", "x", to="t"), node("MatMul", "x", "t")], {}, "different axes"),
    "number of rows": (
        [node("Shape", "x", to="s", start=0, end=1), helper.make_node("Cast", ["s"], ["n"], to=1),
         node("Div", "x", "n")], {}, "number of rows"),
    "position": (
        [node("Shape", "x", to="s", start=0, end=1), node("Squeeze", "s", to="l"),
         node("Range", "zero", "l", "one", to="r"),
         helper.make_node("Cast", ["r"], ["f"], to=1), node("Unsqueeze", "f", "axis", to="c"),
         node("Add", "x", "c")],
        {"zero": np.array(0), "one": np.array(1), "axis": np.array([1])}, "",),
    "first row": (
        [node("Gather", "x", "zero", to="g", axis=0), node("Add", "x", "g")],
        {"zero": np.array(0)}, "gather"),
    "flipped": ([node("Slice", "x", "s", "e", "a", "t")],
        {"s": np.array([-1]), "e": np.array([-(2**40)]), "a": np.array([0]),
         "t": np.array([-1])}, "slice"),
    "rows joined": ([node("Reshape", "x", "m")], {"m": np.array([3, -1])}, "reshape"),
    "batch norm in training": ([node("RandomNormalLike", "x", to="r"), node("Add", "x", "r")], {},
        ""),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_rows_that_stay_apart_are_proven(name: str, tmp_path: Path) -> None:
    nodes, weights = GOOD[name]
    session = monograph.load(model(tmp_path / "m.onnx", nodes, **weights))
    proof = session.batch_axes()
    assert proof.holds, str(proof)
    x = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)
    (whole,) = session.run({"x": x})
    axis = proof.outputs["y"]
    for i in range(4):
        (alone,) = session.run({"x": x[i : i + 1]})
        np.testing.assert_allclose(whole.take([i], axis), alone, rtol=1e-5)


@pytest.mark.parametrize("name", BAD)
def test_a_node_that_mixes_rows_is_named(name: str, tmp_path: Path) -> None:
    nodes, weights, reason = BAD[name]
    proof = monograph.load(model(tmp_path / "m.onnx", nodes, **weights)).batch_axes()
    assert not proof.holds
    assert reason in proof.reason, proof.reason
    assert proof.node


def test_models_without_an_open_first_dimension_say_so(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", [node("Abs", "x")], [1, 6])
    assert "open first dimension" in monograph.load(path).batch_axes().reason


def test_a_proof_is_kept_on_disk_and_found_without_the_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_for(scale: float, **dims: int) -> BatchProof:
        path = tmp_path / f"{scale}.onnx"
        if not path.exists():
            model(path, [node("MatMul", "x", "w")], w=np.full((6, 3), scale, np.float32))
        return monograph.load(path, dims=dims, cache_dir=str(tmp_path / "cache")).batch_axes()

    found = found_for(1.0)
    assert found.holds

    def analysed(*_: object) -> BatchProof:
        raise AssertionError("the graph was followed again")

    monkeypatch.setattr("monograph.program.dynamic.batch_axis.find_batch_axis", analysed)
    assert found_for(1.0) == found
    with pytest.raises(AssertionError, match="followed again"):
        found_for(1.0, n=3)
    with pytest.raises(AssertionError, match="followed again"):
        found_for(2.0)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"inputs": 1}', '{"inputs": {"x": "0"}, "outputs": {}}',
             '{"inputs": {}, "outputs": {}, "reason": 1}', '{"inputs": {}, "more": {}}'],
)  # fmt: skip
def test_a_text_that_is_no_proof_is_none(text: str) -> None:
    proof = BatchProof({"x": 0}, {"y": 1}, "no", "node")
    assert BatchProof.from_json(proof.to_json()) == proof
    assert BatchProof.from_json(text) is None
