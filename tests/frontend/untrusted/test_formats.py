"""Files of other formats are refused by name, with a remedy."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ModelError, UnsupportedError
from monograph.frontend.onnx.formats import find_format
from tests.frontend.nodes import node_model

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:1a15\nsize 2327524\n"
MODEL = node_model("Relu", [np.zeros(64, np.float32)]).SerializeToString()


def zipped(*names: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * 64)
    return held.getvalue()


def tarred() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return held.getvalue()


def safetensors() -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


FILES = {
    "empty": (b"", "empty", "again"),
    "lfs": (LFS, "git-lfs", "git lfs pull"),
    "annex": (b"/annex/objects/SHA256E-s12--ab\n", "git-annex", "git annex get"),
    "html": (b"\n<!DOCTYPE html>\n<html lang='en'>", "HTML page", "/resolve/"),
    "html after a comment": (b"<!-- x --><HTML><body>", "HTML page", "download the file itself"),
    "xml": (b"<?xml version='1.0'?><net name='a'>", "OpenVINO", "export"),
    "json": (b'{"error": "Repository not found"}', "JSON", "again"),
    "onnx as json": (b'{"irVersion": "8", "graph": {}}', "ONNX model as JSON", "onnx.load"),
    "onnx as text": (b"<\n  ir_version: 8\n>\nagraph (", "text form of ONNX", "parse_model"),
    "plain text": (b"404: Not Found", "text that starts with '404", "again"),
    "gzip": (gzip.compress(MODEL), "gzip", "unpack"),
    "bzip2": (bz2.compress(MODEL), "bzip2", "unpack"),
    "xz": (lzma.compress(MODEL), "xz", "unpack"),
    "tar": (tarred(), "tar archive", "unpack"),
    "zip with a model": (zipped("a/model.onnx"), "'a/model.onnx'", "unpack"),
    "torch": (zipped("archive/data.pkl", "archive/version"), "PyTorch", "torch.onnx.export"),
    "npz": (zipped("x.npy"), "numpy arrays", "inputs"),
    "npy": (b"\x93NUMPY\x01\x00", "numpy array", "inputs"),
    "zip": (zipped("code.o"), "zip archive without a model", "ONNX file"),
    "pickle": (pickle.dumps({"a": 1}, 4), "pickle", "export"),
    "old pickle": (pickle.dumps([1.5, 2], 2), "pickle", "export"),
    "safetensors": (safetensors(), "safetensors", "export"),
    "gguf": (b"GGUF\x03\x00\x00\x00", "GGUF", "export"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite", "tf2onnx"),
    "ort": (b"\x18\x00\x00\x00ORTM" + bytes(40), ".ort", ".onnx file that it was converted from"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5", "export"),
    "saved model": (b"\x08\x01\x12\x80\x01tf.version PartitionedCall", "TensorFlow", "tf2onnx"),
    "truncated": (MODEL[: len(MODEL) // 2], "truncated", "again"),
}


@pytest.mark.parametrize("name", FILES)
def test_other_formats_are_named(name: str, tmp_path: Path) -> None:
    raw, said, remedy = FILES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(raw)
    for given in (path, raw):
        with pytest.raises(ModelError) as caught:
            monograph.load(given)
        text = str(caught.value)
        assert "not an ONNX model: the file is " in text
        assert said in text
        assert remedy in text.partition("what to do: ")[2]


def test_half_a_zip(tmp_path: Path) -> None:
    raw = zipped("a/model.onnx")[:60]
    with pytest.raises(ModelError, match="zip that is not whole"):
        monograph.load(raw)
    (tmp_path / "model.onnx").write_bytes(raw)
    with pytest.raises(ModelError, match="the package is damaged"):
        monograph.load(tmp_path / "model.onnx")


def test_a_model_is_not_taken_for_another_format() -> None:
    """Its first bytes decide nothing as long as it parses."""
    model = onnx.ModelProto.FromString(MODEL)
    model.producer_name = "<html>"
    assert monograph.load(model.SerializeToString()).inputs
    # Fields may come in any order: this file starts with its producer.
    raw = onnx.ModelProto(producer_name="BZh GGUF").SerializeToString() + MODEL
    assert monograph.load(raw).inputs


@pytest.mark.parametrize("size", range(0, len(MODEL), 7))
def test_every_truncation_is_an_error_of_ours(size: int) -> None:
    with pytest.raises(ModelError):
        monograph.load(MODEL[:size])


def test_noise_has_no_format() -> None:
    assert find_format(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") is None


def test_external_data_that_is_a_pointer(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    (tmp_path / "m.data").write_bytes(LFS)
    with pytest.raises(ModelError, match="git lfs pull"):
        monograph.load(tmp_path / "m.onnx")


# Files that other software has rewritten for itself


@pytest.mark.parametrize(
    ("domain", "op", "remedy"),
    [
        ("com.microsoft.nchwc", "Conv", "ORT_ENABLE_EXTENDED"),
        ("com.ms.internal.nhwc", "Conv", "execution providers"),
        ("com.microsoft", "EPContext", "compiled for one device"),
        ("ai.onnx.contrib", "SentencepieceTokenizer", "onnxruntime-extensions"),
        ("org.pytorch.aten", "ATen", "ATen fallback"),
    ],
)
def test_ops_of_other_software(domain: str, op: str, remedy: str) -> None:
    model = node_model(op, [np.zeros((1, 8, 4, 4), np.float32)], domain=domain, opset=1)
    with pytest.raises(UnsupportedError, match=remedy) as caught:
        monograph.load(model)
    assert f"{domain}.{op}" in str(caught.value)
    assert "docs/adding-an-op.md" not in str(caught.value)


def test_a_file_that_onnxruntime_saved_with_all_optimisations(tmp_path: Path) -> None:
    import onnxruntime

    w = numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 6, 6])
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    saved = onnx.load(tmp_path / "optimised.onnx")
    if not any(n.domain == "com.microsoft.nchwc" for n in saved.graph.node):
        pytest.skip("ONNX Runtime has no nchwc kernels on this machine")
    with pytest.raises(UnsupportedError, match="rewritten this file for the caches of one CPU"):
        monograph.load(tmp_path / "optimised.onnx")
