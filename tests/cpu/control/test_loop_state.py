"""State of a loop that its body writes over itself, and state that it must not."""

from __future__ import annotations

import numpy as np

from monograph.codegen.llvm.control.subprograms import lowered
from monograph.ir import Graph, Input, Value, constant, tensor, unpack
from monograph.ir.dtype import boolean, f32, i64
from monograph.ops import elementwise as ew
from monograph.ops import shape as sh
from monograph.ops.attention import CacheUpdate
from monograph.ops.control import Loop
from monograph.ops.reduce import ReduceSum
from monograph.ops.subgraph import state_donated
from monograph.program.dynamic.bounded import graphs_of
from tests.cpu.against import check

ROWS, COLUMNS = 12, 8


def looped(*outputs: Value, state: tuple[Value, ...], i: Value, go: Value, turns: int = 9) -> Graph:
    """A loop of some turns over states, each made anew."""
    named = (("go", go), *((f"s{k}", v) for k, v in enumerate(outputs)))
    body = Graph((i, go, *state), named, "body")
    given = tuple(Input(f"x{k}", v.type)() for k, v in enumerate(state))
    made = Loop(body, len(state))(constant(turns), constant(True), *given)
    return Graph(given, tuple((f"y{k}", v) for k, v in enumerate(unpack(made))))


def parts(count: int, *shape: int) -> tuple[Value, Value, tuple[Value, ...]]:
    i, go = Input("i", tensor(i64))(), Input("go", tensor(boolean))()
    return i, go, tuple(Input(f"state{k}", tensor(f32, *shape))() for k in range(count))


def written_over(graph: Graph) -> set[str]:
    loop = next(v for v in graph.values if isinstance(v.op, Loop))
    return set(lowered(graphs_of(loop)[0]).donated)


def test_a_cache_is_written_over() -> None:
    i, go, (cache,) = parts(1, 1, ROWS, COLUMNS)
    sums = sh.Unsqueeze((1,))(ReduceSum((1,))(cache))
    row = ew.Add()(ew.Mul()(sums, constant(0.25, f32)), constant(1.0, f32))
    new = CacheUpdate(1)(cache, row, sh.Reshape((1,))(i))
    graph = looped(new, state=(cache,), i=i, go=go)
    assert written_over(graph) == {"s0"}
    check(graph, {"x0": np.ones((1, ROWS, COLUMNS), np.float32)})


def test_elements_are_written_over() -> None:
    i, go, (x,) = parts(1, 300)
    graph = looped(ew.Add()(ew.Mul()(x, x), constant(0.1, f32)), state=(x,), i=i, go=go)
    assert written_over(graph) == {"s0"}
    check(graph, {"x0": np.linspace(0.0, 0.5, 300, dtype=np.float32)})


def test_states_that_swap_places_are_not_lost() -> None:
    i, go, (a, b) = parts(2, 40)
    graph = looped(b, ew.Add()(a, constant(1.0, f32)), state=(a, b), i=i, go=go)
    check(graph)


def test_a_state_that_is_read_behind_its_update_stays() -> None:
    """b needs the old a, and the new one is made of the new b: no order writes a over itself."""
    i, go, (a, b) = parts(2, 6, 6)
    turned = sh.Transpose((1, 0))(a)
    new_b = ew.Mul()(ew.Add()(b, turned), constant(0.5, f32))
    new_a = ew.Sub()(sh.Transpose((1, 0))(new_b), a)
    graph = looped(new_a, new_b, state=(a, b), i=i, go=go)
    check(graph)


def test_a_state_that_is_turned_in_itself() -> None:
    i, go, (a,) = parts(1, 16, 16)
    graph = looped(sh.Transpose((1, 0))(a), state=(a,), i=i, go=go, turns=3)
    assert written_over(graph) == set()
    check(graph)


def test_a_loop_without_turns_gives_its_state() -> None:
    i, go, (a,) = parts(1, 5)
    check(looped(ew.Neg()(a), state=(a,), i=i, go=go, turns=0))


def test_one_body_with_one_state_and_with_two() -> None:
    """A loop over the first state alone captures what a loop over both may write over: it stays."""
    i, go, (a, b) = parts(2, 5)
    body = Graph((i, go, a, b), (("go", go), ("s0", ew.Neg()(a)), ("s1", ew.Neg()(b))), "body")
    first, second = ("s0", "state0"), ("s1", "state1")
    assert state_donated(body, 2).donations == (first, second)
    assert state_donated(body, 1).donations == (first,)
