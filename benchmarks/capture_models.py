"""The models that capture is measured with: the benchmark set, real models, and two of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import gpu_models

BUILT = Path(__file__).parent.parent / "build" / "benchmarks"
FOLDERS = (Path("carry"), Path("..") / "shared" / "models")
"""The folder of real models, each in a folder with recorded inputs beside it."""
YOLO, LOOP, FP4 = "yolov10n", "data_loop", "fp4_mlp"
BITS = {
    "int4": "genai_llama_int4",
    "int8": "khmercut_int8",
    "int8 QDQ": "reachy_fk_int8",
    "fp4": FP4,
}
"""The models of few bits, by what they are called."""
BLOCK = 32
"""Weights that share a scale."""


@dataclass(frozen=True)
class Subject:
    """A model to measure."""

    name: str
    precision: str = "f32"
    real: Path | None = None
    """The folder of a model that is not built here."""
    small: bool = False
    """True if it is to be run by Triton's interpreter."""

    def path(self) -> Path:
        if self.real is not None:
            return self.real / "model.onnx"
        if self.name not in (LOOP, FP4):
            return gpu_models.find(self.name, BUILT)
        BUILT.mkdir(parents=True, exist_ok=True)
        path = BUILT / f"{self.name}{'_small' if self.small else ''}.onnx"
        if self.name == LOOP:
            onnx.save(data_loop(16, 3) if self.small else data_loop(), path)
        else:
            onnx.save(fp4_mlp(64, 2) if self.small else fp4_mlp(), path)
        return path

    def recorded(self) -> dict[str, Any] | None:
        """The inputs that were recorded with a model, if there are some."""
        beside = self.path().parent / "io.npz"
        if not beside.exists():
            return None
        with np.load(beside) as archive:
            return {k[3:]: archive[k] for k in archive.files if k.startswith("in:")}


def subjects(tiny: bool = False) -> list[Subject]:
    """All models there are, the ones that have bars of their own first."""
    if tiny:
        return [Subject(n, small=True) for n in ("tiny_convs", LOOP, FP4)]
    first = [Subject(n, "f16") for n in (YOLO, "towers_b1", "towers_b128")]
    folder = next((f for f in FOLDERS if f.is_dir() and any(f.glob("*/model.onnx"))), None)
    real = sorted(p.parent for p in folder.glob("*/model.onnx")) if folder is not None else []
    own = [Subject(n) for n in (LOOP, FP4)]
    others = [Subject(p.name, real=p) for p in real if p.name != gpu_models.YOLO.parent.name]
    done = {s.name for s in first}
    return [*first, *own, *others, *(Subject(n, "f16") for n in gpu_models.MODELS if n not in done)]


def data_loop(width: int = 64, most: int = 100) -> onnx.ModelProto:
    """A loop of at most so many turns, which goes on until the state has become small."""
    rng = np.random.default_rng(0)
    turned, _ = np.linalg.qr(rng.standard_normal((width, width)))
    weights = (0.95 * turned).astype(np.float32)  # every turn leaves 5% less, or a little more
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Add", ["turns", "one"], ["turns_after"]),
            helper.make_node("Abs", ["next"], ["size"]),
            helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0),
            helper.make_node("Greater", ["largest", "enough"], ["again"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [4, width]),
            helper.make_tensor_value_info("turns", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4, width]),
            helper.make_tensor_value_info("turns_after", TensorProto.INT64, []),
        ],
    )
    constants = {
        "w": weights,
        "enough": np.float32(0.02),
        "one": np.int64(1),
        "none": np.int64(0),
        "most": np.int64(most),
        "begin": np.bool_(True),
    }
    loop = helper.make_node("Loop", ["most", "begin", "x", "none"], ["y", "n"], body=body)
    graph = helper.make_graph(
        [loop],
        LOOP,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, width]),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def fp4_mlp(width: int = 1024, layers: int = 8) -> onnx.ModelProto:
    """Layers whose weights are 4-bit floats (e2m1) with a scale for each block, one token."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for layer in range(layers):
        codes = rng.choice([-6, -4, -3, -2, -1, 0, 0.5, 1, 2, 3, 4, 6], (width, width))
        scales = (rng.uniform(0.5, 1.5, (width // BLOCK, width)) / (4 * np.sqrt(width))).astype("f")
        weights.append(
            numpy_helper.from_array(codes.astype(ml_dtypes.float4_e2m1fn), f"codes{layer}")
        )
        weights.append(numpy_helper.from_array(scales, f"scales{layer}"))
        nodes += [
            helper.make_node(
                "DequantizeLinear",
                [f"codes{layer}", f"scales{layer}"],
                [f"w{layer}"],
                axis=0,
                block_size=BLOCK,
            ),
            helper.make_node("MatMul", [x, f"w{layer}"], [f"product{layer}"]),
            helper.make_node("Relu", [f"product{layer}"], [f"x{layer}"]),
        ]
        x = f"x{layer}"
    graph = helper.make_graph(
        nodes,
        FP4,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
