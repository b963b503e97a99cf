"""Sequences and optionals on data, and the types they infer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monograph.errors import ExecutionError, InferError
from monograph.ir import Input, parse_type
from monograph.ops import sequence as sq

A, B, C = (np.full(n, n, np.float32) for n in (1, 2, 3))


def sizes(sequence: list[Any]) -> list[int]:
    return [len(x) for x in sequence]


def inferred(op: Any, *types: str) -> str:
    return str(op(*(Input(f"x{i}", parse_type(t))() for i, t in enumerate(types))).type)


@pytest.mark.parametrize(("position", "size"), [(0, 1), (2, 3), (-1, 3), (-3, 1)])
def test_at(position: int, size: int) -> None:
    assert len(sq.SequenceAt().reference([A, B, C], np.array(position))) == size


@pytest.mark.parametrize("position", [3, -4])
def test_at_outside(position: int) -> None:
    with pytest.raises(ExecutionError, match=r"outside of the sequence\n.*-3..2"):
        sq.SequenceAt().reference([A, B, C], np.array(position))


@pytest.mark.parametrize(
    ("position", "expected"), [(None, [1, 2, 3]), (0, [3, 1, 2]), (2, [1, 2, 3]), (-1, [1, 3, 2])]
)
def test_insert(position: int | None, expected: list[int]) -> None:
    given = [A, B]
    place = () if position is None else (np.array(position),)
    assert sizes(sq.SequenceInsert().reference(given, C, *place)) == expected
    assert sizes(given) == [1, 2], "the operand is left as it was"


@pytest.mark.parametrize(("position", "expected"), [(None, [1, 2]), (0, [2, 3]), (-2, [1, 3])])
def test_erase(position: int | None, expected: list[int]) -> None:
    place = () if position is None else (np.array(position),)
    assert sizes(sq.SequenceErase().reference([A, B, C], *place)) == expected


def test_insert_and_erase_outside() -> None:
    with pytest.raises(ExecutionError, match="outside"):
        sq.SequenceInsert().reference([A], B, np.array(2))
    with pytest.raises(ExecutionError, match="an element to be there"):
        sq.SequenceErase().reference([])


def test_split() -> None:
    x = np.arange(10).reshape(5, 2)
    pieces = sq.SplitToSequence(0).reference(x, np.array(2))
    assert [p.tolist() for p in pieces] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]
    pieces = sq.SplitToSequence(-2).reference(x, np.array([4, 0, 1]))
    assert [p.shape for p in pieces] == [(4, 2), (0, 2), (1, 2)]
    assert [p.shape for p in sq.SplitToSequence(1).reference(x)] == [(5, 1)] * 2
    pieces = sq.SplitToSequence(1, keep=False).reference(x)
    assert [p.tolist() for p in pieces] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.parametrize(
    ("given", "message"),
    [(0, "not positive"), (-1, "not positive"), ([2, 2], "add up"), ([6, -1], "add up")],
)
def test_split_sizes_that_do_not_fit(given: Any, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        sq.SplitToSequence(0).reference(np.zeros((5, 2)), np.array(given))


def test_concat() -> None:
    x, y = np.array([[1, 2]]), np.array([[3, 4]])
    assert sq.ConcatFromSequence(0).reference([x, y]).tolist() == [[1, 2], [3, 4]]
    assert sq.ConcatFromSequence(-1).reference([x, y]).tolist() == [[1, 2, 3, 4]]
    assert sq.ConcatFromSequence(-1, new=True).reference([x, y]).tolist() == [[[1, 3], [2, 4]]]
    with pytest.raises(ExecutionError, match="nothing to concatenate"):
        sq.ConcatFromSequence(0).reference([])


def test_optionals() -> None:
    assert sq.HasElement().reference(A)
    assert not sq.HasElement().reference(None)
    assert sq.MakeOptional().reference(A) is sq.GetElement().reference(A) is A
    with pytest.raises(ExecutionError, match="an empty optional has no element"):
        sq.GetElement().reference(None)


def test_types() -> None:
    # Elements may differ in size, so an element has sizes of its own: not N, nor one another's.
    at = sq.SequenceAt()
    assert inferred(at, "seq<f32[N, 3]>", "i64[]").endswith(", 3]")
    assert "N" not in inferred(at, "seq<f32[N, 3]>", "i64[]")
    assert inferred(at, "seq<f32[*]>", "i64[]") == "f32[*]"
    assert inferred(sq.MakeSequence(), "f32[2, 3]", "f32[2, 3]") == "seq<f32[2, 3]>"
    assert inferred(sq.MakeSequence(), "f32[2]", "f32[2, 3]") == "seq<f32[*]>"
    assert inferred(sq.SequenceInsert(), "seq<f32[2]>", "f32[2]", "i64[]") == "seq<f32[2]>"
    assert inferred(sq.SplitToSequence(-1), "f32[N, 4]") == "seq<f32[N, 1]>"
    assert inferred(sq.SplitToSequence(-1, keep=False), "f32[N, 4]") == "seq<f32[N]>"
    assert inferred(sq.ConcatFromSequence(0, new=True), "seq<f32[*]>") == "f32[*]"
    assert inferred(sq.ConcatFromSequence(1), "seq<f32[2, 3]>").startswith("f32[2, ~")
    assert inferred(sq.GetElement(), "opt<f32[N]>") == "f32[N]"
    assert inferred(sq.MakeOptional(parse_type("f32[2]"))) == "opt<f32[2]>"


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (sq.SequenceLength(), ["f32[2]"], "a sequence is needed"),
        (sq.SequenceAt(), ["seq<f32[2]>", "f32[]"], "element type not accepted"),
        (sq.SequenceAt(), ["seq<f32[2]>", "i64[2]"], "one integer"),
        (sq.MakeSequence(), [], "needs the type"),
        (sq.MakeSequence(), ["f32[2]", "i64[2]"], "types do not agree"),
        (sq.SequenceInsert(), ["seq<f32[2]>", "i64[2]"], "types do not agree"),
        (sq.SplitToSequence(0), ["f32[]"], "a scalar has no axis"),
        (sq.SplitToSequence(2), ["f32[2, 2]"], "axis out of range"),
        (sq.SplitToSequence(0), ["f32[2]", "i64[1, 1]"], "a scalar or a vector"),
        (sq.ConcatFromSequence(0), ["seq<f32[]>"], "along a new axis"),
        (sq.MakeOptional(), [], "needs the type"),
        (sq.GetElement(), ["f32[2]"], "an optional is needed"),
        (sq.HasElement(), ["seq<f32[2]>"], "an optional is needed"),
    ],
)
def test_operands_are_checked(op: Any, types: list[str], message: str) -> None:
    with pytest.raises(InferError, match=message):
        inferred(op, *types)
