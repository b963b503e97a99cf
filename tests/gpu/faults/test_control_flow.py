"""Branches and loops whose condition lies on the device: one launch, whatever the data say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monograph
from monograph.errors import ExecutionError
from monograph.ir import Graph, Value, constant, unpack
from monograph.ops.control import If, Loop
from monograph.ops.functions import Exp
from monograph.report.commands.input_files import read_archive, split_archive
from monograph.runtime.gpu.capture.replay import Replay
from tests.gpu.faults.models.device_models import growing, loop_graph
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault, recorded
from tests.rules.checks import graph_of, value

SHARED = Path(__file__).parents[4] / "shared" / "models"
TURNS = 100 if ON_DEVICE else 12
"""Of a loop, at most; interpreted kernels are slow."""
ELSE = pytest.mark.parametrize("else_bodies", [True, False], ids=["one node", "two nodes"])


@pytest.fixture
def rig() -> Rig:
    """Graphs of branches and loops are recorded from streams, all of them."""
    return Rig()


class Pair:
    """A graph captured, which it must be, and the same launched by the host."""

    def __init__(self, rig: Rig, graph: Graph) -> None:
        self.rig = rig
        self.replay = Replay(rig.compiled(graph), rig.graphs, "require")
        self.eager = rig.compiled(graph)

    def check(self, **feeds: Any) -> list[torch.Tensor]:
        given = {n: torch.as_tensor(x).to(PLACE) for n, x in feeds.items()}
        right = [t.clone() for t in self.eager.run(given)]
        found = self.replay.run(given)
        equal(found, right)
        return found

    def one_launch(self, runs: int) -> None:
        """Every run was one launch of one graph, and the host has looked at nothing."""
        assert self.replay.stats["captures"] == 1
        assert self.replay.stats["replays"] == runs
        assert self.replay.launches == 1
        assert self.replay.executable.syncs == 0


def graph(inputs: tuple[Value, ...], *outputs: Value) -> Graph:
    return Graph(inputs, tuple((f"y{i}", v) for i, v in enumerate(outputs)))


def start(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 17, generator=torch.Generator().manual_seed(seed)) / 4


def prefer(rig: Rig, else_bodies: bool, patch: pytest.MonkeyPatch) -> None:
    """A branch as one node with two bodies, as newer drivers have it, or as two nodes."""
    if ON_DEVICE:
        if else_bodies and not rig.graphs.inner.else_bodies:
            pytest.skip("the driver is older than CUDA 12.8")
        patch.setattr(rig.graphs.inner, "else_bodies", else_bodies)


@fault
def test_a_loop_whose_turns_the_data_decide(rig: Rig) -> None:
    step, near = 0.17, 2 * TURNS - 5
    pair = Pair(rig, loop_graph(limit=step * (2 * TURNS - 0.5)))
    runs = ((0, 0, True), (0, 7, False), (0, 1, True), (0, TURNS, True), (near, TURNS, True))
    found = []
    for first, turns, go in runs:
        start = torch.full((3, 17), step * first)
        (last,) = pair.check(x=start, n=turns, go=go)
        found.append(round(float(last[0, 0]) / step) - first)
    pair.one_launch(len(runs))
    assert found == [0, 0, 1, TURNS, 5]  # the last was ended by its data


@ELSE
@fault
def test_a_branch(rig: Rig, else_bodies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(rig, else_bodies, monkeypatch)
    s = value("f32[3, 17]", "s")
    choice = If(graph((s,), Exp()(s)), graph((s,), Exp()(Exp()(s))))
    x = value("f32[3, 17]")
    pair = Pair(rig, graph_of(*unpack(choice(value("bool[]", "c"), x, x))))
    for seed, chosen in enumerate((True, False, False, True)):
        pair.check(x=start(seed), c=chosen)
    pair.one_launch(4)


@ELSE
@fault
def test_a_branch_that_writes_its_own_condition(
    rig: Rig, else_bodies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes the second must not look where the body of the first has written."""
    prefer(rig, else_bodies, monkeypatch)
    c, s = value("bool[]", "c"), value("f32[3, 17]", "s")
    inner = If(graph((s,), Exp()(s)), graph((s,), s))
    flipped = constant(np.array(False))
    then = graph((c, s), unpack(inner(c, s, s))[0], flipped)
    other = graph((c, s), Exp()(Exp()(s)), c)
    outs = unpack(
        If(then, other)(
            value("bool[]", "c"),
            value("bool[]", "c"),
            value("f32[3, 17]"),
            value("bool[]", "c"),
            value("f32[3, 17]"),
        )
    )
    pair = Pair(rig, graph_of(*outs))
    for seed, chosen in enumerate((True, False, True)):
        pair.check(x=start(seed), c=chosen)
    pair.one_launch(3)


@ELSE
@fault
def test_a_branch_inside_a_loop(
    rig: Rig, else_bodies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer(rig, else_bodies, monkeypatch)
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[3, 17]", "s")
    c, w = value("bool[]", "c"), value("f32[17, 17]", "w")
    h = value("f32[3, 17]", "h")
    looped = unpack(Loop(growing(9.0), 1)(constant(np.int64(3)), constant(np.array(True)), s, w))
    choice = If(graph((s, w), looped[0]), graph((s,), Exp()(s)))
    body = graph((i, go, h, c, w), go, unpack(choice(c, h, w, h))[0])
    weights = constant(np.full((17, 17), 0.01, np.float32))
    operands = value("f32[3, 17]"), value("bool[]", "c"), weights
    outs = Loop(body, 1)(value("i64[]", "n"), constant(np.array(True)), *operands)
    pair = Pair(rig, graph_of(*unpack(outs)))
    for seed, (turns, chosen) in enumerate(((2, True), (0, True), (1, False), (2, False))):
        pair.check(x=start(seed) / 8, n=turns, c=chosen)
    pair.one_launch(4)


@fault
def test_a_loop_inside_a_loop(rig: Rig) -> None:
    i, go, s = value("i64[]", "i"), value("bool[]", "go"), value("f32[3, 17]", "s")
    m, w = value("i64[]", "m"), value("f32[17, 17]", "w")
    inner = unpack(Loop(growing(3.0), 1)(m, constant(np.array(True)), s, w))
    body = graph((i, go, s, m, w), go, inner[0])
    weights = constant(np.full((17, 17), 0.01, np.float32))
    operands = value("f32[3, 17]"), value("i64[]", "m"), weights
    outs = Loop(body, 1)(value("i64[]", "n"), constant(np.array(True)), *operands)
    pair = Pair(rig, graph_of(*unpack(outs)))
    for outer, turns in ((1, 1), (2, 3), (0, 5), (3, 0), (2, 2)):
        pair.check(x=torch.zeros(3, 17), n=outer, m=turns)
    pair.one_launch(5)


@fault
def test_ports_inside_a_body_are_staged(rig: Rig) -> None:
    """No driver changes nodes inside conditional ones; moved addresses are right all the same."""
    case = rig.case("branch")
    held = [case.check(seed) for seed in range(6)]
    assert case.stats["captures"] == 1
    staged = case.stats["staged_copies"]
    assert staged
    assert all(reason.endswith("a branch or a loop uses it") for reason in staged)
    assert set(staged.values()) == {6}
    assert case.stats["replays"] == 6
    assert len({found[0].data_ptr() for found in held}) == 6


@pytest.mark.parametrize("kind", ["loop", "branch"])
@fault
def test_without_conditional_nodes_the_host_decides(
    rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work before and after is a graph each; the branch or the loop is the host's."""
    monkeypatch.setattr(rig.graphs.inner, "conditionals", False)
    case = rig.case(kind)
    for seed in range(3):
        case.check(seed)
    graphs = case.stats["captures"]
    assert case.stats["replays"] == 3 * graphs
    if not ON_DEVICE:  # there it is one step, and nothing else
        assert graphs == (2 if kind == "loop" else 1)
        assert case.stats["launches_per_run"] == graphs + 1
    ((reason, count),) = case.stats["fallbacks"].items()
    assert count == 3
    assert "conditional nodes" in reason
    assert case.replay.executable.syncs > 0
    with pytest.raises(ExecutionError, match="conditional nodes"):
        rig.case(kind, mode="require").check()
    monkeypatch.undo()


@pytest.mark.parametrize("kind", ["loop", "branch"])
@fault
def test_a_caller_who_captures_gets_conditional_nodes(rig: Rig, kind: str) -> None:
    """Whatever data were there when it was recorded: the graph looks at those that come."""
    case = rig.case(kind)
    feeds = case.feeds(1)
    case.check(3)
    rig.synchronise()
    with recorded(rig) as run:
        found = case.replay.run(feeds)
    for seed in (2, 1, 4):
        for name, tensor in case.feeds(seed).items():
            feeds[name].copy_(tensor)
        run[0]()
        rig.synchronise()
        equal(found, case.right(feeds))
    assert case.stats["caller_captures"] == 1
    assert case.replay.executable.syncs == 0
    case.check(4)


@fault
def test_a_caller_who_captures_what_libraries_do_inside(rig: Rig) -> None:
    """It is said before anything is recorded: memory that they take would be nobody's."""
    case = rig.case("decided")
    case.check(3)
    rig.synchronise()
    feeds = case.feeds(1)
    with recorded(rig) as run, pytest.raises(ExecutionError, match="inside a branch or a loop"):
        case.replay.run(feeds)
    run[0]()
    rig.synchronise()
    assert case.stats["caller_captures"] == 0
    case.check(4)


@pytest.mark.parametrize("seeds", [(1, 2, 3), (2, 1, 4)])
@fault
def test_libraries_inside_a_branch(rig: Rig, seeds: tuple[int, ...]) -> None:
    """They are recorded apart, and are part of the one launch."""
    case = rig.case("decided", mode="require")
    for seed in seeds:
        case.check(seed)
    assert case.stats["captures"] == 1
    assert case.stats["replays"] == len(seeds)
    assert case.replay.executable.syncs == 0


@pytest.mark.parametrize("lacking", ["a run before", "conditional nodes"])
@pytest.mark.parametrize("kind", ["loop", "branch"])
@fault
def test_a_caller_who_captures_what_no_graph_of_theirs_can_hold(
    rig: Rig, kind: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is recorded: their graph goes on, and so do later runs."""
    if lacking == "conditional nodes":
        monkeypatch.setattr(rig.graphs.inner, "conditionals", False)
    case, other = rig.case(kind), rig.case()
    feeds, x = case.feeds(1), other.feeds(1)
    if lacking == "conditional nodes":
        case.check(3)
    other.check(3)
    right = other.right(x)
    rig.synchronise()
    syncs = case.replay.executable.syncs
    with recorded(rig) as run:
        with pytest.raises(ExecutionError, match="caller's graph"):
            case.replay.run(feeds)
        found = other.replay.run(x)
        assert ON_DEVICE or len(rig.graphs.recorded(5)) == len(other.replay.executable.records)
    run[0]()
    rig.synchronise()
    equal(found, right)
    assert case.replay.executable.syncs == syncs
    case.check(1)
    monkeypatch.undo()


@fault
def test_a_real_model_with_branches_is_one_launch(rig: Rig) -> None:
    folder = SHARED / "silero_vad_v6"
    if not folder.is_dir():
        folder = Path("carry") / "silero_vad_v6"
    if not folder.is_dir():
        pytest.skip("no silero_vad_v6 in ../shared/models beside the repository")
    path = folder / "model.onnx"
    plain = monograph.load(path, target="reference")
    feeds, _ = split_archive(read_archive(folder / "io.npz"), plain.inputs, plain.outputs)
    captured = rig.load(path, capture="require")
    eager = rig.load(path, capture="off")
    generator = np.random.default_rng(0)
    for turn in range(3 if ON_DEVICE else 1):
        given = {n: torch.from_numpy(np.array(x)).to(PLACE) for n, x in feeds.items()}
        if turn:
            shape = feeds["input"].shape
            noise = generator.normal(size=shape).astype(np.float32)
            given["input"] = torch.from_numpy(noise).to(PLACE)
        equal(captured.run(given), eager.run(given))
    stats = captured.stats
    assert stats["captures"] == stats["launches_per_run"] == 1
    assert stats["fallbacks"] == {}
