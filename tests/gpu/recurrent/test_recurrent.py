"""Recurrent cells on the GPU target: every cell, direction and way to compute it."""

from __future__ import annotations

import numpy as np
import pytest

from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.recurrent import recurrent
from monograph.errors import ExecutionError
from monograph.ir import Graph, Item, Op, Value, constant, unpack
from monograph.ops.elementwise import Exp
from monograph.ops.recurrent import DEFAULTS, SIGMOID, TANH, Gru, Lstm, Rnn
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.against import candidate_names, check, device
from tests.rules.checks import graph_of, value

rng = np.random.default_rng(0)


def weight(*shape: int, kind: type = np.float32) -> Value:
    return constant((rng.normal(size=shape) / np.sqrt(max(shape[-1], 1))).astype(kind))


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


def ways(graph: Graph) -> list[str]:
    """One candidate of each kind: all in registers, through memory, rows, tiles."""
    kinds: dict[str, str] = {}
    for name in candidate_names(graph)[-1]:
        form, size, _ = name.split()
        kinds.setdefault(f"{form} {size}" if form == "whole" else size.split("x")[0], name)
    return list(kinds.values())


@pytest.mark.parametrize("op", CELLS, ids=str)
@pytest.mark.parametrize("sizes", [(3, 1, 3, 37), (2, 7, 5, 16)])
def test_cells(op: Op, sizes: tuple[int, ...]) -> None:
    graph = graph_of(*unpack(cell(op, *sizes)))
    names = ways(graph)
    assert len(names) >= 2
    check(graph, chosen=names)


@pytest.mark.parametrize("op", CELLS[1:4], ids=str)
def test_sums_in_pieces(monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
    monkeypatch.setattr(recurrent, "ROWS", ((16, 16, 4),))
    monkeypatch.setattr(recurrent, "TILES", ((16, 16, 4),))
    monkeypatch.setattr(recurrent, "HELD", 0)
    graph = graph_of(*unpack(cell(op, 2, 5, 3, 40)))
    names = ways(graph)
    assert {"whole 32 w4", "steps 1x16x16 w4", "steps 16x16x16 w4"} <= set(names)
    check(graph, chosen=names)


def test_one_kernel_serves_every_step() -> None:
    graph = graph_of(*unpack(cell(Lstm(), 9, 2, 3, 32)))
    names = candidate_names(graph)[-1]
    steps = next(n for n in names if n.startswith("steps"))
    module = compile_for_gpu(
        graph, device().arch, lambda _, found: next((c for c in found if c.name == steps), found[0])
    )
    launches = [b.work for b in module.works if b.step.region.kind == "recurrence"]
    assert len(launches) == 9
    # The first reads its state from the operands, the last writes it into the results.
    assert len({w.source for w in launches if isinstance(w, Launch)}) <= 3


def test_a_few_candidates_are_of_both_kinds() -> None:
    for sizes in ((9, 2, 3, 32), (9, 2, 3, 128), (9, 32, 3, 64)):
        names = candidate_names(graph_of(*unpack(cell(Lstm(), *sizes))))[-1][:4]
        assert {n.split()[0] for n in names} == {"whole", "steps"}


def test_all_of_time_can_be_one_kernel() -> None:
    graph = graph_of(*unpack(cell(Gru(), 9, 2, 3, 32)))
    module = compile_for_gpu(graph, device().arch)
    assert [b.step.region.kind for b in module.works].count("recurrence") == 1


@pytest.mark.parametrize("op", [Rnn(), Gru(), Lstm()], ids=str)
@pytest.mark.parametrize("empty", range(4))
def test_nothing_to_compute(op: Op, empty: int) -> None:
    """No time, no batch, no features, no units: the state stays, or there is none."""
    sizes = [3, 2, 4, 5]
    sizes[empty] = 0
    check(graph_of(*unpack(cell(op, *sizes))), every=False)


@pytest.mark.parametrize("op", [Rnn, Gru, Lstm])
@pytest.mark.parametrize("backward", [False, True])
def test_elements_that_end_early(op: type[Op], backward: bool) -> None:
    graph = graph_of(*unpack(cell(op(backward=backward), 4, 4, 3, 20, lengths=True)))  # type: ignore[call-arg]
    given = {
        "n": np.array([4, 0, 3, 1], np.int32),
        "x": rng.normal(size=(4, 4, 3)).astype(np.float32),
        "h": rng.normal(size=(4, 20)).astype(np.float32),
    }
    check(graph, given, chosen=ways(graph))


@pytest.mark.parametrize("time", [0, 3])
def test_a_length_beyond_the_sequence_is_an_error(time: int) -> None:
    graph = graph_of(*unpack(cell(Lstm(), time, 2, 4, 5, lengths=True)))
    feeds = {"x": np.zeros((time, 2, 4), np.float32), "h": np.zeros((2, 5), np.float32)}
    for chosen in ("whole", "steps"):
        made = compile_for_gpu(
            graph,
            device().arch,
            lambda _, found, c=chosen: next((f for f in found if f.name.startswith(c)), found[0]),
        )
        executable = GpuExecutable(made, device())
        executable.run(feeds | {"n": np.array([0, time], np.int32)})
        for wrong in (time + 1, -1):
            with pytest.raises(ExecutionError, match="not within the sequence") as caught:
                executable.run(feeds | {"n": np.array([0, wrong], np.int32)})
            assert caught.value.given == wrong


@pytest.mark.parametrize("name", DEFAULTS)
def test_activations(name: str) -> None:
    alpha, beta = (0.3 if d is None else d for d in DEFAULTS[name])
    chosen = (name, alpha, beta)
    for op in (Rnn((chosen,)), Gru((SIGMOID, chosen)), Lstm((SIGMOID, TANH, chosen))):
        check(graph_of(*unpack(cell(op, 3, 2, 4, 19))), every=False)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f64"])
def test_weights_that_are_no_constants(kind: str) -> None:
    given = [f"{kind}[3, 2, 4]", f"{kind}[80, 4]", f"{kind}[80, 20]", f"{kind}[80]", f"{kind}[60]"]
    given += [f"{kind}[1, 20]", f"{kind}[2, 20]"]
    graph = graph_of(*unpack(Lstm()(*(value(t, f"x{i}") for i, t in enumerate(given)))))
    check(graph, chosen=ways(graph))


def test_one_result_alone_and_a_stack_of_cells() -> None:
    first = cell(Lstm(), 5, 2, 3, 24)
    check(graph_of(Item(2)(first)), every=False)
    operands = [Item(0)(first), weight(72, 24), weight(72, 24), weight(72), weight(72)]
    second = Gru(backward=True)(*operands, weight(2, 24))
    check(graph_of(Exp()(Item(0)(second)), Item(1)(second)), every=False)


def test_long_sequences_are_one_kernel() -> None:
    graph = graph_of(*unpack(cell(Rnn(), recurrent.MAX_STEPS + 1, 1, 3, 300)))
    names = candidate_names(graph)[-1]
    assert names
    assert all(n.startswith("whole") for n in names)
