"""Inputs that are rounded before anything else is done with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monograph.ir import Value
from monograph.ir.dtype import DType, bf16, f16, f32, f64, i32
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from monograph.program.fusion.op_classes import Copy
from monograph.program.legalise.normalise import cast_first
from tests.rules.checks import graph_of, value

x, y = value("f32[4, 6]", "x"), value("f32[4, 6]", "y")


def found(*outputs: Value) -> dict[str, DType]:
    return {v.op.label: kind for v, kind in cast_first(graph_of(*outputs)).items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [f16, bf16])
def test_what_is_only_cast_is_found(kind: DType) -> None:
    cast = Cast(kind)(x)
    assert found(Mul()(cast, cast)) == {"x": kind}
    assert found(Cast(f32)(cast)) == {"x": kind}
    assert found(cast) == {"x": kind}


MOVED = {
    "reshape": Reshape((24,))(x),
    "transpose": Transpose((1, 0))(x),
    "slice": Slice((0, 1), (4, 5), (1, 2))(x),
    "unsqueeze": Unsqueeze((0,))(x),
    "both ways": Squeeze((0,))(Unsqueeze((0,))(x)),
    "copy": Copy()(x),
    "several": Reshape((2, 12))(Transpose((1, 0))(x)),
}


@pytest.mark.parametrize("moved", MOVED.values(), ids=MOVED)
def test_behind_what_moves_elements_it_counts_too(moved: Value) -> None:
    assert found(Cast(f16)(moved)) == {"x": f16}
    assert found(Cast(f16)(moved), Cast(f16)(x)) == {"x": f16}
    assert found(Cast(f16)(moved), moved) == {}
    assert found(Cast(f16)(moved), ReduceSum((0,))(moved)) == {}


def test_inputs_that_are_joined_are_found_together() -> None:
    both = Concat(0)(x, y)
    assert found(Cast(f16)(both)) == {"x": f16, "y": f16}
    assert found(Cast(f16)(both), Mul()(y, y)) == {"x": f16}
    assert found(Cast(f16)(both), Add()(both, both)) == {}


def test_what_is_used_whole_too_is_not_found() -> None:
    cast = Cast(f16)(x)
    assert found(cast, Mul()(x, x)) == {}
    assert found(cast, x) == {}, "an output has to be what was given"
    assert found(cast, Reshape((24,))(x)) == {}
    assert found(cast, Cast(i32)(x)) == {}
    assert found(Dot()(x, Transpose((1, 0))(y))) == {}


def test_one_type_has_to_do_for_all() -> None:
    assert found(Cast(f16)(x), Cast(bf16)(x)) == {}
    assert found(Cast(f16)(x), Cast(bf16)(y)) == {"x": f16, "y": bf16}


def test_only_f32_is_halved_by_it() -> None:
    assert found(Cast(f16)(value("f64[3]", "x"))) == {}
    assert found(Cast(f16)(Cast(f32)(value("f64[3]", "x")))) == {}
    assert found(Cast(f16)(value("i32[3]", "x"))) == {}
    assert found(Cast(f64)(x)) == {}
    assert found(Cast(bf16)(value("f16[3]", "x"))) == {}


def test_what_is_donated_is_written_to() -> None:
    graph = graph_of(Cast(f16)(x), Mul()(y, y))
    assert [v.op.label for v in cast_first(graph)] == ["x"]  # type: ignore[attr-defined]
    assert cast_first(replace(graph, donations=(("y1", "x"),))) == {}
