"""Slice, Split and Pad: every opset's form, bounds as constants and as inputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import monograph
from monograph.errors import ModelError
from monograph.ir import TensorType
from monograph.ir.dtype import f32
from monograph.ops.shape import Slice
from tests.frontend.nodes import close, node_model, run_node, runtime_node
from tests.frontend.test_shape import in_every_way, ints

X = np.arange(60, dtype=np.float32).reshape(5, 12)
MIN, MAX = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "expected"),
    [
        ([1, 2], [4, 8], None, None, X[1:4, 2:8]),
        ([1], [MAX], [1], None, X[:, 1:]),
        ([-3], [-1], [-1], [1], X[:, -3:-1]),
        ([MAX], [MIN], [1], [-1], X[:, ::-1]),
        ([-1, 10], [-99, 2], [0, 1], [-2, -3], X[::-2, 10:2:-3]),
        ([4], [2], [0], [1], X[4:2]),
        ([100], [200], [0], [1], X[100:200]),
    ],
)
def test_slice(starts, ends, axes, steps, expected: np.ndarray) -> None:
    inputs = [X, ints(*starts), ints(*ends)]
    inputs += [ints(*axes)] if axes else []
    inputs += [ints(*steps)] if steps else []
    np.testing.assert_array_equal(in_every_way("Slice", *inputs), expected)


def test_slice_with_int32_bounds_and_no_axes() -> None:
    one, three, two = (np.array([k], np.int32) for k in (1, 3, 2))
    (result,) = run_node("Slice", X, one, three, None, two)
    np.testing.assert_array_equal(result, X[1:3:2])


def test_slice_of_opset_1() -> None:
    (result,) = run_node("Slice", X, opset=9, starts=[1, -2], ends=[3, MAX], axes=[0, 1])
    np.testing.assert_array_equal(result, X[1:3, -2:])


def test_slices_that_cannot_be() -> None:
    with pytest.raises(ModelError, match="step is zero"):
        run_node("Slice", X, ints(0), ints(1), ints(0), ints(0), constant=[1, 2, 3, 4])
    with pytest.raises(ModelError, match="axis out of range"):
        run_node("Slice", X, ints(0), ints(1), ints(2), constant=[1, 2, 3])
    with pytest.raises(ModelError, match="one number for each axis"):
        run_node("Slice", X, ints(0), ints(1, 1), ints(0), constant=[1, 2, 3])


@pytest.mark.parametrize(
    "ways", [{}, {"constant": (1,)}, {"constant": (1,), "symbolic": True}], ids=str
)
def test_split_into_sizes(ways: dict[str, Any]) -> None:
    results = run_node("Split", X, ints(2, 0, 10), axis=-1, outputs=3, **ways)
    for part, expected in zip(results, np.split(X, [2, 2], axis=1), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("symbolic", [False, True])
def test_split_into_parts(symbolic: bool) -> None:
    results = run_node("Split", X, outputs=3, num_outputs=3, symbolic=symbolic)
    assert [r.shape[0] for r in results] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate(results), X)
    even = run_node("Split", X, outputs=4, axis=1, opset=13, symbolic=symbolic)
    np.testing.assert_array_equal(np.concatenate(even, 1), X)


def test_split_of_old_opsets() -> None:
    results = run_node("Split", X, outputs=2, split=[4, 1], opset=2)
    assert [r.shape for r in results] == [(4, 12), (1, 12)]


def test_splits_that_cannot_be() -> None:
    with pytest.raises(ModelError, match="add up"):
        run_node("Split", X, ints(2, 2), outputs=2, constant=[1])
    with pytest.raises(ModelError, match="one size for each output"):
        run_node("Split", X, ints(2, 3), outputs=3, constant=[1])
    with pytest.raises(ModelError, match="divides the size"):
        run_node("Split", X, outputs=2, opset=13)
    with pytest.raises(ModelError, match="as many outputs"):
        run_node("Split", X, outputs=2, num_outputs=3)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 3), (0, -1, 2, 0), (0, 0, 0, 0)])
def test_pad_against_the_runtime(mode: str, pads: tuple[int, ...]) -> None:
    theirs = runtime_node("Pad", X, ints(*pads), mode=mode, constant=[1])
    close([in_every_way("Pad", X, ints(*pads), mode=mode)], theirs, 0)


def test_pad_with_a_value_and_axes() -> None:
    value = np.array(1.5, np.float32)
    expected = np.pad(X, ((0, 0), (2, 1)), constant_values=1.5)
    np.testing.assert_array_equal(in_every_way("Pad", X, ints(2, 1), value, ints(-1)), expected)


def options(**given: Any) -> dict[str, Any]:
    return given


@pytest.mark.parametrize(
    "given",
    [
        options(opset=2, pads=[0, 1, 1, 0], value=2.0),
        options(opset=1, paddings=[0, 1, 1, 0], value=2.0),
    ],
)
def test_pad_of_old_opsets(given: dict[str, Any]) -> None:
    (result,) = run_node("Pad", X, **given)
    np.testing.assert_array_equal(result, np.pad(X, ((0, 1), (1, 0)), constant_values=2))


def test_pads_that_cannot_be() -> None:
    with pytest.raises(ModelError, match="one number for each axis"):
        run_node("Pad", X, ints(1, 1), constant=[1])
    with pytest.raises(ModelError, match="no such padding"):
        run_node("Pad", X, ints(0, 0, 0, 0), mode="mirror", constant=[1])


def test_center_crop_pad() -> None:
    # ONNX gives its body in opset 18, which serves later opsets too.
    for opset in (18, 21):
        (result,) = run_node("CenterCropPad", X, ints(3, 14), constant=[1], opset=opset)
        np.testing.assert_array_equal(result, np.pad(X[1:4], ((0, 0), (1, 1))))


def places_of(start: int, end: int, step: int, size: int) -> list[int]:
    """Return the slice of the standard: negative bounds count from the end, then all clamp."""
    start, end = (b + size if b < 0 else b for b in (start, end))
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = min(max(start, 0), high)
    return [*range(start, min(max(end, low), high), step)] if size else []


BOUNDS = (MIN, MIN + 1, -(2**31), -5, -4, -3, -1, 0, 1, 3, 4, 2**31 - 1, MAX)


@pytest.mark.parametrize("size", [0, 1, 4])
@pytest.mark.parametrize("step", [1, 2, MAX, -1, -2, MIN])
def test_bounds_clamp_as_the_standard_says(size: int, step: int) -> None:
    """Also a start before the first element, where the step is negative: Python takes nothing."""
    x = np.arange(size, dtype=np.float32)
    for start in BOUNDS:
        for end in BOUNDS:
            op = Slice((start,), (end,), (step,))
            expected = x[places_of(start, end, step, size)]
            np.testing.assert_array_equal(op.reference(x), expected)
            static = op.canonical(TensorType(f32, (size,)))
            np.testing.assert_array_equal(static.reference(x), expected)
            assert op.infer(TensorType(f32, (size,))).dims == expected.shape


@pytest.mark.parametrize("size", [1, 4])
def test_bounds_clamp_as_in_onnx_runtime(size: int) -> None:
    """Except for an end of INT_MAX behind a negative step, which it takes for the beginning."""
    x = np.arange(size, dtype=np.float32)
    for start, end, step in itertools.product(
        (MIN, -9, -1, 0, 9), (MIN, -9, -2, 0, 9), (1, -1, -2)
    ):
        given = (x, ints(start), ints(end), ints(0), ints(step))
        theirs = runtime_node("Slice", *given)
        for options in ({}, {"constant": (1, 2, 3, 4), "symbolic": True}):
            close(run_node("Slice", *given, **options), theirs, 0)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_start_before_the_first_element(target: str) -> None:
    given = (X, ints(-99, -13), ints(MIN, MIN), ints(0, 1), ints(-1, -2))
    for options in ({}, {"constant": (1, 2, 3, 4)}, {"constant": (1, 2, 3, 4), "symbolic": True}):
        session = monograph.load(node_model("Slice", given, **options), target=target)
        feeds = {n: given[int(n[1:])] for n in session.graph.input_names}
        np.testing.assert_array_equal(session.run(feeds)[0], X[:1, :1])


def test_bounds_of_opset_1_clamp() -> None:
    for start, end in itertools.product((MIN, -6, -1, 0, 7), (MIN, -2, 5, MAX)):
        (result,) = run_node("Slice", X, opset=9, starts=[start], ends=[end])
        np.testing.assert_array_equal(result, X[places_of(start, end, 1, 5)])
