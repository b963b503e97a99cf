"""The models of the GPU benchmarks, as ONNX: published shapes, random weights but for YOLOv10n."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import models
from benchmarks.models import Writer

FOLDERS = (Path("carry"), Path("..") / "shared" / "models")
"""The file of a real YOLOv10n; without one, a detector of its shape is built."""
YOLO = Path("ul_yolov10n_e2e") / "model.onnx"
BLOCK = 1 << 22
"""Random numbers that large weights are cut from: drawing a billion would take minutes."""


def yolov10n(path: Path) -> None:
    """The detector that `make demo` builds."""
    from monograph.report import demo_model

    onnx.save(demo_model.build(), path)


def bert_base(path: Path) -> None:
    """12 layers of width 768 over 128 tokens, 12 heads, embeddings included."""
    _bert(path, 12, 128, 768, 12, 30522)


def _bert(path: Path, layers: int, length: int, width: int, heads: int, words: int) -> None:
    w = Writer()
    x = w.node("Gather", w.weight(words, width), "ids")
    x = w.node("Add", x, w.weight(length, width))
    x = models._blocks(w, x, layers, length, width, heads)
    w.save(path, {"ids": (TensorProto.INT64, [1, length])}, w.linear(x, width, width))


def llama_linears(path: Path) -> None:
    """The linears of 16 layers of a Llama of 1B parameters, one token, f16, without the head."""
    _llama(path, 16, 2048, 512, 8192)


def _llama(path: Path, layers: int, width: int, kv: int, hidden: int) -> None:
    """Attention is left out: a token that sees only itself gets what its own queries are.

    All of the first product is an output, so that none of its columns can be spared.
    """
    rng = np.random.default_rng(0)
    block = rng.standard_normal(BLOCK, np.float32)
    scaled: dict[int, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    results = []

    def node(op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def weight(rows: int, columns: int) -> str:
        """Other numbers for each: equal weights could be kept once."""
        start = int(rng.integers(BLOCK))
        if rows not in scaled:
            scaled[rows] = (block * (0.5 / np.sqrt(rows))).astype(np.float16)
        data = np.resize(np.roll(scaled[rows], -start), (rows, columns))
        weights.append(numpy_helper.from_array(data, f"w{len(weights)}"))
        return weights[-1].name

    def norm(x: str) -> str:
        scale = np.ones(width, np.float16)
        weights.append(numpy_helper.from_array(scale, f"w{len(weights)}"))
        return node("RMSNormalization", x, weights[-1].name, axis=-1, epsilon=1e-5)

    for name, numbers in (("starts", [0]), ("ends", [width]), ("axes", [1])):
        weights.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
    x = "x"
    for _ in range(layers):
        everything = node("MatMul", norm(x), weight(width, width + 2 * kv))
        results.append(helper.make_tensor_value_info(everything, TensorProto.FLOAT16, None))
        queries = node("Slice", everything, "starts", "ends", "axes")
        x = node("Add", x, node("MatMul", queries, weight(width, width)))
        h = norm(x)
        gate, up = (node("MatMul", h, weight(width, hidden)) for _ in range(2))
        gated = node("Mul", node("Mul", gate, node("Sigmoid", gate)), up)
        x = node("Add", x, node("MatMul", gated, weight(hidden, width)))
    results.insert(0, helper.make_tensor_value_info(x, TensorProto.FLOAT16, None))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, width])
    graph = helper.make_graph(nodes, path.stem, [given], results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    beside = f"{path.stem}.data"
    (path.parent / beside).unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location=beside)


def tiny_convs(path: Path) -> None:
    """Convolutions, pooling, resizing and joining, for trials without a device."""
    w = Writer()
    x = w.silu(w.conv("x", 3, 8, 3, 2))
    y = w.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = w.node("HardSwish", w.conv(y, 8, 8, 3, groups=8))
    scales = w.tensor(np.array([1, 1, 2, 2], np.float32))
    y = w.node("Resize", y, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
               nearest_mode="floor")  # fmt: skip
    y = w.node("Concat", x, y, axis=1)
    y = w.node("Flatten", w.node("GlobalAveragePool", w.node("Relu", w.conv(y, 16, 16, 1))))
    w.save(path, {"x": (TensorProto.FLOAT, [1, 3, 16, 16])}, w.linear(y, 16, 10))


MODELS: dict[str, Callable[[Path], None]] = {
    "yolov10n": yolov10n,
    "towers_b1": lambda p: models.towers(p, 1),
    "towers_b128": lambda p: models.towers(p, 128),
    "resnet50": models.resnet50,
    "bert_base_128": bert_base,
    "llama_1b_linears": llama_linears,
    "mobilenet": models.mobilenet,
    "vit_tiny": models.vit,
    "gpt2_6x384": models.gpt2,
}
TINY: dict[str, Callable[[Path], None]] = {
    "tiny_convs": tiny_convs,
    "tiny_bert": lambda p: _bert(p, 1, 8, 32, 2, 50),
    "tiny_llama": lambda p: _llama(p, 1, 32, 8, 64),
}


def find(name: str, folder: Path) -> Path:
    """The file of a model of the set, written where it is not there yet."""
    if name == "yolov10n":
        for beside in FOLDERS:
            if (beside / YOLO).exists():
                return beside / YOLO
    path = folder / f"{name}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{name}-partial.onnx"
        {**MODELS, **TINY}[name](partial)
        partial.rename(path)
    return path
