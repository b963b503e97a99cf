"""State and outputs that lie elsewhere than a graph has them, and that it writes in part only.

All of them is brought along: where an address is misaligned for a library, and where another graph
of the same run has written before.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monograph.runtime.counts import AUTO, Counts, RunCounters
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture import Recorder
from monograph.runtime.gpu.capture.capture_policy import CapturePolicy
from monograph.runtime.gpu.capture.captured_graph import INSIDE, Staging
from monograph.runtime.gpu.capture.launches import Launches
from monograph.runtime.gpu.capture.partial_graphs import MISALIGNED, PartialGraphs, launch_on
from tests.gpu.capture.replay_models import BYTES, arena, plus_one, port, running, slot
from tests.gpu.capture.replay_models import SIZE as COUNT
from tests.gpu.capture.test_replay_staged import either, stateful
from tests.gpu.fake_driver import FakeDriver, FakeRecord, numbers
from tests.gpu.fake_graphs import FakeGraphs

ALIGNED, SIZE = 256, 64


def launched(aligned: dict[str, int]) -> Any:
    """State after a launch that writes one byte of it, and what was counted."""
    block = torch.zeros(SIZE + 2 * ALIGNED, dtype=torch.uint8)
    start = -block.data_ptr() % ALIGNED + 16
    state = block[start : start + SIZE]
    state.copy_(torch.arange(SIZE, dtype=torch.uint8))
    memory = {"input:past": state, "output:present": state}
    recorded: Any = SimpleNamespace(aligned=aligned, names=list(memory))

    def launch(_: Any, addresses: list[int], stream: int) -> None:
        ctypes.memset(addresses[1] + 5, 99, 1)

    launches: Any = SimpleNamespace(counts=Counts(), launch=launch)
    launch_on(launches, recorded, memory, 0)
    return state.tolist(), dict(launches.counts.staged)


@pytest.mark.parametrize("strict", [("input:past", "output:present"), ("output:present",), ()])
def test_rows_that_a_kernel_does_not_write_stay(strict: tuple[str, ...]) -> None:
    names = ("input:past", "output:present")
    state, staged = launched({n: ALIGNED if n in strict else 16 for n in names})
    assert state == [99 if i == 5 else i for i in range(SIZE)]
    assert staged == {f"{n.partition(':')[2]}: {MISALIGNED}": 1 for n in strict}


class Parts:
    """An executable's launches as a part of a run, on a fake driver."""

    def __init__(self, make: Any) -> None:
        self.driver = FakeDriver()
        self.executable: GpuProgram = make(self.driver)
        self.counts = Counts()
        launches = Launches(self.executable, FakeGraphs(self.driver), self.counts)
        self._partial = PartialGraphs(launches, CapturePolicy(AUTO, self.counts, RunCounters()))

    def launch(self, **ports: torch.Tensor) -> None:
        names = {s.name for s in self.executable.layout.inputs}
        memory = {
            f"{'input' if n in names else 'output'}:{n}": t.view(torch.uint8)
            for n, t in ports.items()
        }
        self._partial.launch(0, len(self.executable.records), memory, 0)


def half(words: list[int]) -> None:
    """Writes the first half of its output."""
    numbers(words[1], COUNT)[: COUNT // 2] = numbers(words[0], COUNT)[: COUNT // 2] + 1


def halved(driver: FakeDriver) -> GpuProgram:
    works, nests = either(driver, half, [port("input:x"), port("output:y")])
    return running(driver, [slot("x")], [slot("y")], works, nests)


def test_what_another_graph_has_written_of_an_output_stays() -> None:
    parts = Parts(halved)
    held = []
    for turn in range(3):
        x, y = torch.full((COUNT,), float(turn)), torch.full((COUNT,), 9.0)
        parts.launch(x=x, y=y)
        assert y.tolist() == [turn + 1] * (COUNT // 2) + [9] * (COUNT // 2)
        held += [x, y]
    assert parts.counts.staged == {f"x: {INSIDE}": 3, f"y: {INSIDE}": 3}
    assert (parts.counts.captures, parts.counts.replays) == (1, 3)


def test_a_part_that_uses_one_end_of_a_state_only() -> None:
    """The other end is none of its ports."""
    parts = Parts(stateful)
    state = torch.zeros(COUNT)
    for turn in range(1, 4):
        y = torch.zeros(COUNT)
        parts.launch(x=torch.ones(COUNT), past=state, present=state, y=y)
        assert state.tolist() == [turn] * COUNT
        assert y.tolist() == [10 * turn] * COUNT
    assert parts.counts.staged == {f"{n}: {INSIDE}": 3 for n in ("x", "present", "y")}
    assert not parts.counts.fallbacks


def test_of_state_only_the_copies_move() -> None:
    """A launch outside the branch reads where the branch writes, not where the caller's lies."""

    def reading(driver: FakeDriver) -> GpuProgram:
        works, nests = either(driver, plus_one, [port("output:present"), port("output:present")])
        works.insert(0, (FakeRecord(driver, "read", plus_one, 2), [port("input:past"), arena()]))
        outputs = [slot("present", over="past")]
        inputs = [slot("x"), slot("past")]
        return running(driver, inputs, outputs, works, (nests[0], *nests))

    parts = Parts(reading)
    x, states = torch.ones(COUNT), [torch.zeros(COUNT) for _ in range(3)]
    for turn, state in enumerate(states):
        before = parts.driver.calls["write"]
        parts.launch(x=x, past=state, present=state)
        assert state.tolist() == [1] * COUNT
        assert parts.driver.calls["write"] - before == (2 if turn else 0)


def test_both_ends_of_a_state_are_brought_once() -> None:
    state = torch.zeros(BYTES, dtype=torch.uint8)
    memory = {"input:past": state, "output:present": state}
    partners = {"input:past": "output:present", "output:present": "input:past"}
    graphs = FakeGraphs(FakeDriver())
    for name in memory:
        staging = Staging(memory, {name: INSIDE}, partners, partly=True)
        assert staging.memory.keys() == memory.keys()
        assert len({t.data_ptr() for t in staging.memory.values()}) == 1
        recorder = Recorder(running(graphs.driver, [], [], []), graphs)
        taken = staging.record(recorder, memory)
        assert len(taken.edges) == 2
        words = [w.value for p in staging.places(graphs, taken).values() for _, w, _ in p]
        assert words == [state.data_ptr()] * 2
