"""Resize, grid sampling, regions of interest and non-maximum suppression."""

from __future__ import annotations

from typing import Any

from monograph.frontend.onnx.convert.common import as_scalar
from monograph.frontend.onnx.node import Node, converter
from monograph.ir import Value, constant
from monograph.ir.dtype import f32
from monograph.ops import image as ip
from monograph.ops.deferred import deferred
from monograph.ops.image import BGR, GREY, RGB, DecodeImage, GridSample
from monograph.ops.resize import CUBIC, LINEAR, NEAREST, Resize
from monograph.ops.roi import AVERAGE, MAX, MaxRoiPool, NonMaxSuppression, RoiAlign

_MODES = {
    "bilinear": ip.LINEAR, "linear": ip.LINEAR, "nearest": ip.NEAREST, "bicubic": ip.CUBIC,
    "cubic": ip.CUBIC,
}  # fmt: skip
_OUTSIDE = {"zeros": ip.ZEROS, "border": ip.BORDER, "reflection": ip.REFLECT}


def _choice(n: Node, name: str, default: str, known: dict[str, str]) -> str:
    given = n.attr_string(name, default)
    if given not in known:
        n.fail(f"unknown {name}", expected=" or ".join(known), given=given)
    return known[given]


@converter("GridSample")
def grid_sample(n: Node) -> Value:
    """Convert GridSample; opset 20 renamed the modes."""
    op = GridSample(
        mode=_choice(n, "mode", "linear", _MODES),
        outside=_choice(n, "padding_mode", "zeros", _OUTSIDE),
        align_corners=n.attr_flag("align_corners"),
    )
    return op(n.input(0), n.input(1))


@converter("RoiAlign")
def roi_align(n: Node) -> Value:
    """Convert RoiAlign. Since opset 16 coordinates are those of pixel centres by default."""
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    coordinates = n.attr_string("coordinate_transformation_mode", default)
    op = RoiAlign(
        sizes=(n.attr_int("output_height", 1), n.attr_int("output_width", 1)),
        ratio=n.attr_int("sampling_ratio", 0),
        scale=n.attr_float("spatial_scale", 1.0),
        half_pixel=coordinates == "half_pixel",
        mode=_choice(n, "mode", "avg", {"avg": AVERAGE, "max": MAX}),
    )
    return op(n.input(0), n.input(1), n.input(2))


@converter("MaxRoiPool")
def max_roi_pool(n: Node) -> Value:
    sizes = n.attr_ints("pooled_shape")
    if len(sizes) != 2:
        n.fail("pooled_shape must be a height and a width", given=list(sizes))
    return MaxRoiPool(sizes, n.attr_float("spatial_scale", 1.0))(n.input(0), n.input(1))


@converter("NonMaxSuppression", since=10)
def non_max_suppression(n: Node) -> Value:
    late: dict[str, Value] = {}
    for i, name in ((2, "limit"), (3, "iou"), (4, "score")):
        given = n.optional(i)
        if given is not None:
            late[name] = as_scalar(given)
    boxes = n.input(0), n.input(1)
    return deferred(NonMaxSuppression, boxes, late, centre=n.attr_flag("center_point_box"))


@converter("ImageDecoder")
def image_decoder(n: Node) -> Value:
    colours = {"RGB": RGB, "BGR": BGR, "Grayscale": GREY}
    return DecodeImage(_choice(n, "pixel_format", "RGB", colours))(n.input(0))


_RESIZE_MODES = {"nearest": NEAREST, "linear": LINEAR, "bilinear": LINEAR, "cubic": CUBIC}


def _mode(n: Node) -> str:
    mode = n.attr_string("mode", "nearest")
    if mode not in _RESIZE_MODES:
        n.fail("unknown mode", expected=" or ".join(_RESIZE_MODES), given=mode)
    return _RESIZE_MODES[mode]


def _given(value: Value | None) -> Value | None:
    """Return an optional input; None also for an empty tensor, as some models leave one out."""
    if value is None or value.tensor.shape == (0,):
        return None
    return value


def _simple(n: Node, scales: Value) -> Value:
    """Build Upsample or the first Resize: asymmetric coordinates, nearest by floor or ceil."""
    x = n.input(0)
    axes = tuple(range(x.tensor.rank))
    fixed: dict[str, Any] = {"axes": axes, "mode": _mode(n), "coordinates": "asymmetric"}
    return deferred(Resize, (x,), {"scales": scales}, **fixed, rounding="simple")


@converter("Upsample")
def upsample_1(n: Node) -> Value:
    """Convert Upsample: version 1 scales height and width, version 7 every axis, by attributes."""
    if n.has("scales"):
        return _simple(n, constant(n.attr_floats("scales"), f32))
    scales = (1.0, 1.0, n.attr_float("height_scale"), n.attr_float("width_scale"))
    return _simple(n, constant(scales, f32))


@converter("Upsample", since=9)
@converter("Resize", since=10)
def upsample_9(n: Node) -> Value:
    return _simple(n, n.input(1))


@converter("Resize", since=11)
def resize(n: Node) -> Value:
    x = n.input(0)
    roi, scales, sizes = (_given(n.optional(i)) for i in (1, 2, 3))
    if (scales is None) == (sizes is None):
        n.fail(
            "exactly one of scales and sizes must be given", given="both" if scales else "neither"
        )
    coordinates = n.attr_string("coordinate_transformation_mode", "half_pixel")
    late: dict[str, Value] = {}
    if sizes is not None:
        late["sizes"] = sizes
    elif scales is not None:
        late["scales"] = scales
    if coordinates == "tf_crop_and_resize" and roi is not None:
        late["roi"] = roi
    y = deferred(
        Resize,
        (x,),
        late,
        axes=n.attr_ints("axes", tuple(range(x.tensor.rank))),
        mode=_mode(n),
        coordinates=coordinates,
        rounding=n.attr_string("nearest_mode", "round_prefer_floor"),
        cubic_a=n.attr_float("cubic_coeff_a", -0.75),
        exclude_outside=n.attr_flag("exclude_outside"),
        antialias=n.attr_flag("antialias"),
        extrapolation=n.attr_float("extrapolation_value", 0.0),
        policy=n.attr_string("keep_aspect_ratio_policy", "stretch"),
    )
    return x if isinstance(y.op, Resize) and not y.op.axes else y
