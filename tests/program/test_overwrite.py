"""Results written over operands: where it is done, where it must not be, and who checks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monograph.errors import VerifyError
from monograph.ir import Graph, Value, constant
from monograph.ops.attention import CacheUpdate
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Exp, Mul, Neg
from monograph.ops.linear import Dot
from monograph.ops.reduce import ReduceSum
from monograph.ops.shape import Concat, Slice, Transpose
from monograph.program.fusion.region import Region
from monograph.program.lowering import lower
from monograph.program.program import Program, verify_program
from tests.program.test_fuse import Padded, Plain
from tests.rules.checks import graph_of, value

x = value("f32[8, 8]")


class Over(Plain):
    """A target whose kernels may all write over operands."""

    def overwrites(self, region: Region) -> bool:
        return True


class PaddedOver(Padded, Over):
    """... and whose convolutions read zeros around their input."""


def weight(seed: int = 0, *shape: int) -> Value:
    data = np.random.default_rng(seed).normal(size=shape or (8, 8))
    return constant(data.astype(np.float32))


def dot(v: Value, seed: int) -> Value:
    return Dot()(v, weight(seed))


def program_of(*outputs: Value, target=None, donate=None) -> Program:
    graph = replace(graph_of(*outputs), donations=tuple((donate or {}).items()))
    return lower(graph, target or Over()).whole


def overwritten(program: Program) -> list[tuple[str, str]]:
    """The kind of each step that writes over an operand, and of that operand's memory."""
    buffers = program.places.buffers
    found = []
    for step in program.steps:
        if program.in_place(step):
            new = program.storage(step.region.root).buffer.id
            found.append((step.region.kind, buffers[program.places.over[new]].kind))
    return found


def stream() -> Value:
    """A residual: it is read by a dot, and added again to what comes out in the end."""
    kept = dot(x, 1)
    return dot(Add()(dot(Exp()(dot(kept, 2)), 3), kept), 4)


def test_a_residual_takes_its_sum() -> None:
    program = program_of(stream())
    assert overwritten(program) == [("dot", "temporary")]
    assert program.peak_bytes < program_of(stream(), target=Plain()).peak_bytes


def test_a_target_that_says_nothing_writes_over_nothing() -> None:
    assert not program_of(stream(), target=Plain()).places.over


def test_a_loop_over_elements_takes_one_operand() -> None:
    a, b = dot(x, 1), dot(x, 2)
    sums = Add()(ReduceSum((1,), True)(a), ReduceSum((1,), True)(b))
    both = Add()(Mul()(a, b), sums)
    assert overwritten(program_of(dot(both, 3)))[-1] == ("pointwise", "temporary")


def test_what_is_read_later_stays() -> None:
    kept = dot(x, 1)
    total = Add()(dot(Exp()(dot(kept, 2)), 3), kept)
    program = program_of(dot(total, 4), ReduceSum((0, 1))(Mul()(Neg()(dot(total, 5)), kept)))
    kept_in = program.storage(kept).buffer.id
    assert kept_in not in {program.places.over.get(program.storage(total).buffer.id)}


@pytest.mark.parametrize(
    "moved",
    [
        Transpose((1, 0)),
        lambda v: Slice((0, 0), (8, 8), (1, 1))(Transpose((1, 0))(v)),
        lambda v: Concat(0)(Slice((4, 0), (8, 8), (1, 1))(v), Slice((0, 0), (4, 8), (1, 1))(v)),
    ],
    ids=["turned", "turned and cut", "halves swapped"],
)
def test_elements_that_move_are_not_written_over(moved) -> None:
    kept = dot(x, 1)

    def written_over(move) -> bool:
        program = program_of(dot(Add()(dot(Exp()(dot(kept, 2)), 3), move(kept)), 4))
        return program.storage(kept).buffer.id in program.places.over.values()

    assert written_over(lambda v: v)
    assert not written_over(moved)


def test_an_operand_of_the_kernel_is_not_written_over() -> None:
    kept = dot(x, 1)
    assert not program_of(dot(Add()(dot(kept, 2), kept), 3)).places.over


def conv(v: Value, seed: int) -> Value:
    op = Conv((1, 1), (1, 1), (1, 1), (1, 1))
    return op(v, weight(seed, 3, 3, 3, 3))


def image_stream(last) -> Program:
    kept = conv(conv(value("f32[1, 3, 6, 6]", "image"), 0), 1)
    return program_of(last(Add()(conv(conv(kept, 2), 3), kept)), target=PaddedOver())


def test_buffers_with_equal_halos_are_shared() -> None:
    program = image_stream(lambda total: conv(total, 4))
    ((new, old),) = program.places.over.items()
    # Both are read by padded windows.
    assert program.places.buffers[new].has_halo
    assert program.places.buffers[new].halo == program.places.buffers[old].halo


def test_buffers_with_other_halos_are_not() -> None:
    assert not image_stream(ReduceSum((0, 1, 2, 3))).places.over


past, new, at = value("f32[2, 3, 5, 4]", "past"), value("f32[2, 3, 1, 4]", "new"), value("i64[2]")


def test_a_donated_cache_is_updated_in_place() -> None:
    program = program_of(CacheUpdate(2)(past, new, at), donate={"y0": "past"})
    assert program.donated == {"y0": "past"}
    assert overwritten(program) == [("cache_update", "input")]


def test_an_input_that_is_not_donated_is_not_written_over() -> None:
    assert not program_of(CacheUpdate(2)(past, new, at)).places.over
    assert not program_of(Neg()(Exp()(x))).places.over


def test_old_state_is_read_before_new_state_is_written() -> None:
    state = value("f32[8, 8]", "state")
    moved = Add()(state, x)
    # In the order of the graph the old state would be read last.
    program = program_of(moved, dot(Exp()(moved), 1), dot(state, 2), donate={"y0": "state"})
    assert program.donated == {"y0": "state"}
    (writer,) = [
        s.index for s in program.steps if s.region.root is dict(program.graph.outputs)["y0"]
    ]
    assert [s.index for s in program.steps if state in s.region.inputs][-1] == writer


def test_old_state_that_is_needed_with_the_new_is_not_written_over() -> None:
    state = value("f32[8, 8]", "state")
    moved = dot(Add()(state, x), 1)
    program = program_of(moved, Dot()(moved, state), donate={"y0": "state"})
    assert program.donated == {}


def test_two_states_that_change_places() -> None:
    a, b = value("f32[8, 8]", "a"), value("f32[8, 8]", "b")
    program = program_of(Neg()(b), Neg()(a), donate={"y0": "a", "y1": "b"})
    # One of them can be written in place, once the other has been made of it.
    assert len(program.donated) == 1


def corrupted(program: Program, over: dict[int, int]) -> Program:
    places = replace(program.places, over=over)
    return replace(program, places=places)


def test_the_verifier_refuses_what_is_still_needed() -> None:
    program = program_of(stream())
    assert verify_program(program) is program
    first, second = (program.storage(s.region.root).buffer.id for s in program.steps[:2])
    with pytest.raises(VerifyError, match="reads it at other places"):
        verify_program(corrupted(program, {second: first}))
    third = program.storage(program.steps[2].region.root).buffer.id
    with pytest.raises(VerifyError, match="at most one buffer may be written over"):
        verify_program(corrupted(program, {second: first, third: first}))


def test_the_verifier_refuses_what_is_read_later() -> None:
    program = program_of(dot(dot(x, 1), 2), dot(dot(x, 3), 4))
    first, _, second, _ = (program.storage(s.region.root).buffer.id for s in program.steps)
    with pytest.raises(VerifyError, match="read after it is written over"):
        verify_program(corrupted(program, {first: second}))


def test_the_verifier_refuses_moved_elements() -> None:
    a = dot(x, 1)
    program = program_of(dot(Exp()(Transpose((1, 0))(a)), 2))
    assert not program.places.over
    moved = program.storage(program.steps[1].region.root).buffer.id
    with pytest.raises(VerifyError, match="read at another place"):
        verify_program(corrupted(program, {moved: program.storage(a).buffer.id}))


def test_the_verifier_refuses_an_input_that_is_not_donated() -> None:
    program = program_of(Neg()(x))
    output = program.storage(program.steps[-1].region.root).buffer.id
    with pytest.raises(VerifyError, match="only donated inputs"):
        verify_program(corrupted(program, {output: program.storage(x).buffer.id}))


def test_the_text_shows_it() -> None:
    program = program_of(CacheUpdate(2)(past, new, at), donate={"y0": "past"})
    assert " over i" in str(program)


def test_nothing_to_do() -> None:
    assert lower(Graph((), ()), Over()).whole.places.over == {}


def test_the_report_names_the_fullest_step() -> None:
    program = program_of(stream())
    text = program.peak_report()
    assert text.startswith("most at step 1: 512 bytes needed: t"), text
    apart = program_of(stream(), target=Plain()).peak_report()
    assert apart.startswith("most at step 2: 768 bytes needed: t"), apart
    assert text in str(program)
    assert program_of(Neg()(x)).peak_report().endswith("needed: nothing")
