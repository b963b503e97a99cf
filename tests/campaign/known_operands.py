"""Documented differences that are told by the operands of a node: see `tests.campaign.known`.

Each was seen in ONNX Runtime 1.30 or 1.31, and stands for what is wrong there or left open by the
standard. A rule looks at what the node in question reads, and at how the results differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.differences import Seen, difference
from tests.campaign.known import POOLS
from tests.campaign.minimise import values

Operands = list[np.ndarray | None]
Elements = Callable[[np.ndarray], np.ndarray]
"""Tells of each element whether something holds."""
FACTORS = {"MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}
"""The operands of a node that are multiplied."""


def reads(s: Seen, *ops: str) -> Iterator[tuple[onnx.NodeProto, Operands]]:
    """The nodes of some ops behind a difference, with what they read in the run in question."""
    run = s.problem.run
    arrays = {n: x[run] for n, x in values(s.case).items() if len(x) > run}
    arrays |= s.case.runs[run]
    arrays |= {t.name: numpy_helper.to_array(t) for t in s.case.model.graph.initializer}
    for node in s.nodes:
        if node.op_type in ops:
            yield node, [arrays.get(name) for name in node.input]


def first(s: Seen, holds: Callable[[np.ndarray], bool], *ops: str) -> bool:
    """Tell whether something holds for the first operand of a node of some ops."""
    return any(x[0] is not None and holds(x[0]) for _, x in reads(s, *ops))


def has_nan(x: np.ndarray) -> bool:
    return x.dtype.kind in "fV" and bool(np.isnan(x.astype(np.float64)).any())


def is_number(x: np.ndarray) -> np.ndarray:
    return ~np.isnan(x)


def only(s: Seen, given: Elements, expected: Elements) -> bool:
    """Tell whether all elements that differ are such on either side."""
    a, b = np.asarray(s.given), np.asarray(s.expected)
    if a.shape != b.shape or a.dtype.kind not in "fV":
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    differ = ~np.isclose(x, y, 1e-2, 1e-2, equal_nan=True)
    return bool(np.all(given(x)[differ]) and np.all(expected(y)[differ]))


# Wrong results ----------------------------------------------------------------------------------


@difference("a sum of no products is 0 in the standard (numpy.matmul); ONNX Runtime leaves such a"
            " result as memory was")  # fmt: skip
def empty_sum(s: Seen) -> bool:
    for node, operands in reads(s, *FACTORS):
        x, y = (operands[i] for i in FACTORS[node.op_type])
        if x is not None and y is not None and x.shape[-1:] == (0,) == y.shape[-2:][:1]:
            return True
    return False


@difference("Unique: all NaN are one element in the standard's evaluator; ONNX Runtime compares"
            " them as equal to anything")  # fmt: skip
def unique_nan(s: Seen) -> bool:
    return first(s, has_nan, "Unique")


@difference("the largest or smallest element where one is NaN: NaN in the reference and in numpy,"
            " a number in ONNX Runtime for some axes")  # fmt: skip
def reduced_nan(s: Seen) -> bool:
    return first(s, has_nan, "ReduceMax", "ReduceMin") and only(s, is_number, np.isnan)


@difference("Hardmax of a row with NaN: the first NaN is the largest in the reference, another"
            " element in ONNX Runtime")  # fmt: skip
def hardmax_nan(s: Seen) -> bool:
    return first(s, has_nan, "Hardmax")


@difference("MeanVarianceNormalization without variance: the standard adds 1e-9 to the deviation,"
            " ONNX Runtime divides 0 by 0")  # fmt: skip
def no_variance(s: Seen) -> bool:
    return s.has("MeanVarianceNormalization") and only(s, np.isnan, partial(np.equal, 0))


@difference("Attention, causal, with a past, and not as many new keys as queries: in the standard's"
            " evaluator queries follow the past, in ONNX Runtime they end with keys")  # fmt: skip
def causal_past(s: Seen) -> bool:
    for node, (q, k, *_) in reads(s, "Attention"):
        causal = any(a.name == "is_causal" and a.i for a in node.attribute)
        past = len(node.input) > 4 and node.input[4]
        if causal and past and q is not None and k is not None and q.shape[-2] != k.shape[-2]:
            return True
    return False


@difference("Attention to keys whose scores are all -inf by their data: 0 as for masked keys in the"
            " reference, NaN in ONNX Runtime")  # fmt: skip
def infinite_scores(s: Seen) -> bool:
    return s.unusual and s.has("Attention") and only(s, np.isnan, partial(np.equal, 0))


@difference("Resize of large integers: ONNX Runtime interpolates in f32, the reference in f64")
def large_interpolated(s: Seen) -> bool:
    def large(x: np.ndarray) -> bool:
        return x.dtype.kind in "iu" and np.abs(x.astype(float)).max(initial=0) > 2**24

    between = b"nearest" not in s.attribute("mode")
    return between and first(s, large, "Resize") and s.close(2.0**-20)


@difference("HardSwish of f64: alpha is 1/6 in the standard; ONNX Runtime inlines HardSigmoid, with"
            " an f32 as its attribute")  # fmt: skip
def rounded_alpha(s: Seen) -> bool:
    wide = np.asarray(s.expected).dtype == np.float64
    return wide and s.has("HardSwish") and s.close(1e-7)


@difference("a pool whose window is larger than the padded image: the standard rounds a negative"
            " number of steps down, ONNX Runtime towards 0")  # fmt: skip
def window_beyond(s: Seen) -> bool:
    for node, (x, *_) in reads(s, *POOLS):
        named = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        kernel = np.array(named["kernel_shape"])
        spread = (kernel - 1) * np.array(named.get("dilations", 1)) + 1
        pads = np.array(named.get("pads", [0] * 2 * len(kernel))).reshape(2, -1).sum(0)
        if x is not None and (np.array(x.shape[2:]) + pads < spread).any():
            return np.shape(s.given) != np.shape(s.expected)
    return False


@difference("Sigmoid and Erf: ONNX Runtime's f32 is off by some 2^-24 of 1 where the result, or"
            " what follows, is close to 0")  # fmt: skip
def rough_near_zero(s: Seen) -> bool:
    single = np.asarray(s.expected).dtype == np.float32
    ops = ("Sigmoid", "Erf", "Gelu", "QuickGelu", "FastGelu", "BiasGelu")
    inner = {b"Sigmoid", b"Tanh"} & set(s.attribute("activation"))
    return single and (s.has(*ops) or bool(inner)) and s.near(4e-6)


@difference("Resize: ONNX Runtime's places and weights are f32, the reference's f64; pixels that"
            " cancel show it")  # fmt: skip
def rounded_places(s: Seen) -> bool:
    single = np.asarray(s.expected).dtype == np.float32
    between = b"nearest" not in s.attribute("mode")
    return single and between and s.has("Resize") and s.close(2.0**-19)


@difference("Sin, Cos and Tan: ONNX Runtime reduces angles with the precision of their type, so"
            " that a result near 0 is off by some units of the angle")  # fmt: skip
def reduced_angle(s: Seen) -> bool:
    for _, (x, *_) in reads(s, "Sin", "Cos", "Tan"):
        if x is not None and x.dtype in (np.float32, np.float64):
            angle = np.abs(x[np.isfinite(x)]).max(initial=0.0)
            if s.near(4 * float(np.finfo(x.dtype).eps) * float(angle)):
                return True
    return False


@difference("Shrink of integers: ONNX Runtime computes in f32")
def shrunk_in_floats(s: Seen) -> bool:
    def large(x: np.ndarray) -> bool:
        return x.dtype.kind in "iu" and np.abs(x.astype(float)).max(initial=0) > 2**24

    return first(s, large, "Shrink") and s.close(2.0**-23)


def has_infinity(x: np.ndarray) -> bool:
    return x.dtype.kind in "fV" and bool(np.isinf(x.astype(np.float64)).any())


@difference("LRN beside an infinity: ONNX Runtime moves its sums from window to window, so that an"
            " infinity stays in windows that it is not in")  # fmt: skip
def moved_sums(s: Seen) -> bool:
    return first(s, has_infinity, "LRN") or (s.unusual and s.has("LRN"))


@difference("ReduceLogSumExp of elements with NaN: NaN in the reference and in numpy, a number in"
            " ONNX Runtime, which drops NaN from the largest element")  # fmt: skip
def log_sum_of_nan(s: Seen) -> bool:
    return first(s, has_nan, "ReduceLogSumExp") and only(s, is_number, np.isnan)


@difference("DFT of f64: ONNX Runtime's factors have the precision of f32")
def rough_transform(s: Seen) -> bool:
    wide = np.asarray(s.expected).dtype == np.float64
    return wide and s.has("DFT", "STFT") and s.close(1e-6)


@difference("InstanceNormalization by infinities: ONNX Runtime folds scale and mean into the bias,"
            " where they cancel to NaN")  # fmt: skip
def folded_scale(s: Seen) -> bool:
    return s.unusual and s.has("InstanceNormalization") and only(s, np.isnan, is_number)


@difference("ConvTranspose with infinite weights: 0 times infinity is NaN in the reference and left"
            " out by ONNX Runtime")  # fmt: skip
def left_out_products(s: Seen) -> bool:
    infinite = any(w is not None and has_infinity(w) for _, (_, w, *_) in reads(s, "ConvTranspose"))
    return infinite and only(s, is_number, np.isnan)


@difference("the smaller or larger of two elements where one is NaN: NaN in the reference and in"
            " numpy, the other one in ONNX Runtime's scatters")  # fmt: skip
def scattered_nan(s: Seen) -> bool:
    ops = ("ScatterElements", "ScatterND")
    extremes = {b"min", b"max"} & set(s.attribute("reduction"))
    return bool(extremes) and s.has(*ops) and only(s, is_number, np.isnan)


@difference("Gather of strings by negative indices: ONNX Runtime reads another element")
def gathered_strings(s: Seen) -> bool:
    def negative(i: np.ndarray | None) -> bool:
        return i is not None and bool((i < 0).any())

    strings = np.asarray(s.expected).dtype.kind in "OTU"
    return strings and any(negative(i) for _, (_, i, *_) in reads(s, "Gather"))


@difference("attention over infinities or NaN: a key that a query does not see may make it NaN, or"
            " may not: the standard leaves that open")  # fmt: skip
def attention_of_infinities(s: Seen) -> bool:
    return s.unusual and s.has("Attention", "MultiHeadAttention")


@difference("Where: of its first operand ONNX Runtime takes what is not 0: a zero there loses its"
            " sign, and a quotient by it is the other infinity")  # fmt: skip
def unsigned_zero(s: Seen) -> bool:
    def signed(x: np.ndarray | None) -> bool:
        return x is not None and x.dtype.kind == "f" and bool(np.any(np.signbit(x) & (x == 0)))

    lost = any(signed(x) for _, (_, x, _) in reads(s, "Where"))
    return lost and s.has("Div", "Reciprocal") and only(s, np.isinf, np.isinf)


# Crashes ----------------------------------------------------------------------------------------


@difference("ONNX Runtime divides by zero in TopK where the operand has no elements, and aborts"
            " in Unique along an axis of such a one", sorts=("crash",))  # fmt: skip
def crash_without_elements(s: Seen) -> bool:
    def empty(x: np.ndarray) -> bool:
        return x.size == 0

    along = any(a.name == "axis" for n in s.nodes if n.op_type == "Unique" for a in n.attribute)
    return first(s, empty, "TopK") or (along and first(s, empty, "Unique"))


@difference("Split into so many that nothing is left for the last: the standard's evaluator gives"
            " empty parts, ONNX Runtime a negative size", sorts=("crash",))  # fmt: skip
def negative_part(s: Seen) -> bool:
    for node, (x, *_) in reads(s, "Split"):
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        parts = attributes.get("num_outputs", 0)
        if x is not None and parts:
            size = x.shape[attributes.get("axis", 0)]
            if -(-size // parts) * (parts - 1) > size:
                return True
    return False


@difference("halves that are compared: ONNX Runtime computes one operand in f32 without rounding,"
            " so that it differs from its twin")  # fmt: skip
def compared_halves(s: Seen) -> bool:
    a, b = np.asarray(s.given), np.asarray(s.expected)
    for node, (x, y, *_) in reads(s, "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
        if s.problem.output not in node.output or x is None or y is None:
            continue
        if x.dtype == y.dtype == np.float16 and len(s.nodes) > 1 and a.shape == b.shape:
            left, right = x.astype(np.float64), y.astype(np.float64)
            # Each is off by half a unit of its last place.
            twins = np.abs(left - right) <= 2.0**-11 * (np.abs(left) + np.abs(right))
            return bool(np.all(np.broadcast_to(twins, a.shape)[a != b]))
    return False
