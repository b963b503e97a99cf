"""Grid sampling, regions of interest and non-maximum suppression."""

from __future__ import annotations

from monograph.frontend.onnx.convert.common import as_scalar
from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value
from monograph.ops import interpolate as ip
from monograph.ops.deferred import deferred
from monograph.ops.image import GridSample
from monograph.ops.image_decode import BGR, GREY, RGB, DecodeImage
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
