"""Random single ops over windows and images: convolutions, pools, resizes, regions, samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.campaign.case import Node
from tests.campaign.draw import Draw, numpy_type
from tests.campaign.single.moves import ints


def window(d: Draw, spatial: int, sizes: tuple[int, ...], pool: bool = False) -> dict[str, Any]:
    """Attributes of a window that fits into an image of these sizes."""
    kernel = [d.some((1, 2, 3, 3, 5)) if n > 2 else d.number(1, 2) for n in sizes]
    made: dict[str, Any] = {"kernel_shape": kernel}
    if d.chance(0.5):
        made["strides"] = [d.some((1, 1, 2, 3)) for _ in range(spatial)]
    if d.chance(0.3):
        made["dilations"] = [d.some((1, 2, 3)) for _ in range(spatial)]
    spread = made.get("dilations", [1] * spatial)
    covered = [(k - 1) * s + 1 for k, s in zip(kernel, spread, strict=True)]
    if d.chance(0.15):
        made["auto_pad"] = d.some(("SAME_UPPER", "SAME_LOWER", "VALID"))
        if made["auto_pad"] == "VALID" and any(c > n for c, n in zip(covered, sizes, strict=True)):
            made["auto_pad"] = "SAME_UPPER"
        return made
    most = [min(2, k - 1) if pool else 2 for k in kernel]
    pads = [d.number(0, m) if d.chance(0.6) else 0 for _ in range(2) for m in most]
    for i, (c, n) in enumerate(zip(covered, sizes, strict=True)):
        while n + pads[i] + pads[spatial + i] < c and not pool:
            pads[spatial + i] += 1
        if pool and n + pads[i] + pads[spatial + i] < c:
            made["kernel_shape"][i] = 1
            pads[i] = pads[spatial + i] = 0
    if any(pads) or d.chance(0.2):
        made["pads"] = pads
    return made


def conv(d: Draw) -> Node:
    spatial = d.some((1, 2, 2, 2, 3))
    groups = d.some((1, 1, 1, 2, 4))
    depthwise = d.chance(0.2)
    channels = groups * d.some((1, 2, 4))
    shape = d.image(spatial, channels)
    attributes = window(d, spatial, shape[2:])
    groups = channels if depthwise else groups
    results = groups * d.some((1, 1, 2, 3))
    opset = d.opset("Conv")
    kind = d.type_of("Conv", opset)
    w = d.array(kind, (results, channels // groups, *attributes["kernel_shape"]))
    bias = d.array(kind, (results,)) if d.chance(0.5) else None
    attributes |= {"group": groups} if groups > 1 else {}
    if d.chance(0.3):
        del attributes["kernel_shape"]
    return Node("Conv", [d.array(kind, shape), w, bias], attributes, opset=opset, maybe={1, 2})


def conv_integer(d: Draw) -> Node:
    spatial, groups = d.some((1, 2, 2)), d.some((1, 1, 2))
    channels = groups * d.some((1, 2, 4))
    shape = d.image(spatial, channels)
    attributes = window(d, spatial, shape[2:]) | ({"group": groups} if groups > 1 else {})
    results = groups * d.some((1, 2, 3))
    kinds = [numpy_type(d.some(("uint8", "int8"))) for _ in range(2)]
    x = d.array(kinds[0], shape)
    w = d.array(kinds[1], (results, channels // groups, *attributes["kernel_shape"]))
    if d.chance(0.4):
        zeros = [d.array(k, ()) if d.chance(0.5) else None for k in kinds]
        return Node("ConvInteger", [x, w, *zeros], attributes, opset=d.opset("ConvInteger"),
                    maybe={1, 2, 3})  # fmt: skip
    per_channel = d.chance(0.4)
    size = (results,) if per_channel else ()
    w_zero = np.zeros(size, kinds[1]) if per_channel else d.array(kinds[1], ())
    inputs = [x, np.array(0.05, np.float32), d.array(kinds[0], ()), w,
              d.array(np.float32, size, 0.01, 0.1), w_zero,
              np.array(0.2, np.float32), d.array(kinds[0], ()),
              d.array(np.int32, (results,)) if d.chance(0.5) else None]  # fmt: skip
    return Node("QLinearConv", inputs, attributes, opset=d.opset("QLinearConv"),
                maybe={1, 2, 3, 4, 5, 6, 7, 8})  # fmt: skip


def conv_transpose(d: Draw) -> Node:
    spatial, groups = d.some((1, 2, 2, 3)), d.some((1, 1, 2))
    channels = groups * d.some((1, 2, 3))
    shape = d.image(spatial, channels)
    kernel = [d.number(1, 4) for _ in range(spatial)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    strides = [d.number(1, 4) for _ in range(spatial)] if d.chance(0.6) else [1] * spatial
    dilations = [d.number(1, 3) for _ in range(spatial)] if d.chance(0.3) else [1] * spatial
    if any(s > 1 for s in strides):
        attributes["strides"] = strides
    if any(s > 1 for s in dilations):
        attributes["dilations"] = dilations
    full = [(n - 1) * s + (k - 1) * di + 1 for n, s, k, di in
            zip(shape[2:], strides, kernel, dilations, strict=True)]  # fmt: skip
    if d.chance(0.4):
        pads = [d.number(0, min(2, (f - 1) // 2)) for f in full]
        attributes["pads"] = pads + [p if d.chance(0.7) else 0 for p in pads]
    if d.chance(0.3):
        attributes["output_padding"] = [d.number(0, max(s, di) - 1) for s, di in
                                        zip(strides, dilations, strict=True)]  # fmt: skip
    if d.chance(0.15):
        attributes.pop("pads", None)
        attributes["auto_pad"] = d.some(("SAME_UPPER", "SAME_LOWER", "VALID"))
    attributes |= {"group": groups} if groups > 1 else {}
    opset = d.opset("ConvTranspose")
    kind = d.type_of("ConvTranspose", opset)
    per = d.some((1, 2, 3))
    bias = d.array(kind, (per * groups,)) if d.chance(0.5) else None
    inputs = [d.array(kind, shape), d.array(kind, (channels, per, *kernel)), bias]
    return Node("ConvTranspose", inputs, attributes, opset=opset, maybe={1, 2})


def pool(d: Draw) -> Node:
    op = d.some(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"))
    opset = d.opset(op)
    spatial = d.some((1, 2, 2, 2, 3))
    shape = d.image(spatial)
    attributes = window(d, spatial, shape[2:], pool=True)
    if op == "AveragePool" and opset < 19:
        attributes.pop("dilations", None)
    if op == "LpPool":
        if opset < 18:
            attributes.pop("dilations", None)
        attributes |= {"p": d.number(1, 3)} if d.chance(0.6) else {}
    if d.chance(0.4) and (op != "LpPool" or opset >= 18) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = d.number(0, 1)
    if op == "AveragePool" and d.chance(0.5):
        attributes["count_include_pad"] = d.number(0, 1)
    outputs = d.number(1, 2) if op == "MaxPool" else 1
    if outputs == 2 and d.chance(0.3):
        attributes["storage_order"] = d.number(0, 1)
    return Node(op, [d.array(d.type_of(op, opset), shape)], attributes, outputs, opset)


def global_pool(d: Draw) -> Node:
    op = d.some(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    opset = d.opset(op)
    attributes = {"p": d.number(1, 3)} if op == "GlobalLpPool" and d.chance(0.5) else {}
    x = d.array(d.type_of(op, opset), d.image(d.some((1, 2, 2, 3))))
    return Node(op, [x], attributes, opset=opset)


def unpool(d: Draw) -> Node:
    n, c, h, w, k = d.number(1, 2), d.number(1, 3), d.number(1, 4), d.number(1, 4), d.number(1, 3)
    size = c * h * k * w * k
    where = np.stack([d.generator.permutation(size)[: c * h * w] for _ in range(n)])
    where = (where + np.arange(n)[:, None] * size).reshape(n, c, h, w).astype(np.int64)
    x = d.array(d.kind(("float32", "float16", "float64")), (n, c, h, w))
    target = ints(n, c, h * k, w * k) if d.chance(0.3) else None
    attributes = {"kernel_shape": [k, k], "strides": [k, k]}
    return Node("MaxUnpool", [x, where, target], attributes, opset=d.opset("MaxUnpool"),
                constant={2})  # fmt: skip


def resize(d: Draw) -> Node:
    opset = d.opset("Resize")
    spatial = d.some((1, 2, 2, 3))
    x = d.array(d.kind(("float32", "float16", "float64", "int32", "uint8", "int8")),
                d.image(spatial))  # fmt: skip
    mode = d.some(("nearest", "nearest", "linear", "linear", "cubic"))
    attributes: dict[str, Any] = {"mode": mode}
    if mode == "cubic" and spatial != 2:
        attributes["mode"] = mode = "linear"
    if d.chance(0.7):
        coordinates = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
                       *(("half_pixel_symmetric",) if opset >= 19 else ()))  # fmt: skip
        attributes["coordinate_transformation_mode"] = d.some(coordinates)
    if mode == "nearest" and d.chance(0.7):
        modes = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = d.some(modes)
    if mode == "cubic" and d.chance(0.4):
        attributes |= {"cubic_coeff_a": -0.5, "exclude_outside": d.number(0, 1)}
    if opset >= 18 and mode != "nearest" and d.chance(0.25):
        attributes["antialias"] = 1
    if d.chance(0.5):
        sizes = ints(*x.shape[:2], *(d.number(1, 12) for _ in range(spatial)))
        return Node("Resize", [x, None, None, sizes], attributes, opset=opset, constant={3})
    scales = np.array([1, 1, *(d.some((0.5, 1.0, 2.0, 1.5, 3.0, 0.7)) for _ in range(spatial))],
                      np.float32)  # fmt: skip
    scales[2:] = np.where(np.array(x.shape[2:]) * scales[2:] < 1, 1, scales[2:])
    return Node("Resize", [x, None, scales], attributes, opset=opset, constant={2})


def regions(d: Draw) -> Node:
    op = d.some(("RoiAlign", "RoiAlign", "MaxRoiPool"))
    n, c, h, w = d.number(1, 2), d.number(1, 3), d.number(2, 9), d.number(2, 9)
    kind = d.kind(("float32", "float64"))
    x, count = d.array(kind, (n, c, h, w)), d.number(0, 4)
    corners = np.sort(d.generator.uniform(0, max(h, w), (count, 2, 2)), axis=1)
    batch = d.array(np.int64, (count,), 0, n - 1)
    if op == "MaxRoiPool":
        x, whole = d.array(np.float32, (n, c, h, w)), np.round(corners.reshape(count, 4))
        rois = np.concatenate([batch[:, None], whole], axis=1).astype(np.float32)
        attributes = {"pooled_shape": [d.number(1, 3), d.number(1, 3)]}
        return Node(op, [x, rois], attributes, opset=d.opset(op))
    attributes = {n: d.number(1, 3) for n in ("output_height", "output_width")}
    attributes |= {"sampling_ratio": d.number(0, 3)} if d.chance(0.6) else {}
    extra: dict[str, Any] = {"mode": d.some(("avg", "max"))} if d.chance(0.5) else {}
    extra |= {"spatial_scale": d.some((0.5, 1.0, 0.25))} if d.chance(0.5) else {}
    if d.chance(0.4):
        extra["coordinate_transformation_mode"] = d.some(("half_pixel", "output_half_pixel"))
    rois = corners.reshape(count, 4).astype(kind)
    return Node(op, [x, rois, batch], attributes | extra, opset=d.opset(op))


def samples(d: Draw) -> Node:
    op = d.some(("GridSample", "GridSample", "AffineGrid", "Col2Im", "DeformConv"))
    if op == "AffineGrid":
        dims = d.number(2, 3)
        n, sizes = d.number(1, 2), [d.number(1, 5) for _ in range(dims)]
        theta = d.array(d.kind(("float32", "float64")), (n, dims, dims + 1))
        attributes = {"align_corners": d.number(0, 1)} if d.chance(0.6) else {}
        return Node(op, [theta, ints(n, 3, *sizes)], attributes, opset=20, maybe={1})
    if op == "Col2Im":
        return _col2im(d)
    if op == "DeformConv":
        return _deform(d)
    opset = d.opset(op)
    spatial = 2 if opset < 20 or d.chance(0.7) else 3
    x = d.array(d.kind(("float32", "float64")), d.image(spatial))
    target = [d.number(1, 5) for _ in range(spatial)]
    grid = d.array(x.dtype, (x.shape[0], *target, spatial), -1.3, 1.3)
    attributes = {"align_corners": d.number(0, 1)} if d.chance(0.5) else {}
    new = opset >= 20
    modes = ("linear" if new else "bilinear", "nearest", *(
        ("cubic" if new else "bicubic",) if spatial == 2 else ()))  # fmt: skip
    extra = {"mode": d.some(modes), "padding_mode": d.some(("zeros", "border", "reflection"))}
    return Node(op, [x, grid], attributes | extra, opset=opset)


def _col2im(d: Draw) -> Node:
    block, image = [d.number(1, 3), d.number(1, 3)], [d.number(3, 6), d.number(3, 6)]
    attributes: dict[str, Any] = {}
    strides, dilations, pads = [1, 1], [1, 1], [0] * 4
    if d.chance(0.5):
        attributes["strides"] = strides = [d.number(1, 2), d.number(1, 2)]
    if d.chance(0.3) and max(block) < 3:
        attributes["dilations"] = dilations = [d.number(1, 2), d.number(1, 2)]
    if d.chance(0.4):
        attributes["pads"] = pads = [d.number(0, 1) for _ in range(4)]
    counts = [(image[i] + pads[i] + pads[i + 2] - (block[i] - 1) * dilations[i] - 1) // strides[i]
              + 1 for i in range(2)]  # fmt: skip
    columns = d.array(
        d.kind(("float32", "float64")),
        (d.number(1, 2), d.number(1, 3) * block[0] * block[1], counts[0] * counts[1]),
    )
    return Node("Col2Im", [columns, ints(*image), ints(*block)], attributes, opset=18, maybe={1, 2})


def _deform(d: Draw) -> Node:
    n, c, h, w = d.number(1, 2), d.some((1, 2, 4)), d.number(3, 6), d.number(3, 6)
    kh, kw, m = d.number(1, 3), d.number(1, 3), d.some((1, 2))
    x = d.array(np.float32, (n, c, h, w))
    oh, ow = h - kh + 1, w - kw + 1
    offset = d.array(np.float32, (n, 2 * kh * kw, oh, ow), -1.5, 1.5)
    bias = d.array(np.float32, (m,)) if d.chance(0.5) else None
    mask = d.array(np.float32, (n, kh * kw, oh, ow), 0, 1) if d.chance(0.5) else None
    inputs = [x, d.array(np.float32, (m, c, kh, kw)), offset, bias, mask]
    return Node("DeformConv", inputs, {"kernel_shape": [kh, kw], "pads": [0] * 4},
                opset=d.opset("DeformConv"), maybe={1, 3})  # fmt: skip


def suppression(d: Draw) -> Node:
    n, classes, boxes = d.number(1, 2), d.number(1, 3), d.number(0 if d.chance(0.1) else 1, 8)
    corners = np.sort(d.generator.random((n, boxes, 2, 2)), axis=2).reshape(n, boxes, 4)
    scores = d.generator.random((n, classes, boxes)).astype(np.float32)
    most = np.array(d.number(0, 5), np.int64) if d.chance(0.9) else None
    iou = np.array(d.some((0.0, 0.3, 0.5, 1.0)), np.float32) if d.chance(0.7) else None
    least = np.array(d.some((0.0, 0.4, 0.9)), np.float32) if d.chance(0.6) else None
    attributes = {"center_point_box": d.number(0, 1)} if d.chance(0.4) else {}
    inputs = [corners.astype(np.float32), scores, most, iou, least]
    return Node("NonMaxSuppression", inputs, attributes, opset=d.opset("NonMaxSuppression"),
                maybe={2, 3, 4})  # fmt: skip


MAKERS = {conv: 8, conv_integer: 3, conv_transpose: 4, pool: 6, global_pool: 2, unpool: 1,
          resize: 6, regions: 2, samples: 4, suppression: 2}  # fmt: skip
"""The weight of each against the others."""
