"""GridSample, RoiAlign, MaxRoiPool and NonMaxSuppression: ONNX Runtime as second opinion."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from monograph.errors import ModelError
from tests.frontend.nodes import close, run_node, runtime_node

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 3, 6, 7)).astype(np.float32)
ROIS = np.array([[0, 0, 4, 5], [2.5, 1, 6.2, 3], [-1, -2, 9, 3]], np.float32)


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    [*itertools.product(["linear", "nearest", "cubic"], ["zeros", "border", "reflection"], [0, 1])],
)
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = np.random.default_rng(1).uniform(-1.7, 1.7, (2, 4, 3, 2)).astype(np.float32)
    attributes: dict[str, Any] = {"padding_mode": padding, "align_corners": align}
    theirs = runtime_node("GridSample", IMAGE, grid, opset=20, mode=mode, **attributes)
    ours = run_node("GridSample", IMAGE, grid, opset=20, symbolic=True, mode=mode, **attributes)
    close(ours, theirs, 1e-4)
    early = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    close(run_node("GridSample", IMAGE, grid, opset=16, mode=early, **attributes), ours, 0)


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (10, {"output_height": 2, "output_width": 3}),
        (10, {"output_height": 2, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}),
        (16, {"output_height": 2, "output_width": 3}),
        (16, {"coordinate_transformation_mode": "output_half_pixel", "sampling_ratio": 3}),
        (16, {"output_height": 3, "mode": "max", "sampling_ratio": 2}),
    ],
)
def test_roi_align(opset: int, attributes: Any) -> None:
    inputs = IMAGE, ROIS, np.array([0, 1, 1])
    theirs = runtime_node("RoiAlign", *inputs, opset=opset, **attributes)
    close(run_node("RoiAlign", *inputs, opset=opset, symbolic=True, **attributes), theirs, 1e-5)


def test_max_roi_pool() -> None:
    rois = np.concatenate([np.array([[0], [1], [1]], np.float32), np.abs(np.round(ROIS))], 1)
    for scale in (1.0, 0.5):
        attributes: dict[str, Any] = {"pooled_shape": [2, 3], "spatial_scale": scale}
        theirs = runtime_node("MaxRoiPool", IMAGE, rois, **attributes)
        close(run_node("MaxRoiPool", IMAGE, rois, **attributes), theirs, 0)
    with pytest.raises(ModelError, match="pooled_shape must be a height and a width"):
        run_node("MaxRoiPool", IMAGE, rois, pooled_shape=[2])


@pytest.mark.parametrize("constant", [(), (2, 3, 4)])
@pytest.mark.parametrize(("centre", "limit", "score"), [(0, 3, 0.4), (1, 20, 0.1), (0, 0, 0.0)])
def test_non_max_suppression(
    centre: int, limit: int, score: float, constant: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    inputs = (
        rng.uniform(0, 4, (2, 12, 4)).astype(np.float32),
        rng.uniform(0, 1, (2, 3, 12)).astype(np.float32),
        np.array([limit]), np.array([0.3], np.float32), np.array([score], np.float32),
    )  # fmt: skip
    attributes: dict[str, Any] = {"center_point_box": centre, "opset": 11}
    theirs = runtime_node("NonMaxSuppression", *inputs, **attributes)
    close(run_node("NonMaxSuppression", *inputs, constant=constant, **attributes), theirs, 0)


def test_suppression_without_thresholds() -> None:
    boxes, scores = np.zeros((1, 2, 4), np.float32), np.array([[[-1, 0.5]]], np.float32)
    (all_of_them,) = run_node("NonMaxSuppression", boxes, scores, np.array(5))
    assert all_of_them.tolist() == [[0, 0, 1], [0, 0, 0]]
    (none,) = run_node("NonMaxSuppression", boxes, scores)
    assert none.shape == (0, 3)


def test_modes_unknown() -> None:
    with pytest.raises(ModelError, match="unknown padding_mode"):
        run_node("GridSample", IMAGE, np.zeros((2, 1, 1, 2), np.float32), padding_mode="wrap")


def test_image_decoder() -> None:
    data = np.frombuffer(b"P6 1 1 255\n\x01\x02\x03", np.uint8)
    assert run_node("ImageDecoder", data, pixel_format="BGR", symbolic=True)[0].tolist() == [
        [[3, 2, 1]]
    ]
    with pytest.raises(ModelError, match="unknown pixel_format"):
        run_node("ImageDecoder", data, pixel_format="CMYK")
