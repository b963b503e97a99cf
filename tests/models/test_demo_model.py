"""The model of `make demo`, at a smaller size, gives ONNX Runtime's answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime

import monograph
from monograph.report import demo_model
from monograph.runtime.numerics.compare import compare, match_rows
from monograph.runtime.numerics.tolerance import derive


def test_the_demo_model():
    model = demo_model.build(size=160)
    onnx.checker.check_model(model, full_check=True)
    assert sum(n.op_type == "Conv" for n in model.graph.node) == 83
    image = np.random.default_rng(0).standard_normal((1, 3, 160, 160)).astype(np.float32)
    expected, plain = runtime_answers(model.SerializeToString(), image)
    session = monograph.load(model, target="reference")
    (given,) = session.run({"images": image})
    assert given.shape == (1, demo_model.KEPT, 6)
    scores = given[0, :, 4]
    assert np.all(np.diff(scores) <= 0)
    assert scores[0] > scores[-1] + 0.1, "the weights give scores that lie apart"
    tolerance = derive(session.graph)["detections"]
    # Boxes are hundreds of pixels and scores below 1: the noise of each has a scale of its own.
    matched, again = match_rows(given, expected), match_rows(plain, expected)
    for column in (slice(0, 4), slice(4, 5), slice(5, 6)):
        noise = float(np.abs(again[..., column] - expected[..., column]).max())
        allowed = replace(tolerance, atol=2 * noise)
        d = compare("detections", matched[..., column], expected[..., column], allowed)
        assert d.ok, d


def runtime_answers(model: bytes, image: np.ndarray) -> list[np.ndarray]:
    """The detections of ONNX Runtime with its optimisations and without: they differ by noise."""
    results = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        results += onnxruntime.InferenceSession(model, options).run(None, {"images": image})
    return results
