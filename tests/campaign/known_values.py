"""Documented differences that are told by their numbers: see `tests.campaign.known`.

A rule of this module computes what the other side makes of a node, or which elements of its result
are left open. The rest of the graph then has to give what the other side gave, by the reference. So
such a rule excuses no other difference in the same output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper, numpy_helper

from monograph.ops.image import Axis, coordinates
from tests.campaign.case import Case, element_type
from tests.campaign.differences import Seen, difference
from tests.campaign.known_operands import Operands, has_nan, reads
from tests.campaign.minimise import values
from tests.campaign.sides import run_side

RELATIVE = {2: 1e-2, 4: 1e-4, 8: 1e-9}
"""Differences that rounding explains, of the largest element, by the size of a float."""
EXACT = 2.0**53
"""Integers beyond this are rounded in f64."""

Attributes = dict[str, Any]
Result = tuple[onnx.NodeProto, np.ndarray]


def attributes(node: onnx.NodeProto) -> Attributes:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def agrees(given: Any, wanted: Any) -> np.ndarray | bool:
    """Return which elements agree but for rounding; False where arrays are of different kinds."""
    a, b = np.asarray(given), np.asarray(wanted)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind not in "fV":
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    relative = RELATIVE[a.dtype.itemsize]
    scale = np.abs(y[np.isfinite(y)]).max(initial=0.0)
    return np.isclose(x, y, relative, relative * scale, equal_nan=True)


def behind(s: Seen, node: onnx.NodeProto, result: np.ndarray) -> bool:
    """Tell whether the reference gives the output in question where a node gives this result."""
    if s.problem.output == node.output[0]:
        return bool(np.all(agrees(s.given, result)))
    model = onnx.ModelProto()
    model.CopyFrom(s.case.model)
    model.graph.node.remove(node)
    name = node.output[0]
    kind = helper.make_tensor_value_info(name, element_type(result), result.shape)
    model.graph.input.append(kind)
    feeds = {**s.case.runs[s.problem.run], name: result}
    made = values(s.case.with_model(model, (feeds,))).get(s.problem.output)
    return made is not None and bool(np.all(agrees(s.given, made[0])))


def theirs(s: Seen, node: onnx.NodeProto) -> np.ndarray | None:
    """The first result of a node by the side in question."""
    if s.problem.output == node.output[0]:
        return np.asarray(s.given)
    model = onnx.ModelProto()
    model.CopyFrom(s.case.model)
    model.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
    case = s.case.with_model(model, s.case.runs)
    for _, runs in run_side("onnxruntime", case, 0):
        found = (runs[s.problem.run].outputs or {}).get(node.output[0])
        return None if found is None else np.asarray(found)
    return None


def open_elements(
    s: Seen, ops: tuple[str, ...], free: Callable[[onnx.NodeProto, Operands], np.ndarray | None]
) -> bool:
    """Tell whether a node of some ops differs in open elements only, and all follows."""
    run = s.problem.run
    for node, operands in reads(s, *ops):
        left = free(node, operands)
        ours, other = values(s.case).get(node.output[0]), theirs(s, node)
        if left is None or not np.any(left) or ours is None or other is None:
            continue
        if other.shape != ours[run].shape or left.shape != other.shape:
            continue
        if np.all(agrees(other, ours[run]) | left) and behind(s, node, other):
            return True
    return False


# What the standard leaves open ------------------------------------------------------------------


def _axes(node: onnx.NodeProto, operands: Operands, rank: int) -> tuple[int, ...]:
    """The axes of a reduction: an attribute, or the second operand."""
    named = attributes(node)
    given = named.get("axes") or (operands[1] if len(operands) > 1 else None)
    if given is None or not np.size(given):
        return () if named.get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(int(a) % rank for a in np.ravel(given))


def _magnitude(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
    """Return how large the numbers may get that a result is made of, by element."""
    parts = [np.abs(x.astype(np.float64)) for x in operands if x is not None]
    named, op = attributes(node), node.op_type
    if op.startswith("Reduce"):
        axes, keep = _axes(node, operands, parts[0].ndim), bool(named.get("keepdims", 1))
        x = parts[0] ** 2 if op in ("ReduceL2", "ReduceSumSquare") else parts[0]
        return (np.prod if op == "ReduceProd" else np.sum)(x, axis=axes, keepdims=keep)
    if op == "Einsum":
        return np.asarray(np.einsum(named["equation"].decode().replace(" ", ""), *parts))
    if op == "Gemm":
        a, b = (p.T if named.get(f"trans{n}") else p for p, n in zip(parts, "AB", strict=False))
        return a @ b * abs(named.get("alpha", 1)) + abs(named.get("beta", 1)) * sum(parts[2:], 0.0)
    if op in ("CumSum", "CumProd"):
        grown = (np.sum if op == "CumSum" else np.prod)(
            np.maximum(parts[0], op == "CumProd"), int(np.ravel(operands[1])[0]), keepdims=True
        )
        return np.broadcast_to(grown, parts[0].shape)
    if op in ("Sum", "Mean"):
        return np.asarray(sum(parts))
    product = {"MatMul": np.matmul, "Pow": np.power, "Mul": np.multiply}[op]
    return np.asarray(product(*parts))  # type: ignore[operator]


@difference("integer overflow: ONNX leaves it open; the reference wraps, ONNX Runtime saturates or"
            " computes in floats")  # fmt: skip
def overflow(s: Seen) -> bool:
    ops = (
        "Einsum", "MatMul", "Gemm", "Pow", "CumSum", "CumProd", "Mul", "Sum", "Mean", "ReduceSum",
        "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare",
    )  # fmt: skip

    def free(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        x = operands[0]
        if x is None or x.dtype.kind not in "iu" or not x.size:
            return None
        with np.errstate(all="ignore"):
            size = _magnitude(node, operands)
        limit = min(float(np.iinfo(x.dtype).max), EXACT)
        return None if size is None else np.asarray(~(size <= limit))

    return open_elements(s, ops, free)


@difference("a maximum over a window that holds NaN: the reference gives NaN, ONNX Runtime what it"
            " met first or last")  # fmt: skip
def maximum_of_nan(s: Seen) -> bool:
    run, made = s.problem.run, values(s.case)

    def pooled(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        x, y = operands[0], made.get(node.output[0])
        if x is None or y is None or not has_nan(x) or y[run].dtype.kind not in "fV":
            return None
        return np.isnan(y[run].astype(np.float64))

    def chosen(node: onnx.NodeProto, operands: Operands) -> np.ndarray | None:
        x, y = operands[0], made.get(node.output[0])
        if x is None or y is None or not has_nan(x):
            return None
        axis = attributes(node).get("axis", -1 if node.op_type == "TopK" else 0)
        rows = np.isnan(x.astype(np.float64)).any(axis, keepdims=True)
        shape = y[run].shape
        return np.broadcast_to(rows if len(shape) == x.ndim else rows.squeeze(axis), shape)

    if open_elements(s, ("MaxRoiPool", "MaxPool", "GlobalMaxPool"), pooled):
        return True
    return open_elements(s, ("TopK", "ArgMax", "ArgMin"), chosen) or _second_of_nan(s)


def _second_of_nan(s: Seen) -> bool:
    """Tell whether indices beside a first result differ where that one is open because of NaN."""
    made, run = values(s.case), s.problem.run
    for node, (x, *_) in reads(s, "TopK", "MaxPool"):
        if len(node.output) < 2 or node.output[1] != s.problem.output or x is None:
            continue
        if not has_nan(x):
            return False
        if node.op_type == "MaxPool":
            free = np.isnan(made[node.output[0]][run].astype(np.float64))
        else:
            axis = attributes(node).get("axis", -1)
            free = np.isnan(x.astype(np.float64)).any(axis, keepdims=True)
        return bool(np.all(agrees(s.given, s.expected) | free))
    return False


@difference("elements that are equal: ONNX Runtime chooses another one of them than the standard")
def tied(s: Seen) -> bool:
    made, run = values(s.case), s.problem.run
    for node, (x, *_) in reads(s, "ArgMax", "ArgMin"):
        ours, other = made.get(node.output[0]), theirs(s, node)
        if x is None or ours is None or other is None or other.shape != ours[run].shape:
            continue
        axis = attributes(node).get("axis", 0)
        kept = [i if i.ndim == x.ndim else np.expand_dims(i, axis) for i in (other, ours[run])]
        if any((i < 0).any() or (i >= x.shape[axis]).any() for i in kept):
            continue
        a, b = (np.take_along_axis(x, i, axis) for i in kept)
        if np.array_equal(a, b) and behind(s, node, other):
            return True
    return False


@difference("halves: ONNX Runtime keeps f32 between steps, where the reference rounds to f16; a sum"
            " that cancels, and what is divided by it, shows it")  # fmt: skip
def wider_halves(s: Seen) -> bool:
    a, b = np.asarray(s.given), np.asarray(s.expected)
    if a.dtype != np.float16 or b.shape != a.shape or len(s.nodes) < 2:
        return False
    case = widened(s.case)
    made = values(case).get(s.problem.output)
    if made is None or made[s.problem.run].dtype != np.float32:
        return False
    with np.errstate(over="ignore"):
        exact = made[s.problem.run].astype(np.float16)
    # Element by element: one that is large excuses none that is small.
    wanted = [x.astype(np.float64) for x in (exact, b)]
    either = [np.isclose(a.astype(np.float64), x, RELATIVE[2], 2.0**-14, True) for x in wanted]
    return bool(np.all(either[0] | either[1]))


def widened(
    case: Case,
    halves: tuple[int, ...] = (onnx.TensorProto.FLOAT16,),
    wide: int = onnx.TensorProto.FLOAT,
) -> Case:
    """The case with a wide type, f32 unless told, in place of halves."""
    model, numbers = onnx.ModelProto(), helper.tensor_dtype_to_np_dtype(wide)
    model.CopyFrom(case.model)
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type in halves:
            info.type.tensor_type.elem_type = wide
    for t in _tensors(model.graph):
        if t.data_type in halves:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(numbers), t.name))
    for node in model.graph.node:
        for a in node.attribute:
            if node.op_type == "Cast" and a.name == "to" and a.i in halves:
                a.i = wide
    runs = [
        {n: x.astype(numbers) if element_type(x) in halves else x for n, x in r.items()}
        for r in case.runs
    ]
    return case.with_model(model, runs)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.TENSOR:
                yield a.t


# What ONNX Runtime does otherwise ---------------------------------------------------------------


@difference("Resize by align_corners with scales: the standard's length is a fraction, ONNX"
            " Runtime's a whole number")  # fmt: skip
def aligned_corners(s: Seen) -> bool:
    if not any(_has_fraction(node, operands) for node, operands in reads(s, "Resize")):
        return False
    with mock.patch("monograph.ops.resize.coordinates", whole_lengths):
        made = values(s.case).get(s.problem.output)
    if made is None or np.shape(s.given) != made[s.problem.run].shape:
        return False
    other = made[s.problem.run]
    if other.dtype.kind in "iu":  # an interpolated integer is cut off
        return bool(np.all(np.abs(np.subtract(s.given, other, dtype=np.float64)) <= 1))
    return bool(np.all(agrees(s.given, other)))


def whole_lengths(mode: str, size: int, count: int, scale: Any, roi: Any) -> Axis:
    """The places on an axis whose scaled length is the number of results."""
    places = coordinates(mode, size, count, None, roi).places
    return Axis(size, count / size if scale is None else scale, places)


def _has_fraction(node: onnx.NodeProto, operands: Operands) -> bool:
    """Tell whether a Resize aligns corners, and a scaled length is no whole number."""
    x, scales = operands[0], operands[2] if len(operands) > 2 else None
    named = attributes(node)
    mode = named.get("coordinate_transformation_mode", b"")
    if mode != b"align_corners" or x is None or scales is None:
        return False
    axes = named.get("axes", list(range(x.ndim)))
    lengths = np.float32([x.shape[a] for a in axes]) * scales
    return bool(np.any(lengths != np.floor(lengths)))


@difference("AffineGrid with align_corners: a dimension of size 1 is at -1 in the standard, at 0"
            " or 1 in ONNX Runtime")  # fmt: skip
def affine_grid(s: Seen) -> bool:
    made, run = values(s.case), s.problem.run
    for node, (theta, size, *_) in reads(s, "AffineGrid"):
        if theta is None or size is None or not attributes(node).get("align_corners"):
            continue
        # Columns of theta are x, y, z: the dimensions from the last one.
        single = [i for i, n in enumerate(size[:1:-1]) if n == 1]
        ours = made[node.output[0]][run]
        column = theta[:, :, single].sum(-1).reshape(len(theta), *[1] * (ours.ndim - 2), -1)
        shifts = (ours + (at + 1) * column for at in (0, 1))
        if single and any(behind(s, node, x.astype(ours.dtype)) for x in shifts):
            return True
    return False


@difference("Attention with softcap and a mask of floats: ONNX up to 1.21 adds the mask first,"
            " as the reference then does; later versions and ONNX Runtime cap first")  # fmt: skip
def capped_mask(s: Seen) -> bool:
    for node, operands in reads(s, "Attention"):
        mask = operands[3] if len(operands) > 3 else None
        if mask is None or mask.dtype == bool or not attributes(node).get("softcap", 0) > 0:
            continue
        if behind(s, node, _capped(attributes(node), operands)):
            return True
    return False


def _capped(named: Attributes, operands: Operands) -> np.ndarray:
    """Attention whose scores are capped before its mask of floats is added."""
    q, k, v, mask, *past = (None if x is None else x.astype(np.float64) for x in operands)
    assert q is not None and k is not None and v is not None and mask is not None  # noqa: PT018
    flat = q.ndim == 3
    if flat:
        q = _headed(q, named["q_num_heads"])
        k, v = (_headed(x, named["kv_num_heads"]) for x in (k, v))
    if len(past) > 1 and past[0] is not None and past[1] is not None:
        k, v = (np.concatenate([p, x], 2) for p, x in zip(past, (k, v), strict=False))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = named.get("scale") or q.shape[-1] ** -0.5
    cap = named["softcap"]
    with np.errstate(all="ignore"):
        scores = cap * np.tanh(q @ k.swapaxes(-1, -2) * scale / cap)
        pads = [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])]
        scores = scores + np.pad(mask, pads, constant_values=-np.inf)
        if named.get("is_causal"):
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        power = np.exp(scores - scores.max(-1, keepdims=True))
        made = power / power.sum(-1, keepdims=True) @ v
    if flat:
        made = made.swapaxes(1, 2).reshape(*made.shape[:1], made.shape[2], -1)
    assert operands[0] is not None
    return np.asarray(made.astype(operands[0].dtype))


def _headed(x: np.ndarray, heads: int) -> np.ndarray:
    return np.asarray(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2))


@difference("Gemm of no products: ONNX Runtime copies C and forgets beta")
def forgotten_beta(s: Seen) -> bool:
    for node, (a, _, *rest) in reads(s, "Gemm"):
        named = attributes(node)
        inner = 0 if named.get("transA") else 1
        if a is None or a.shape[inner] or not rest or rest[0] is None:
            continue
        shape = values(s.case)[node.output[0]][s.problem.run].shape
        if behind(s, node, np.broadcast_to(rest[0], shape)):
            return True
    return False


@difference("Mod with fmod of integers that f64 rounds: ONNX Runtime computes in f64")
def rounded_remainder(s: Seen) -> bool:
    for node, (x, y) in reads(s, "Mod"):
        if x is None or y is None or x.dtype.kind not in "iu" or not attributes(node).get("fmod"):
            continue
        with np.errstate(all="ignore"):
            made = np.fmod(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
        if max(np.abs(z.astype(np.float64)).max(initial=0) for z in (x, y)) > EXACT:
            return behind(s, node, made)
    return False


@difference("ReduceLogSumExp of integers: ONNX Runtime adds a whole number to the largest element")
def whole_logarithm(s: Seen) -> bool:
    for node, operands in reads(s, "ReduceLogSumExp"):
        x = operands[0]
        if x is None or x.dtype.kind not in "iu" or not x.size:
            continue
        axes, keep = _axes(node, operands, x.ndim), bool(attributes(node).get("keepdims", 1))
        top = x.max(axis=axes, keepdims=True)
        # Each exponential becomes whole as well: 1 for the largest element, 0 below it.
        powers = np.trunc(np.exp((x - top).astype(np.float64)))
        added = np.trunc(np.log(powers.sum(axis=axes, keepdims=True))).astype(x.dtype)
        made = top + added
        if behind(s, node, made if keep else made.squeeze(axes)):
            return True
    return False
