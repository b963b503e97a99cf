"""The model of `make demo`, at a smaller size, gives ONNX Runtime's answers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from scripts import demo_model

import monograph
from monograph.runtime.numerics.compare import compare, match_rows
from monograph.runtime.numerics.tolerance import derive


def test_the_demo_model():
    model = demo_model.build(size=160)
    onnx.checker.check_model(model, full_check=True)
    assert sum(n.op_type == "Conv" for n in model.graph.node) == 83
    image = np.random.default_rng(0).standard_normal((1, 3, 160, 160)).astype(np.float32)
    other = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = other.run(None, {"images": image})
    session = monograph.load(model, target="reference")
    (given,) = session.run({"images": image})
    assert given.shape == (1, demo_model.KEPT, 6)
    scores = given[0, :, 4]
    assert np.all(np.diff(scores) <= 0)
    assert scores[0] > scores[-1] + 0.1, "the weights give scores that lie apart"
    tolerance = derive(session.graph)["detections"]
    # Boxes are hundreds of pixels and scores below 1: each has a scale of its own.
    matched = match_rows(given, expected)
    for column in (slice(0, 4), slice(4, 5), slice(5, 6)):
        d = compare("detections", matched[..., column], expected[..., column], tolerance)
        assert d.ok, d
