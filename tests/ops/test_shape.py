"""Views, slices, padding: symbolic sizes, canonical forms, errors."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError, UnknownRankError
from monograph.ir import UNKNOWN, Input, constant, parse_tensor_type
from monograph.ir.evaluate import apply
from monograph.ops import shape as sh
from monograph.ops.deferred import deferred
from monograph.ops.pad_tile import Iota, Pad, Tile

FAR = 2**63 - 1
C, I = sh.COPY, sh.INFER


def infer(op, *texts: str) -> str:
    types = [parse_tensor_type(t) for t in texts]
    return str(op.canonical(*types).infer(*types))


@pytest.mark.parametrize(
    ("shape", "x", "result"),
    [
        ((3, I), "f32[2, 6]", "f32[3, 4]"),
        ((C, I), "f32[0, 6]", "f32[0, 6]"),
        ((C, I), "f32[N, 4, 5]", "f32[N, 20]"),
        ((I, 4), "f32[N, 4]", "f32[N, 4]"),
        ((I, 2), "f32[N, 4]", f"f32[{UNKNOWN}, 2]"),
        ((C, C, 2, I), "f32[N, M, 8]", "f32[N, M, 2, 4]"),
        ((I,), "f32[N, M]", f"f32[{UNKNOWN}]"),
        ((2, I), "f32[*]", f"f32[2, {UNKNOWN}]"),
        ((C, 4), "f32[2, 0, 4]", "f32[0, 4]"),  # 2 x 0, computed by the model
        ((1, C), "f32[0]", "f32[1, 0]"),
        ((C, C), "f32[2, 0, 4]", "f32[2, 0]"),
    ],
)
def test_reshape_keeps_the_sizes_it_can(shape, x: str, result: str) -> None:
    assert infer(sh.Reshape(shape), x) == result


@pytest.mark.parametrize(
    ("shape", "x", "message"),
    [
        ((4,), "f32[3]", "keeps the number of elements"),
        ((2, I), "f32[3]", "do not divide"),
        ((I, I), "f32[4]", "not a shape"),
        ((1, C), "f32[4]", "no such dimension to copy"),
        ((1, C), "f32[N]", "no such dimension to copy"),
        ((-3,), "f32[4]", "not a shape"),
        ((2, 4), "f32[2, 0]", "keeps the number of elements"),
    ],
)
def test_reshapes_that_cannot_be(shape, x: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        infer(sh.Reshape(shape), x)


def test_copied_dimensions_cancel_before_one_is_inferred() -> None:
    empty = np.zeros((0, 6), np.float32)
    assert sh.Reshape((C, I)).reference(empty).shape == (0, 6)


@pytest.mark.parametrize(
    ("starts", "stops", "steps", "result"),
    [
        ((0, 0), (FAR, 2), (1, 1), "f32[N, 2]"),
        ((-1, -1), (-FAR, -9), (-1, -2), "f32[N, 2]"),
        ((1, 0), (FAR, FAR), (1, 3), f"f32[{UNKNOWN}, 2]"),
        ((0, 3), (5, 1), (1, 1), f"f32[{UNKNOWN}, 0]"),
    ],
)
def test_a_slice_of_everything_keeps_the_symbol(starts, stops, steps, result: str) -> None:
    assert infer(sh.Slice(starts, stops, steps), "f32[N, 4]") == result


def test_equal_slices_have_one_form() -> None:
    x = parse_tensor_type("f32[4]")
    assert sh.Slice((-3,), (99,), (1,)).canonical(x) == sh.Slice((1,), (4,), (1,)).canonical(x)
    assert sh.Slice((3,), (1,), (1,)).canonical(x) == sh.Slice((2,), (0,), (1,)).canonical(x)
    backwards = sh.Slice((9,), (-99,), (-1,)).canonical(x)
    assert backwards.reference(np.arange(4)).tolist() == [3, 2, 1, 0]


def test_slices_that_cannot_be() -> None:
    with pytest.raises(InferError, match="step is zero"):
        infer(sh.Slice((0,), (1,), (0,)), "f32[4]")
    with pytest.raises(InferError, match="for each dimension"):
        infer(sh.Slice((0,), (1,), (1,)), "f32[4, 4]")


@pytest.mark.parametrize(
    ("mode", "before", "after", "result"),
    [
        ("constant", 1, 2, [0, 1, 2, 3, 0, 0]),
        ("edge", 2, 1, [1, 1, 1, 2, 3, 3]),
        ("reflect", 2, 2, [3, 2, 1, 2, 3, 2, 1]),
        ("reflect", 5, 0, [2, 1, 2, 3, 2, 1, 2, 3]),
        ("wrap", 4, 2, [3, 1, 2, 3, 1, 2, 3, 1, 2]),
        ("constant", -1, 1, [2, 3, 0]),
        ("edge", -1, 1, [2, 3, 3]),
        ("reflect", 1, -1, [2, 1, 2]),
        ("constant", -2, -1, []),
    ],
)
def test_padding(mode: str, before: int, after: int, result: list[int]) -> None:
    op = Pad((before,), (after,), mode)
    assert op.reference(np.array([1, 2, 3])).tolist() == result
    assert infer(op, "i64[3]") == f"i64[{len(result)}]"


def test_reflection_of_a_single_element() -> None:
    assert Pad((2,), (1,), "reflect").reference(np.array([7])).tolist() == [7] * 4


def test_padding_of_symbolic_sizes_and_errors() -> None:
    assert infer(Pad((0, 1), (0, 0)), "f32[N, M]", "f32[]") == f"f32[N, {UNKNOWN}]"
    with pytest.raises(InferError, match="no such padding"):
        infer(Pad((0,), (0,), "mirror"), "f32[3]")
    with pytest.raises(InferError, match="two counts"):
        infer(Pad((0,), (0,)), "f32[3, 3]")
    with pytest.raises(InferError, match="a scalar is needed"):
        infer(Pad((0,), (0,)), "f32[3]", "f32[1]")
    with pytest.raises(InferError, match="different element types"):
        infer(Pad((0,), (0,)), "f32[3]", "i64[]")
    with pytest.raises(ExecutionError, match="more than there is"):
        Pad((-2,), (-2,)).reference(np.zeros(3))
    with pytest.raises(ExecutionError, match="nothing to repeat"):
        Pad((1,), (0,), "edge").reference(np.zeros(0))
    assert Pad((-1, 2), (0, 0), "edge").reference(np.zeros((1, 0))).shape == (0, 2)
    with pytest.raises(ExecutionError, match="too large"):
        Pad((2**40,), (0,)).reference(np.zeros(3))


def test_tile() -> None:
    assert infer(Tile((1, 2, 0)), "f32[N, M, 3]") == f"f32[N, {UNKNOWN}, 0]"
    assert Tile((2,)).reference(np.array([1, 2])).tolist() == [1, 2, 1, 2]
    with pytest.raises(InferError, match="one count"):
        infer(Tile((1,)), "f32[2, 2]")
    with pytest.raises(InferError, match="one count"):
        infer(Tile((-1,)), "f32[2]")
    with pytest.raises(ExecutionError, match="too large"):
        Tile((2**40,)).reference(np.zeros(3))


def test_squeeze_and_unsqueeze_errors() -> None:
    with pytest.raises(InferError, match="not 1"):
        infer(sh.Squeeze((0,)), "f32[2, 1]")
    with pytest.raises(InferError, match="named twice"):
        infer(sh.Unsqueeze((0, -4)), "f32[2, 1]")
    with pytest.raises(UnknownRankError):
        infer(sh.Unsqueeze((0,)), "f32[*]")


def test_concat() -> None:
    assert infer(sh.Concat(-1), "f32[N, 2]", "f32[3, M]") == f"f32[3, {UNKNOWN}]"
    with pytest.raises(InferError, match="sizes differ off the axis"):
        infer(sh.Concat(0), "f32[2, 2]", "f32[3, 3]")
    with pytest.raises(InferError, match="ranks differ"):
        infer(sh.Concat(0), "f32[2, 2]", "f32[3]")
    with pytest.raises(InferError, match="nothing to concatenate"):
        sh.Concat(0).infer()


@pytest.mark.parametrize(
    ("op", "late", "static", "data", "rank", "result"),
    [
        (sh.Reshape, {"shape": [3, I]}, {}, np.zeros((2, 6)), 2, (3, 4)),
        (sh.Squeeze, {"axes": [0]}, {}, np.zeros((1, 6)), 1, (6,)),
        (sh.Unsqueeze, {"axes": [-1]}, {}, np.zeros((1, 6)), 3, (1, 6, 1)),
        (sh.Broadcast, {"shape": [4, 1, 1]}, {}, np.zeros((2, 6)), 3, (4, 2, 6)),
        (Tile, {"repeats": [2, 1]}, {}, np.zeros((2, 6)), 2, (4, 6)),
        (Pad, {"before": [1, 0], "after": [0, 2]}, {}, np.zeros((2, 6)), 2, (3, 8)),
        (
            sh.Slice, {"starts": [0, -2], "stops": [1, 9]}, {"steps": (1, 1)},
            np.zeros((2, 6)), 2, (1, 2),
        ),
    ],
)  # fmt: skip
def test_attributes_known_at_run_time(op, late, static, data, rank: int, result) -> None:
    x = Input("x", parse_tensor_type("f64[N, M]"))()
    given = {k: Input(k, parse_tensor_type(f"i64[{len(v)}]"))() for k, v in late.items()}
    value = deferred(op, (x,), given, **static)
    assert value.tensor.rank == rank
    arguments = [data, *(np.array(v) for v in late.values())]
    assert apply(value, arguments).shape == result
    plain = deferred(op, (x,), {k: constant(v) for k, v in late.items()}, **static)
    assert isinstance(plain.op, op)


def test_iota_at_run_time() -> None:
    value = deferred(Iota, (), {"size": Input("n", parse_tensor_type("i64[]"))()})
    assert apply(value, [np.array(3)]).tolist() == [0, 1, 2]
    with pytest.raises(ExecutionError, match="too large"):
        apply(value, [np.array(2**40)])


def test_a_permutation_tells_the_rank() -> None:
    assert infer(sh.Transpose((1, 0)), "f32[*]") == f"f32[{UNKNOWN}, {UNKNOWN}]"
    assert infer(sh.Transpose((1, 0)), "f32[N, 3]") == "f32[3, N]"
    with pytest.raises(InferError, match="not a permutation"):
        infer(sh.Transpose((0, 0)), "f32[*]")
