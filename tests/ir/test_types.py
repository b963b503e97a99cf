"""Types: text, broadcasting, generalisation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monograph.errors import InferError, TextError, UnknownRankError
from monograph.ir import UNKNOWN, TensorType, broadcast, from_numpy, generalise, parse_type
from monograph.ir.dtype import ALL, f32
from monograph.ir.sizes import SizeScope
from monograph.ir.types import accepts, holds_open, merge_dims


@pytest.mark.parametrize(
    "text",
    [
        "f32[1, 3, N, 5]",
        "bool[]",
        "bf16[*]",
        'i4["floor(x / 2)", ~a_1]',
        "(f32[2], seq<str[*]>)",
        "opt<seq<u8[N]>>",
        "()",
    ],
)
def test_types_read_back_what_they_print(text: str) -> None:
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    "text", ["f99[1]", "f32[1", "f32[-1]", "f32[1.5]", "f32", "f32[1] x", "seq<f32[1]"]
)
def test_broken_types_are_refused(text: str) -> None:
    with pytest.raises(TextError):
        parse_type(text)


def test_types_nested_without_end_are_refused() -> None:
    with pytest.raises(TextError, match="nested too deeply"):
        parse_type("seq<" * 5000 + "f32[1]" + ">" * 5000)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_has_a_numpy_counterpart(dtype) -> None:
    assert from_numpy(dtype.numpy) is dtype
    assert dtype.itemsize * 8 >= dtype.bits


def test_numpy_strings_of_any_kind_are_one_dtype() -> None:
    assert from_numpy(np.array(["a"]).dtype).name == "str"
    assert from_numpy(np.array([b"a"]).dtype).name == "str"


def test_an_unknown_numpy_dtype_is_refused() -> None:
    with pytest.raises(InferError, match="no element type corresponds"):
        from_numpy(np.dtype("datetime64[s]"))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((4, 1), (3,), (4, 3)),
        (("N", 3), (3,), ("N", 3)),
        (("N",), (4,), (4,)),
        (("N",), (1,), ("N",)),
        (("N",), ("M",), (UNKNOWN,)),
        (("N",), ("N",), ("N",)),
        ((0,), (1,), (0,)),
        ((), (2, 3), (2, 3)),
        (None, (2,), None),
    ],
)
def test_broadcast(a, b, expected) -> None:
    assert broadcast(a, b) == expected
    assert broadcast(b, a) == expected


def test_broadcast_names_both_shapes_when_they_do_not_fit() -> None:
    with pytest.raises(InferError, match=r"\[2, 3\] and \[4\]"):
        broadcast((2, 3), (4,))


def test_generalise_keeps_what_agrees() -> None:
    a, b = parse_type("f32[2, N, 5]"), parse_type("f32[2, 4, 5]")
    assert generalise(a, b) == TensorType(f32, (2, UNKNOWN, 5))
    assert generalise(a, parse_type("f32[2]")) == TensorType(f32, None)
    with pytest.raises(InferError, match="do not agree"):
        generalise(a, parse_type("f16[2, N, 5]"))


def test_accepts_treats_symbols_as_open() -> None:
    assert accepts(parse_type("f32[N, 3]"), parse_type("f32[4, 3]"))
    assert not accepts(parse_type("f32[N, 3]"), parse_type("f32[4, 2]"))
    assert not accepts(parse_type("f32[N]"), parse_type("f16[4]"))
    assert accepts(parse_type("f32[*]"), parse_type("f32[4]"))
    assert accepts(parse_type("seq<f32[N]>"), parse_type("seq<f32[1]>"))
    assert not accepts(parse_type("opt<f32[2]>"), parse_type("seq<f32[2]>"))
    assert accepts(parse_type("(f32[N], i64[])"), parse_type("(f32[2], i64[])"))


def test_merge_dims_prefers_sizes() -> None:
    assert merge_dims("N", 3) == 3
    assert merge_dims(3, "N") == 3
    with pytest.raises(InferError):
        merge_dims(3, 4)


def test_unknown_rank_is_a_clear_error() -> None:
    with pytest.raises(UnknownRankError, match="rank of a tensor must be known"):
        parse_type("f32[*]").rank  # noqa: B018


def test_sizes_need_static_shapes() -> None:
    assert parse_type("f32[2, 3]").nbytes == 24
    with pytest.raises(InferError, match="every dimension must be known"):
        parse_type("f32[2, N]").size  # noqa: B018


class Unread(np.ndarray):
    """An array whose elements nobody may read one by one."""

    @property
    def flat(self) -> Any:  # type: ignore[override]
        raise AssertionError("an element was read")


def test_open_sizes_are_not_searched_for_in_numbers() -> None:
    """The weights of a model are many: their dtype says that none of them is an open size."""
    size = SizeScope().symbol("n", 7)
    assert holds_open(np.array([1, size], object))
    assert not holds_open(np.array(["a", "b"], object))
    for dtype in (np.float32, np.int64, ml_dtypes.bfloat16):
        assert not holds_open(np.zeros(3, dtype).view(Unread))
