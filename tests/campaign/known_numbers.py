"""Documented differences by precision and limits of numbers: see `tests.campaign.known`.

A rule of this module holds each element to a bound that its operands give, or to the number that
the other side computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from unittest import mock

import numpy as np
import onnx
from onnx import helper, numpy_helper

import monograph
from monograph.runtime.numerics.tolerance import derive
from tests.campaign.case import element_type
from tests.campaign.differences import Seen, difference
from tests.campaign.judge import REFERENCE
from tests.campaign.judge import difference as first_difference
from tests.campaign.known_operands import Operands, reads
from tests.campaign.known_values import attributes, behind, theirs, whole_lengths, widened
from tests.campaign.minimise import values

HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
FLOATS = (np.float16, np.float32, np.float64)


def within(
    s: Seen, ops: tuple[str, ...], bound: Callable[[onnx.NodeProto, Operands], np.ndarray | None]
) -> bool:
    """Return True if an f32 node of some ops differs by its bound at most, and all follows.

    Where the bound is infinite, an element may be anything.
    """
    made, run = values(s.case), s.problem.run
    for node, operands in reads(s, *ops):
        ours, other, allowed = made.get(node.output[0]), theirs(s, node), bound(node, operands)
        if ours is None or other is None or allowed is None or other.dtype != np.float32:
            continue
        if other.shape != ours[run].shape or ours[run].dtype != np.float32:
            continue
        x, y = other.astype(np.float64), ours[run].astype(np.float64)
        with np.errstate(invalid="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            near = np.abs(x - y) <= allowed + 2.0**-22 * np.abs(np.where(np.isfinite(y), y, 0))
        if np.all(same | near | np.isinf(allowed)) and behind(s, node, other):
            return True
    return False


def finite(x: np.ndarray) -> np.ndarray:
    """Return the magnitudes of elements; 0 for infinities and NaN."""
    return np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64))


# Precision --------------------------------------------------------------------------------------


@difference("Elu, Selu and Celu of halves: compiled code and ONNX Runtime keep f32 between exp(x)"
            " and exp(x) - 1, where the reference rounds to 1", side="any")  # fmt: skip
def unrounded_power(s: Seen) -> bool:
    a, b = np.asarray(s.given), np.asarray(s.expected)
    if not s.has("Elu", "Selu", "Celu") or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if element_type(a) not in HALVES:
        return False
    run, output = s.problem.run, s.problem.output
    made = values(widened(s.case, HALVES, onnx.TensorProto.DOUBLE)).get(output)
    if made is None or made[run].dtype != np.float64:
        return False
    session = monograph.load(s.case.model.SerializeToString(), REFERENCE)
    with np.errstate(all="ignore"):
        relative = derive(session.bound_graph(dict(s.case.runs[run])))[output].rtol
        # Both are rounded to a half: where those are denormals, by a step.
        exact = made[run].astype(a.dtype)
        step = np.abs(np.nextafter(exact, exact.dtype.type(0)) - exact).astype(np.float64)
        off = np.abs(a.astype(np.float64) - exact.astype(np.float64))
        right = off <= np.maximum(relative * np.abs(exact.astype(np.float64)), step)
    # All other elements are held to the tolerance, by the reference.
    rest = {output: np.where(right, a, b)}
    return first_difference(s.case, s.case.runs[run], {output: a}, rest) is None


@difference("Swish and QuickGelu: ONNX Runtime's sigmoid of f32 is off by some 2^-24 of 1, which x"
            " then multiplies")  # fmt: skip
def rough_sigmoid(s: Seen) -> bool:
    def bound(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        return None if operands[0] is None else 2.0**-22 * finite(operands[0])

    return within(s, ("Swish", "QuickGelu"), bound)


@difference("GridSample, cubic: ONNX Runtime's places and weights are f32, the reference's f64;"
            " pixels that cancel show it")  # fmt: skip
def rounded_samples(s: Seen) -> bool:
    def bound(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        x = operands[0]
        if x is None or attributes(node).get("mode") not in (b"cubic", b"bicubic"):
            return None
        # A place is off by eps of the axis, and moves a sample by that share of its pixels.
        axes = tuple(range(2, x.ndim))
        return 2.0**-21 * max(x.shape[2:]) * finite(x).max(axes, initial=0.0, keepdims=True)

    return within(s, ("GridSample",), bound)


@difference("DFT and STFT with NaN or infinities beside large numbers: where those cancel, ONNX"
            " Runtime's factors of f32 leave a rest; which results the others reach is not"
            " specified")  # fmt: skip
def mixed_rests(s: Seen) -> bool:
    def bound(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        x = operands[0]
        ours, other = values(s.case).get(node.output[0]), theirs(s, node)
        if x is None or ours is None or other is None or np.isfinite(x).all():
            return None
        y = ours[s.problem.run]
        if y.shape != other.shape:
            return None
        special = ~np.isfinite(y) | ~np.isfinite(other)
        return np.where(special, np.inf, 2.0**-20 * finite(x).max(initial=0.0))

    return within(s, ("DFT", "STFT"), bound)


@difference("Gelu of f64 by tanh: ONNX Runtime takes the standard's function, whose constants are"
            " f32; the standard's evaluator has them in f64")  # fmt: skip
def rounded_constants(s: Seen) -> bool:
    factor, cubic = math.sqrt(np.float32(2 / math.pi)), float(np.float32(0.044715))
    for node, (x, *_) in reads(s, "Gelu"):
        if x is None or x.dtype != np.float64 or attributes(node).get("approximate") != b"tanh":
            continue
        with np.errstate(all="ignore"):
            made = 0.5 * x * (1 + np.tanh(factor * (x + cubic * x**3)))
        if behind(s, node, made):
            return True
    return False


# Limits -----------------------------------------------------------------------------------------


@difference("Clip without a limit: infinities stay in the standard's function and evaluator; its"
            " text and ONNX Runtime limit them to the largest number")  # fmt: skip
def default_limits(s: Seen) -> bool:
    for node, operands in reads(s, "Clip"):
        x, low, high = (*operands, None, None)[:3]
        other = theirs(s, node)
        if x is None or x.dtype not in FLOATS or other is None:
            continue
        limits = np.finfo(x.dtype)
        low = limits.min if low is None else low
        made = np.minimum(np.maximum(x, low), limits.max if high is None else high)
        if np.array_equal(other, made, equal_nan=True) and behind(s, node, other):
            return True
    return False


@difference("MaxPool of -inf: ONNX Runtime starts from the lowest number, and gives that for"
            " windows of -inf, or of NaN and -inf")  # fmt: skip
def lowest_start(s: Seen) -> bool:
    made, run = values(s.case), s.problem.run
    for node, _ in reads(s, "MaxPool"):
        ours, other = made.get(node.output[0]), theirs(s, node)
        if ours is None or other is None or other.dtype not in FLOATS:
            continue
        y = ours[run]
        if other.shape != y.shape or other.dtype != y.dtype:
            continue
        lowest = (y == -np.inf) & (other == np.finfo(y.dtype).min)
        if lowest.any() and np.all(lowest | np.isnan(y) | (other == y)) and behind(s, node, other):
            return True
    return False


@difference("Resize of i8 with antialias: ONNX Runtime resizes axis by axis, from the last one, and"
            " limits each step to 0..255, as for u8")  # fmt: skip
def limited_bytes(s: Seen) -> bool:
    for node, operands in reads(s, "Resize"):
        x, named, other = operands[0], attributes(node), theirs(s, node)
        if x is None or x.dtype != np.int8 or not named.get("antialias") or other is None:
            continue
        if "axes" in named or "keep_aspect_ratio_policy" in named:
            continue
        made: np.ndarray | None = x.astype(np.float64)
        for axis in range(x.ndim - 1, -1, -1):
            made = None if made is None else _resized(s, node, operands, made, axis)
            # The first two axes keep their sizes: there is no such step.
            if made is not None and axis > 1:
                made = np.clip(np.floor(made + 0.5), 0, 255)
        if made is None or made.shape != other.shape:
            continue
        # Weights are rounded, so that a step is off by 1.
        off = np.abs(made.astype(np.uint8).astype(np.int8).astype(int) - other.astype(int))
        if np.all(off <= 1) and behind(s, node, other):
            return True
    return False


def _resized(
    s: Seen, node: onnx.NodeProto, operands: Operands, x: np.ndarray, axis: int
) -> np.ndarray | None:
    """Return a tensor of f64 that a Resize changes along one axis, by whole lengths."""
    scales, sizes = (operands[i] if len(operands) > i else None for i in (2, 3))
    given = sizes if scales is None or not scales.size else scales
    if given is None:
        return None
    only = np.array(x.shape, np.int64) if given is sizes else np.ones(x.ndim, np.float32)
    only[axis] = given[axis]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.input[:] = ["x", "", "", "by"] if given is sizes else ["x", "", "by"]
    single.output[:] = ["y"]
    feed = helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, x.shape)
    result, by = onnx.ValueInfoProto(name="y"), numpy_helper.from_array(only, "by")
    model = onnx.ModelProto()
    model.CopyFrom(s.case.model)
    model.graph.CopyFrom(helper.make_graph([single], "axis", [feed], [result], [by]))
    with mock.patch("monograph.ops.resize.coordinates", whole_lengths):
        made = values(s.case.with_model(model, ({"x": x},))).get("y")
    return None if made is None else made[0]
