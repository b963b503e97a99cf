"""Shapes that alternate, grow and never repeat; and what else a graph is kept by."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tests.gpu.faults.device_models import Call, of_calls
from tests.gpu.faults.rig import ON_DEVICE, PLACE, Case, Rig, equal, fault
from tests.gpu.gpu_models import FLOAT, linear, model

SHAPES = 1000 if ON_DEVICE else 24
PARTS = 8
"""Processes may share the shapes: each takes its part, and may hold no more for it."""
KEPT = 4


def rows(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 33, generator=generator).to(PLACE)


@fault
def test_two_shapes_alternate(rig: Rig) -> None:
    captured, eager = rig.load(linear()), rig.load(linear(), capture="off")
    held = []
    for turn in range(8):
        x = rows((2, 5)[turn % 2], turn)
        right = eager.run({"x": x})
        held.append((captured.run({"x": x}), right))
    for found, right in held:
        equal(found, right)
    assert captured.stats["captures"] == 2
    assert captured.stats["replays"] == 8
    assert captured.stats["fallbacks"] == {}


@fault
def test_a_later_shape_needs_more_memory(rig: Rig) -> None:
    """Earlier graphs keep what they were captured with, and go on being right."""
    captured, eager = rig.load(linear()), rig.load(linear(), capture="off")
    for count in (2, 64, 2, 300, 64, 2, 300):
        x = rows(count, count)
        equal(captured.run({"x": x}), eager.run({"x": x}))
        rig.poison()
    assert captured.stats["captures"] == 3


@pytest.mark.skipif(not ON_DEVICE, reason="a library's workspace is the device's")
@fault
def test_a_later_shape_needs_a_larger_workspace(rig: Rig) -> None:
    """What a library allocates while one graph is captured is not outgrown by another's."""

    def through_temporaries(x: torch.Tensor, to: torch.Tensor) -> None:
        to.copy_((x * 3 + 1).relu() @ x.t().contiguous() @ x)

    def make(count: int) -> Any:
        shape = (count, 256)

        def made(_: Any = None) -> Any:
            calls = [(Call(through_temporaries, shape, shape), ("x", "y"))]
            return of_calls(calls, {"x": shape}, {"y": shape})

        return made

    cases: dict[int, Case] = {}
    for count in (64, 512, 2048):
        setattr(rig.models, f"rows{count}", make(count))
        cases[count] = rig.case(f"rows{count}")
    for turn in range(6):
        for count, case in cases.items():
            generator = torch.Generator().manual_seed(turn)
            x = torch.randn(count, 256, generator=generator).cuda()
            right = case.right({"x": x})
            found = case.replay.run({"x": x})
            rig.poison()
            equal(found, right)
            torch.cuda.empty_cache()
    assert all(case.stats["captures"] == 1 for case in cases.values())


def doubled(weight: float = 2.0, kind: int = FLOAT) -> onnx.ModelProto:
    """x times a weight, for any number of rows."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    narrow = np.float16 if kind == onnx.TensorProto.FLOAT16 else np.float32
    weights = {"w": np.full(5, weight, narrow)}
    return model(nodes, {"x": (kind, ["n", 5])}, {"y": (kind, ["n", 5])}, weights)


@pytest.mark.parametrize("part", range(PARTS))
@fault
def test_a_thousand_shapes_in_bounded_memory(rig: Rig, part: int) -> None:
    if ON_DEVICE and not rig.builds:
        pytest.skip("shapes are kept by the session, however its graphs are made")
    session = rig.load(doubled(), shapes_kept=KEPT)
    held: list[dict[str, int]] = []
    for turn, count in enumerate(range(part + 1, SHAPES + 1, PARTS)):
        x = torch.full((count, 5), float(count), device=PLACE)
        (found,) = session.run({"x": x})
        assert float(found[-1, -1]) == 2 * count
        assert session.stats["compiled"] <= KEPT
        del x, found
        if turn == 2 * KEPT:
            held.append(rig.held())
    held.append(rig.held())
    assert session.stats["captures"] == session.stats["runs"]
    first, last = held[0], held[-1]
    assert last["handles"] <= first["handles"]
    # The largest inputs have a thousand rows of twenty bytes; torch hands out 512 at once.
    assert last.get("bytes", 0) <= first.get("bytes", 0) + KEPT * 64 * 1024


@fault
def test_shape_dtype_and_weights_separate_what_is_kept(rig: Rig) -> None:
    x = torch.arange(10.0, device=PLACE).reshape(2, 5)
    sessions = {weight: rig.load(doubled(weight)) for weight in (2.0, 3.0)}
    half = rig.load(doubled(3.0, onnx.TensorProto.FLOAT16))
    for _ in range(2):
        for weight, session in sessions.items():
            for given in (x, x[:1], torch.cat([x, x])):
                equal(session.run({"x": given}), [given * weight])
        equal(half.run({"x": x.half()}), [x.half() * 3])
    assert [s.stats["captures"] for s in sessions.values()] == [3, 3]
    assert half.stats["captures"] == 1


@pytest.mark.skipif(not ON_DEVICE or torch.cuda.device_count() < 2, reason="needs two devices")
@fault
def test_the_device_separates_what_is_kept(rig: Rig) -> None:
    import monograph

    x = torch.arange(10.0).reshape(2, 5)
    sessions = [monograph.load(doubled(), target=f"gpu:{i}", tune="off") for i in range(2)]
    for _ in range(2):
        for number, session in enumerate(sessions):
            (found,) = session.run({"x": x.to(f"cuda:{number}")})
            assert found.device == torch.device("cuda", number)
            equal([found.cpu()], [x * 2])
    assert [s.stats["captures"] for s in sessions] == [1, 1]
