"""Recurrent cells, compiled: every cell, direction and activation, at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.errors import ExecutionError
from monograph.ir import Item, Op, Value, constant, unpack
from monograph.ops.elementwise import Exp
from monograph.ops.recurrent import DEFAULTS, SIGMOID, TANH, Gru, Lstm, Rnn
from monograph.runtime.cpu.executable import compile_graph
from tests.cpu.indexing.moving import FEATURES, THREADS, check, host
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int, kind: type = np.float32) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(kind))


def cell(op: Op, time: int, batch: int, features: int, hidden: int, lengths: bool = False) -> Value:
    """A cell with constant weights and an initial state that is an input."""
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[op.name]
    x = value(f"f32[{time}, {batch}, {features}]")
    state = value(f"f32[{batch}, {hidden}]", "h")
    rows = gates * hidden
    operands = [x, weight(rows, features), weight(rows, hidden), weight(rows)]
    if gates > 1:
        operands.append(weight(rows if gates == 3 else 3 * hidden))
    operands += [state, weight(1, hidden)] if gates == 4 else [state]
    return op(*operands, *([value(f"i32[{batch}]", "n")] if lengths else []))


CELLS = [Rnn(), Gru(), Gru(late_reset=True), Lstm(), Lstm(coupled=True, clip=0.5)]


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.name)
@pytest.mark.parametrize("op", CELLS, ids=str)
@pytest.mark.parametrize("sizes", [(4, 1, 3, 37), (3, 7, 5, 16), (2, 3, 8, 150)])
def test_cells(features, op: Op, sizes: tuple[int, ...]) -> None:
    for threads in THREADS:
        graph = graph_of(*unpack(cell(op, *sizes)))
        check(graph, features=features, threads=threads)


@pytest.mark.parametrize("op", [Rnn(), Gru(), Lstm()], ids=str)
@pytest.mark.parametrize("empty", range(4))
def test_nothing_to_compute(op: Op, empty: int) -> None:
    """No time, no batch, no features, no units: the state stays, or there is none."""
    sizes = [3, 2, 4, 5]
    sizes[empty] = 0
    x, hidden = value(f"f32[{sizes[0]}, {sizes[1]}, {sizes[2]}]"), sizes[3]
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[op.name]
    state = [value(f"f32[{sizes[1]}, {hidden}]", n) for n in ("h", "c")]
    weights = [(gates * hidden, sizes[2]), (gates * hidden, hidden), (gates * hidden,)]
    if gates > 1:
        weights.append((3 * hidden,))
    constants = (constant(rng.normal(size=s).astype(np.float32)) for s in weights)
    graph = graph_of(*unpack(op(x, *constants, *state[: 2 if gates == 4 else 1])))
    check(graph)


@pytest.mark.parametrize("op", [Rnn, Gru, Lstm])
@pytest.mark.parametrize("backward", [False, True])
def test_elements_that_end_early(op, backward: bool) -> None:
    graph = graph_of(*unpack(cell(op(backward=backward), 6, 4, 3, 40, lengths=True)))
    check(graph, {"n": np.array([6, 0, 3, 1], np.int32)})


def test_a_length_beyond_the_sequence_is_an_error() -> None:
    graph = graph_of(*unpack(cell(Lstm(), 3, 2, 4, 5, lengths=True)))
    executable = compile_graph(graph, host(), 2)
    feeds = {"x": np.zeros((3, 2, 4), np.float32), "h": np.zeros((2, 5), np.float32)}
    for wrong in (4, -1):
        with pytest.raises(ExecutionError, match="not within the sequence") as caught:
            executable.run(feeds | {"n": np.array([1, wrong], np.int32)})
        assert caught.value.given == wrong


@pytest.mark.parametrize("name", DEFAULTS)
def test_activations(name: str) -> None:
    alpha, beta = (0.3 if d is None else d for d in DEFAULTS[name])
    chosen = (name, alpha, beta)
    for op in (Rnn((chosen,)), Gru((SIGMOID, chosen)), Lstm((SIGMOID, TANH, chosen))):
        check(graph_of(*unpack(cell(op, 3, 2, 4, 19))))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_weights_that_are_no_constants(kind: str) -> None:
    given = [f"{kind}[3, 2, 4]", f"{kind}[80, 4]", f"{kind}[80, 20]", f"{kind}[80]", f"{kind}[60]"]
    given += [f"{kind}[1, 20]", f"{kind}[2, 20]"]
    found = Lstm()(*(value(t, f"x{i}") for i, t in enumerate(given)))
    # Results of narrow types are rounded once.
    check(graph_of(*unpack(found)))


def test_one_result_alone_and_a_stack_of_cells() -> None:
    first = cell(Lstm(), 5, 2, 3, 24)
    check(graph_of(Item(2)(first)))
    operands = [Item(0)(first), weight(72, 24), weight(72, 24), weight(72), weight(72)]
    second = Gru(backward=True)(*operands, weight(2, 24))
    check(graph_of(Exp()(Item(0)(second)), Item(1)(second)))
