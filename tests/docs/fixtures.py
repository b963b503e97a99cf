"""The files that the pages' examples use: small models, a tiny decoder, recorded inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from benchmarks.decoders import build

_DETECTOR = """
<ir_version: 9, opset_import: ["" : 18]>
detector (float[batch, 3, 640, 640] images) => (float[batch, 300, 6] boxes)
{
    squares = AveragePool <kernel_shape = [32, 32], strides = [32, 32]> (images)
    features = Conv <kernel_shape = [1, 1]> (squares, w, b)
    shape = Constant <value_ints = [0, 6, 400]> ()
    flat = Reshape (features, shape)
    rows = Transpose <perm = [0, 2, 1]> (flat)
    first = Constant <value_ints = [0]> ()
    last = Constant <value_ints = [300]> ()
    axis = Constant <value_ints = [1]> ()
    scores = Slice (rows, first, last, axis)
    half = Sigmoid (scores)
    boxes = Mul (scores, half)
}
"""
_DECODER = """
<ir_version: 9, opset_import: ["" : 18]>
decoder (int64[1, 1] ids, float[1, 8, 256, 64] past)
    => (float[1, 8] logits, float[1, 8, 256, 64] present)
{
    axes = Constant <value_ints = [2, 3]> ()
    total = ReduceMean <keepdims = 0> (past, axes)
    number = Cast <to = 1> (ids)
    logits = Add (total, number)
    present = Add (past, number)
}
"""
_LINES = """
<ir_version: 9, opset_import: ["" : 18]>
recogniser (float[lines, 1, 16, width] line) => (float[lines, 8, 1, columns] scores)
{
    features = Conv <kernel_shape = [16, 3], pads = [0, 1, 0, 1]> (line, w)
    scores = Softmax <axis = 1> (features)
}
"""
_VOICE = """
<ir_version: 9, opset_import: ["" : 18]>
voice (float[batch, 32] samples, float[2, batch, 16] state)
    => (float[batch, 1] chance, float[2, batch, 16] next)
{
    step = Unsqueeze (samples, zero)
    h, c = Split <num_outputs = 2> (state)
    hidden, last, cell = LSTM <hidden_size = 16> (step, w, r, , , h, c)
    flat = Squeeze (last, zero)
    sums = MatMul (flat, v)
    chance = Sigmoid (sums)
    next = Concat <axis = 0> (last, cell)
}
"""
_PROGRAM = """
import sys

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1])
(boxes,) = session.run(None, {"images": np.zeros((1, 3, 640, 640), np.float32)})
print(ort.get_build_info(), boxes.shape)
"""


def write_files(folder: Path) -> None:
    """Write every file that a code block of a page opens."""
    weights = np.random.default_rng(0).normal(size=(6, 3, 1, 1)).astype(np.float32)
    tensors = {"w": weights, "b": np.linspace(-1, 1, 6, dtype=np.float32)}
    _save(folder / "model.onnx", _DETECTOR, tensors)
    _save(folder / "decoder.onnx", _DECODER, {})
    random = np.random.default_rng(2)
    _save(folder / "lines.onnx", _LINES, {"w": random.normal(size=(8, 1, 16, 3)).astype("f4")})
    sizes = {"w": (1, 64, 32), "r": (1, 64, 16), "v": (16, 1)}
    cells = {name: random.normal(size=size).astype("f4") for name, size in sizes.items()}
    _save(folder / "voice.onnx", _VOICE, {**cells, "zero": np.array([0])})
    (folder / "program.py").write_text(_PROGRAM)
    images = np.random.default_rng(1).normal(size=(1, 3, 640, 640)).astype(np.float32)
    np.savez(folder / "recorded.npz", **{"in:images": images})
    np.save(folder / "photo.npy", images)
    build(folder / "llama", "tiny-llama")
    _tokenizer(folder / "llama")


def _save(path: Path, text: str, tensors: dict[str, np.ndarray]) -> None:
    model = onnx.parser.parse_model(text)
    for name, array in tensors.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, path)


def _tokenizer(folder: Path) -> None:
    """Write a tokenizer of single characters and a chat template, where the package is there."""
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        return
    vocabulary = {chr(32 + i): i for i in range(96)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
