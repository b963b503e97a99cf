"""Work inside of kernels: rows they normalise, parts of their result that they hold together."""

from __future__ import annotations

import numpy as np

from monograph.ir import Value, constant
from monograph.ops.composite import RmsNorm, Silu
from monograph.ops.elementwise import Add, Exp, Mul
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Reshape, Slice
from monograph.program.fusion.fuse import part_starts
from monograph.program.fusion.op_classes import is_view
from monograph.program.lowering import LoweringTarget, lower
from monograph.program.program import Program
from tests.rules.checks import graph_of, value


class Able(LoweringTarget):
    """A target whose products normalise rows and hold parts together."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        return True

    def halo(self, user: Value, index: int) -> None:
        return None

    def computes(self, user: Value, index: int) -> bool:
        operand = user.inputs[index]
        while is_view(operand):
            operand = operand.inputs[0]
        return isinstance(user.op, Dot) and isinstance(operand.op, RmsNorm)

    def gathers(self, anchor: Value, starts: tuple[int, ...], width: int) -> bool:
        return isinstance(anchor.op, Dot)


class Unable(Able):
    def computes(self, user: Value, index: int) -> bool:
        return False

    def gathers(self, anchor: Value, starts: tuple[int, ...], width: int) -> bool:
        return False


def weight(*shape: int) -> Value:
    return constant(np.ones(shape, np.float32))


def columns(y: Value, start: int, stop: int) -> Value:
    return Slice((0, start), (y.tensor.static[0], stop), (1, 1))(y)


def program_of(*outputs: Value, target: LoweringTarget | None = None) -> Program:
    return lower(graph_of(*outputs), target or Able()).whole


def kinds(program: Program) -> list[str]:
    return [s.region.kind for s in program.steps]


x = value("f32[2, 8]")
NORM = RmsNorm((1,))


def test_a_norm_is_computed_inside_every_product_that_can() -> None:
    normed = NORM(Add()(x, x))
    outputs = [Dot()(normed, weight(8, n)) for n in (3, 4)]
    program = program_of(*outputs)
    assert kinds(program) == ["pointwise", "dot", "dot"]
    for step in program.steps[1:]:
        assert normed in step.region.body
        # What is normalised is read from memory: it was stored once.
        assert normed.inputs[0] in step.region.inputs
    assert kinds(program_of(*outputs, target=Unable())) == ["rms_norm", "dot", "dot"]


def test_an_epilogue_does_not_draw_what_is_normalised_into_the_product() -> None:
    before = Add()(x, x)
    y = Exp()(Dot()(Reshape((1, 2, 8))(NORM(before)), weight(8, 8)))
    program = program_of(y)
    assert kinds(program) == ["pointwise", "dot"]
    assert before in program.steps[1].region.inputs


def test_a_norm_that_others_read_is_stored() -> None:
    normed = NORM(x)
    assert kinds(program_of(Dot()(normed, weight(8, 3)), normed)) == ["rms_norm", "dot"]
    both = program_of(Dot()(normed, weight(8, 3)), Exp()(normed))
    assert kinds(both) == ["rms_norm", "dot", "pointwise"]


def test_a_gate_joins_the_product() -> None:
    y = Add()(Dot()(x, weight(8, 10)), weight(10))
    gated = Mul()(Silu()(columns(y, 0, 5)), columns(y, 5, 10))
    program = program_of(gated)
    assert kinds(program) == ["dot"]
    assert program.steps[0].region.outputs == (gated,)
    assert kinds(program_of(gated, target=Unable())) == ["dot", "pointwise"]


def test_where_parts_start() -> None:
    y = Dot()(x, weight(8, 12))
    parts = [columns(y, s, s + 4) for s in (0, 4, 8)]
    assert part_starts(y, Mul()(Silu()(parts[2]), parts[0]), ()) == (0, 8)
    assert part_starts(y, Exp()(columns(Exp()(y), 3, 7)), ()) == (3,)


def test_what_does_not_keep_to_columns_stays_apart() -> None:
    y = Dot()(x, weight(8, 8))
    strided = Slice((0, 0), (2, 8), (1, 2))(y)
    rows = Slice((0, 0), (1, 8), (1, 1))(y)
    total = Reshape((2, 1))(ReduceSum((1,))(y))
    for root in (
        Exp()(strided),
        Exp()(rows),
        Mul()(columns(y, 0, 4), total),
        Exp()(columns(rows, 0, 4)),
    ):
        assert part_starts(y, root, ()) == ()
    # A column of a part of another width may be any of them.
    assert part_starts(y, Mul()(columns(y, 0, 4), columns(y, 7, 8)), ()) == ()


def test_a_part_that_something_else_reads_keeps_the_result_stored() -> None:
    y = Dot()(x, weight(8, 10))
    gated = Mul()(Silu()(columns(y, 0, 5)), columns(y, 5, 10))
    assert kinds(program_of(gated, y)) == ["dot", "pointwise"]
