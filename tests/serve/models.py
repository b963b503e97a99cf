"""Small models that servers of tests serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from benchmarks.decoders import build
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ raise_exception('no tools') }}{% endif %}<{{ m.role }}> {{ m.content | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8


def save(path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto],
         outputs: list[onnx.ValueInfoProto], **weights: np.ndarray) -> Path:  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    constants = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def affine(path: Path, scale: float = 1.0, name: str = "batch") -> Path:
    """y = scale * (x @ W), rows of 4."""
    return save(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [name, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [name, 3])],
        w=WEIGHTS * np.float32(scale),
    )


def echo(path: Path) -> Path:
    """Each input as it is: text, truth values, integers, halves, doubles."""
    kinds = {
        "text": TensorProto.STRING, "flag": TensorProto.BOOL, "whole": TensorProto.INT64,
        "byte": TensorProto.UINT8, "half": TensorProto.FLOAT16, "real": TensorProto.DOUBLE,
    }  # fmt: skip
    return save(
        path,
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in kinds],
        [helper.make_tensor_value_info(n, kind, [f"n_{n}"]) for n, kind in kinds.items()],
        [helper.make_tensor_value_info(f"{n}_out", kind, [f"n_{n}"]) for n, kind in kinds.items()],
    )


def gather(path: Path) -> Path:
    """Rows of a table by number; a number out of range fails the run."""
    return save(
        path,
        [helper.make_node("Gather", ["table", "rows"], ["y"])],
        [helper.make_tensor_value_info("rows", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        table=np.arange(10, dtype=np.float32).reshape(5, 2),
    )


def logarithm(path: Path) -> Path:
    """The logarithm: 0 gives -inf."""
    return save(
        path,
        [helper.make_node("Log", ["x"], ["y"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )


def repository(folder: Path) -> Path:
    """A folder of models in all forms that a server takes."""
    affine(folder / "affine" / "1" / "model.onnx")
    affine(folder / "affine" / "2" / "model.onnx", 2.0)
    echo(folder / "echo.onnx")
    gather(folder / "gather" / "model.onnx")
    logarithm(folder / "logarithm" / "any_name.onnx")
    (folder / "monograph.toml").write_text('[models.affine]\nversions = "all"\n')
    (folder / "README.md").write_text("not a model")
    return folder


def characters(path: Path) -> None:
    """Write a tokenizer in which each token is one character."""
    known = {chr(32 + i if i < 95 else 0x4E00 + i): i for i in range(4096)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path))


def language(folder: Path) -> Path:
    """A folder with a small language model, `llama`."""
    build(folder / "llama", "tiny-llama")
    characters(folder / "llama" / "tokenizer.json")
    (folder / "llama" / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "monograph.toml").write_text("[models.llama]\nmax_length = 96\n")
    return folder
