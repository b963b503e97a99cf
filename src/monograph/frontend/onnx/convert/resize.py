"""Resize and Upsample, of every opset, as one op."""

from __future__ import annotations

from typing import Any

from monograph.frontend.onnx.node import Node
from monograph.frontend.onnx.registry import converter
from monograph.ir import Value, constant
from monograph.ir.dtype import f32
from monograph.ops.deferred import deferred
from monograph.ops.resize import CUBIC, LINEAR, NEAREST, Resize

_MODES = {"nearest": NEAREST, "linear": LINEAR, "bilinear": LINEAR, "cubic": CUBIC}


def _mode(n: Node) -> str:
    mode = n.attr_string("mode", "nearest")
    if mode not in _MODES:
        n.fail("unknown mode", expected=" or ".join(_MODES), given=mode)
    return _MODES[mode]


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
