"""Ops that are compiled as others, and determinants: transforms, mel weights, shapes."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.ops.elementwise import Exp
from monograph.ops.linear import Det
from monograph.ops.shape import ShapeOf
from monograph.ops.signal import Dft, MelWeights
from tests.cpu.moving import FEATURES, THREADS, check, check_samples
from tests.rules.checks import graph_of, value

# Sums of as many terms as the transform is long, in f32.
CLOSE = 2e-6


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("threads", THREADS)
def test_samples(features, threads: int) -> None:
    for op in (Dft, MelWeights, ShapeOf, Det):
        check_samples(op, features, threads, CLOSE)


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        ("f32[3, 400, 1]", Dft(1, onesided=True)),
        ("f32[2, 50, 3, 2]", Dft(1, length=64)),
        ("f32[2, 50, 3, 2]", Dft(2, length=2, inverse=True)),
        ("f32[60, 4, 2]", Dft(0, length=33, inverse=True, onesided=True)),
        ("f16[5, 16, 1]", Dft(1)),
    ],
)
def test_transforms(shape: str, op: Dft) -> None:
    tolerance = 1e-3 if shape.startswith("f16") else CLOSE
    check(graph_of(op(value(shape))), tolerance=tolerance)


def test_a_long_transform_is_a_step_on_the_host() -> None:
    executable = check(graph_of(Dft(1)(value("f32[1, 4096, 1]"))), native=False, tolerance=CLOSE)
    assert [s.region.kind for s in executable.host_steps] == ["dft"]


def test_determinants() -> None:
    x = value("f32[3, 5, 7, 7]")
    check(graph_of(Exp()(Det()(x))), {"x": np.zeros((3, 5, 7, 7), np.float32)})
    check(graph_of(Det()(x)), threads=4, tolerance=CLOSE)
    singular = np.ones((3, 5, 7, 7), np.float32)
    check(graph_of(Det()(x)), {"x": singular})
