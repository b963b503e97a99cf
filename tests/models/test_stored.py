"""Models with stored outputs: what is right is told from what is wrong, without other packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.models import stored


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A model of one product, stored with an open size."""
    weights = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "product.onnx")
    stored.store(tmp_path / "product.onnx", tmp_path / "product.npz", {"n": 5}, {})
    return tmp_path / "product.npz"


def test_a_right_model_is_right(archive: Path) -> None:
    with np.load(archive) as data:
        assert data["in:x"].shape == (5, 3)
        assert data["out:y"].shape == (5, 4)
    found = stored.run(archive.parent, "cpu", [])["product"]
    assert found["verdict"] == "ok"
    assert found["second run equal"]
    assert found["used"] <= 1


def test_a_wrong_output_is_found(archive: Path) -> None:
    with np.load(archive) as data:
        arrays = dict(data)
    arrays["out:y"][2, 1] += 1e-3 * np.abs(arrays["out:y"]).max()
    np.savez(archive, **arrays)
    assert "beyond the tolerance" in stored.run(archive.parent, "cpu", [])["product"]["verdict"]


def test_the_command_says_what_failed(archive: Path, tmp_path: Path) -> None:
    archive.with_suffix(".onnx").write_bytes(b"no model")
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.models.stored", "run", str(archive.parent)]
    done = subprocess.run(
        [*command, "--target", "cpu", "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "0 of 1 models are right on cpu" in done.stdout
    assert json.loads(out.read_text())["product"]["cpu"]["verdict"].startswith("failed: ")
