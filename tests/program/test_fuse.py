"""Fusion: what is computed together, what is stored, and where it lies."""

from __future__ import annotations

import numpy as np

from monograph.ir import Graph, Value, constant, unpack
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Mul, Neg, Sigmoid
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Tile
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Broadcast, Concat, Reshape, Slice, Transpose
from monograph.ops.signal import Frames
from monograph.ops.sort import TopK, Unique
from monograph.program.fusion.op_classes import is_view
from monograph.program.lowering import LoweringTarget, lower
from monograph.program.memory.strided import strided
from monograph.program.program import Program
from tests.program.unsplit import unsplit
from tests.rules.checks import graph_of, value


class Plain(LoweringTarget):
    """A target whose kernels read whole buffers and want no halo."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        return not is_view(operand)

    def halo(self, user: Value, index: int):
        return None


class Padded(Plain):
    """A target whose convolutions read zeros around their input."""

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        is_image = isinstance(user.op, Conv) and index == 0
        return not is_view(operand) and not (is_image and operand.op.name == "input")

    def halo(self, user: Value, index: int):
        if not isinstance(user.op, Conv) or index:
            return None
        pads = zip(user.op.pads_begin, user.op.pads_end, strict=True)
        return ((0, 0), (0, 0), *pads)


def weight(*shape: int) -> Value:
    return constant(np.ones(shape, np.float32))


def program_of(*outputs: Value, target=None) -> Program:
    return lower(graph_of(*outputs), target or Plain()).whole


def kinds(program: Program) -> list[str]:
    return [s.region.kind for s in program.steps]


x = value("f32[4, 8]")


def test_a_chain_of_elementwise_work_is_one_kernel() -> None:
    program = program_of(Neg()(Exp()(Add()(x, weight(8)))))
    assert kinds(program) == ["pointwise"]
    assert program.peak_bytes == 0


def test_a_diamond_is_one_kernel() -> None:
    y = Add()(x, weight(8))
    assert kinds(program_of(Mul()(y, Sigmoid()(y)))) == ["pointwise"]


def test_bias_activation_and_residual_join_the_dot() -> None:
    y = Add()(Dot()(x, weight(8, 8)), weight(8))
    program = program_of(Add()(Mul()(y, Sigmoid()(y)), x))
    assert kinds(program) == ["dot"]
    assert [v.op.name for v in program.steps[0].region.epilogue] == ["add", "sigmoid", "mul", "add"]


def test_a_result_that_is_used_twice_is_stored() -> None:
    y = Dot()(x, weight(8, 8))
    program = program_of(Exp()(y), Dot()(y, weight(8, 2)))
    assert kinds(program) == ["dot", "pointwise", "dot"]


def test_an_epilogue_behind_a_view_stays_apart() -> None:
    y = Dot()(x, weight(8, 8))
    assert kinds(program_of(Exp()(Transpose((1, 0))(y)))) == ["dot", "pointwise"]
    # Read in two places: the element and its mirror image.
    both = Add()(Dot()(value("f32[8, 8]"), weight(8, 8)), weight(8))
    mirrored = Add()(both, Transpose((1, 0))(both))
    assert kinds(program_of(mirrored)) == ["dot", "pointwise"]


def test_work_that_would_be_repeated_is_stored() -> None:
    gate = Exp()(value("f32[1, 8]", "g"))
    assert kinds(program_of(Mul()(x, gate))) == ["pointwise", "pointwise"]


def test_views_cost_nothing() -> None:
    moved = Transpose((1, 0))(Slice((0, 0), (4, 4), (1, 1))(x))
    repeated = Broadcast((2, 8, 2))(Reshape((8, 2))(moved))
    assert kinds(program_of(Exp()(Reshape((32,))(repeated)))) == ["pointwise"]


def test_a_reduction_reads_its_operand_as_an_expression() -> None:
    program = program_of(Exp()(ReduceSum((1,))(Mul()(x, x))))
    assert kinds(program) == ["reduce_sum"]


def test_parts_are_written_into_their_join() -> None:
    parts = [Dot()(x, weight(8, n)) for n in (2, 3)]
    joined = Concat(1)(*parts)
    program = program_of(Dot()(joined, weight(5, 1)))
    assert kinds(program) == ["dot", "dot", "dot"]
    places = [program.storage(v) for v in program.steps[2].region.inputs[:1]]
    first, second = (program.storage(s.region.root) for s in program.steps[:2])
    assert first.buffer == second.buffer == places[0].buffer
    assert (first.offset, second.offset) == (0, 2)
    assert first.strides == (5, 1)


def test_a_part_that_is_needed_elsewhere_is_still_not_copied() -> None:
    part = Dot()(x, weight(8, 2))
    joined = Concat(1)(part, Exp()(part))
    program = program_of(Dot()(joined, weight(4, 1)), Neg()(part))
    assert kinds(program).count("dot") == 2
    assert len(program.steps) == 4


def test_inputs_views_and_repeated_parts_are_copied_into_a_join() -> None:
    joined = Concat(1)(x, x, Slice((0, 0), (4, 2), (1, 1))(x))
    program = program_of(Dot()(joined, weight(18, 1)))
    assert kinds(program) == ["pointwise"] * 3 + ["dot"]


def test_outputs_are_stored_values_of_their_own() -> None:
    y = Exp()(x)
    program = program_of(y, y, x, Transpose((1, 0))(y))
    assert kinds(program) == ["pointwise"] * 4
    buffers = [program.storage(v).buffer for _, v in program.graph.outputs]
    assert [b.kind for b in buffers] == ["output"] * 4
    assert len({b.id for b in buffers}) == 4


def test_kernels_with_several_results() -> None:
    top = TopK(2, 1, True, True)(x)
    values, indices = unpack(top)
    program = program_of(Exp()(values), indices)
    assert kinds(program) == ["top_k", "pointwise"]
    # The kernel writes each result where it stays; the index is an output of the graph.
    assert program.steps[0].region.outputs == (values, indices)
    assert program.storage(values).buffer.kind == "temporary"
    assert program.storage(indices).buffer.name == "y1"


def test_only_results_that_are_used_have_a_place() -> None:
    _, indices = unpack(TopK(2, 1, True, True)(x))
    program = program_of(indices)
    assert program.steps[0].region.outputs == (indices,)
    assert [b.kind for b in program.places.buffers] == ["input", "output"]


def test_results_of_a_size_that_is_data_have_a_place_where_their_own_is_known() -> None:
    _, _, inverse, counts = unpack(Unique()(x))
    with unsplit(Plain):
        program = program_of(Neg()(inverse), counts)
    assert kinds(program) == ["unique", "pointwise"]
    assert program.storage(inverse).buffer.kind == "temporary"
    assert counts not in program.places.storage


def test_tiles_and_frames_are_views() -> None:
    assert kinds(program_of(Neg()(Tile((2, 3))(x)))) == ["pointwise"]
    assert kinds(program_of(Neg()(Frames(1, 4, 2)(x)))) == ["pointwise"]
    # What is repeated is computed once.
    assert kinds(program_of(Neg()(Tile((2, 3))(Exp()(x))))) == ["pointwise", "pointwise"]


def test_a_halo_surrounds_what_padded_windows_read() -> None:
    image = value("f32[1, 3, 6, 6]")
    conv = Conv((1, 1), (1, 1), (1, 1), (1, 1))
    first = conv(image, weight(4, 3, 3, 3))
    program = program_of(conv(first, weight(2, 4, 3, 3)), target=Padded())
    assert kinds(program) == ["pointwise", "conv", "conv"]
    place = program.storage(program.steps[1].region.root)
    assert place.buffer.halo == ((0, 0), (0, 0), (1, 1), (1, 1))
    assert place.strides == (4 * 64, 64, 8, 1)
    assert place.offset == 8 + 1


def test_memory_is_reused() -> None:
    y = x
    for _ in range(10):
        y = Dot()(y, weight(8, 8))
    program = program_of(y)
    assert program.peak_bytes <= 2 * x.tensor.nbytes


def test_the_text_form_tells_steps_and_places() -> None:
    text = str(program_of(Exp()(Dot()(x, weight(8, 8)))))
    assert "1 steps" in text
    assert "= dot(i0+0:f32[4, 8], c" in text


def test_strides_of_views() -> None:
    program = program_of(Dot()(x, weight(8, 8)))
    storage = program.places.storage
    found = strided(Transpose((1, 0))(Slice((1, 0), (3, 8), (1, 2))(x)), storage)
    assert found is not None
    assert (found.offset, found.strides) == (8, (2, 8))
    assert strided(Exp()(x), storage) is None
    assert strided(Reshape((4,))(Slice((0, 0), (2, 2), (1, 1))(x)), storage) is None


def test_an_empty_graph() -> None:
    assert lower(Graph((), ()), Plain()).whole.steps == ()
