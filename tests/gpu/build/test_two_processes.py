"""Two runs, and two processes that share one tuning cache, give the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ON_DEVICE = os.environ.get("MONOGRAPH_TEST_DEVICE", "") == "cuda"
SCRIPT = """
import hashlib, json, sys
import numpy as np
import monograph

model, target, cache, precision = sys.argv[1:]
session = monograph.load(model, target, precision=precision, tuning_cache=cache, cache_dir="")
digests = []
for turn in range(2):
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 8, 20, 20)).astype(np.float32)
        (y,) = session.run({"x": x})
        digests.append(hashlib.sha256(y.tobytes()).hexdigest())
print(json.dumps(digests))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a product, a sum that is long enough to be split, and a softmax."""
    r = np.random.default_rng(0)
    weights = {
        "kernel": r.standard_normal((16, 8, 3, 3)).astype(np.float32),
        "table": r.standard_normal((20, 64)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        helper.make_node("MatMul", ["m", "table"], ["p"]),
        helper.make_node("Softmax", ["p"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "bits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 20, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 20, 64])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = tmp_path_factory.mktemp("bits") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def digests(model: Path, cache: Path, precision: str) -> list[str]:
    target = "gpu" if ON_DEVICE else "gpu:interpreter"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model), target, str(cache), precision],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(cache: Path) -> dict[str, Any]:
    return dict(json.loads(cache.read_text())) if cache.exists() else {}


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_the_same_bits_in_every_run_and_process(
    model: Path, precision: str, tmp_path: Path
) -> None:
    cache = tmp_path / "tuning.json"
    first = digests(model, cache, precision)
    kept = measured(cache)
    assert first[:3] == first[3:]
    assert len(set(first)) == 3, "other numbers give other bits"
    assert digests(model, cache, precision) == first
    if ON_DEVICE:
        assert kept, "nothing was measured"
    assert measured(cache) == kept, "the second process has measured again"
