"""Resize and Upsample of every opset: ONNX Runtime as second opinion."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from tests.frontend.nodes import close, node_model, run_node, runtime_node

X = np.random.default_rng(0).normal(size=(1, 2, 5, 4)).astype(np.float32)
SIZES = np.array([1, 2, 3, 7])
SCALES = np.array([1, 1, 0.6, 2], np.float32)
PLACES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize(("mode", "places"), [*itertools.product(["linear", "cubic"], PLACES)])
def test_to_a_size(mode: str, places: str) -> None:
    attributes: dict[str, Any] = {
        "mode": mode, "coordinate_transformation_mode": places, "opset": 13,
    }  # fmt: skip
    theirs = runtime_node("Resize", X, None, None, SIZES, **attributes)
    for options in ({}, {"symbolic": True}, {"constant": (3,)}):
        ours = run_node("Resize", X, None, None, SIZES, **options, **attributes)
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize(
    ("rounding", "places"),
    [
        *itertools.product(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
            ["half_pixel", "asymmetric", "tf_half_pixel_for_nn"],
        )
    ],
)
def test_the_nearest(rounding: str, places: str) -> None:
    attributes: dict[str, Any] = {
        "mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": places,
        "opset": 11,
    }  # fmt: skip
    none = np.zeros(0, np.float32)
    theirs = runtime_node("Resize", X, none, SCALES, **attributes)
    close(run_node("Resize", X, none, SCALES, **attributes), theirs, 0)
    constant = run_node("Resize", X, none, SCALES, constant=(1, 2), symbolic=True, **attributes)
    close(constant, theirs, 0)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
        {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
        {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"},
        {"mode": "linear", "keep_aspect_ratio_policy": "not_smaller"},
    ],
)
def test_later_attributes(attributes: Any) -> None:
    sizes = np.array([8, 3])
    options = {"opset": 19, "axes": [3, 2], **attributes}
    theirs = runtime_node("Resize", X, None, None, sizes, **options)
    close(run_node("Resize", X, None, None, sizes, **options), theirs, 1e-5)
    close(run_node("Resize", X, None, None, sizes, symbolic=True, **options), theirs, 1e-5)


@pytest.mark.parametrize("constant", [(), (1, 3)])
def test_crop(constant: tuple[int, ...]) -> None:
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 0.9], np.float32)
    attributes: dict[str, Any] = {
        "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 10.0, "opset": 13,
    }  # fmt: skip
    theirs = runtime_node("Resize", X, roi, None, SIZES, **attributes)
    close(run_node("Resize", X, roi, None, SIZES, constant=constant, **attributes), theirs, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_early_forms(op: str, opset: int, mode: str) -> None:
    scales = np.array([1, 1, 2, 1.5] if op == "Upsample" else [1, 1, 0.6, 1.5], np.float32)
    theirs = runtime_node(op, X, scales, opset=opset, mode=mode)
    close(run_node(op, X, scales, opset=opset, mode=mode), theirs, 1e-5)
    if op == "Upsample":
        options: dict[str, Any] = {"opset": 7, "scales": scales.tolist(), "mode": mode}
        close(run_node(op, X, symbolic=True, **options), theirs, 1e-5)
        by_axis = run_node(op, X, opset=1, height_scale=2.0, width_scale=1.5, mode=mode)
        close(by_axis, theirs, 1e-5)


def test_a_resize_that_changes_nothing_disappears() -> None:
    model = node_model("Resize", (X, None, np.ones(4, np.float32)), constant=(2,), symbolic=True)
    graph = monograph.load(model).graph
    assert graph.outputs[0][1] is graph.inputs[0]


def test_nodes_refused() -> None:
    with pytest.raises(ModelError, match="exactly one of scales and sizes"):
        run_node("Resize", X, None, SCALES, SIZES)
    with pytest.raises(ModelError, match="exactly one of scales and sizes"):
        run_node("Resize", X)
    with pytest.raises(ModelError, match="unknown mode"):
        run_node("Resize", X, None, SCALES, mode="area")


WAYS = [*PLACES, "half_pixel_symmetric"]
KINDS = [np.uint8, np.int8, np.int32]


def numbers(kind: type, seed: int = 0, shape: tuple[int, ...] = (1, 2, 9, 7)) -> np.ndarray:
    """Integers over all of 8 bits: in larger types, those that ONNX Runtime's f32 holds."""
    low, high = (0, 256) if np.iinfo(kind).min == 0 else (-128, 128)
    return np.random.default_rng(seed).integers(low, high, shape).astype(kind)


def exact(x: np.ndarray, *given: Any, **attributes: Any) -> np.ndarray:
    """The result in f64, with what is within 2^-17 of a whole number put there."""
    (y,) = run_node("Resize", x.astype(np.float64), *given, **attributes)
    near = np.abs(y - np.rint(y)) < 2**-17
    return np.where(near, np.rint(y), y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", WAYS)
def test_integers_are_cut_off(kind: type, places: str) -> None:
    """As in ONNX Runtime, where its f32 leaves no doubt about the whole number."""
    x = numbers(kind)
    options: dict[str, Any] = {
        "mode": "linear", "coordinate_transformation_mode": places, "opset": 19,
    }  # fmt: skip
    for size in ([17, 12], [4, 5], [18, 14]):
        given = (None, None, np.array([1, 2, *size]))
        (ours,) = run_node("Resize", x, *given, **options)
        wanted = exact(x, *given, **options)
        np.testing.assert_array_equal(ours, np.trunc(wanted).astype(kind))
        (theirs,) = runtime_node("Resize", x, *given, **options)
        clear = np.abs(wanted - np.rint(wanted)) > 1e-3
        np.testing.assert_array_equal(ours[clear], theirs[clear])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_integers_are_rounded_where_they_are_smoothed(mode: str, kind: type) -> None:
    """ONNX Runtime rounds after each axis: it differs by one at times, and by more at edges."""
    x = numbers(kind)
    given = (None, None, np.array([1, 2, 4, 5]))
    options: dict[str, Any] = {"mode": mode, "antialias": 1, "opset": 19}
    (ours,) = run_node("Resize", x, *given, **options)
    info = np.iinfo(kind)
    wanted = np.clip(np.floor(exact(x, *given, **options) + 0.5), info.min, info.max)
    np.testing.assert_array_equal(ours, wanted.astype(kind))
    if kind is np.uint8 and mode == "linear":
        (theirs,) = runtime_node("Resize", x, *given, **options)
        assert np.abs(ours.astype(int) - theirs).max() <= 1
        assert np.mean(ours != theirs) < 0.25


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int32, np.int64])
def test_integers_are_the_same_on_the_cpu(mode: str, kind: type) -> None:
    """Whatever the order of the sums: thirds and fifths of whole numbers are whole again."""
    info = np.iinfo(kind)
    limits = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    x = np.random.default_rng(1).integers(*limits, (1, 2, 10, 9), endpoint=True).astype(kind)
    for places in (*WAYS, "tf_crop_and_resize"):
        roi = np.array([0, 0, 0.1, -0.2, 1, 1, 0.7, 1.3], np.float32)
        for sizes, antialias in (([30, 27], 0), ([25, 6], 0), ([5, 27], 1)):
            given = (x, roi, None, np.array([1, 2, *sizes]))
            options = {
                "mode": mode, "antialias": antialias, "coordinate_transformation_mode": places,
                "extrapolation_value": -300.7, "constant": (1, 3), "opset": 19,
            }  # fmt: skip
            session = monograph.load(node_model("Resize", given, **options), target="cpu")
            np.testing.assert_array_equal(
                session.run({"x0": x})[0], run_node("Resize", *given, **options)[0]
            )
