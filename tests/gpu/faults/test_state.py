"""Effects of a run besides its outputs: donated state, random numbers; and feeds of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tests.gpu.faults.rig import ON_DEVICE, PLACE, Rig, equal, fault
from tests.gpu.gpu_models import FLOAT, model
from tests.test_donation import cache_model, step

DRAWS = 3 if ON_DEVICE else 2
"""Interpreted, random numbers take long."""


@fault
def test_state_is_an_input_too_on_the_first_call(rig: Rig) -> None:
    """By our own eager run, and by what the numbers must be."""
    case = rig.case("state")
    state = case.feeds()["past"]
    right, twin = state.clone(), state.clone()
    for _ in range(3):
        right = right + right
        eager = case.eager.run({"x": twin, "past": twin}, {"present": twin})
        found = case.replay.run({"x": state, "past": state}, {"present": state})
        assert found[0] is state
        equal(found, eager)
        equal(found, [right, right * 10])
    assert case.stats["captures"] == 1


@fault
def test_state_advances_once_a_call(rig: Rig) -> None:
    """The first included, and one whose capture fails."""
    case = rig.case("state")
    feeds = case.feeds()
    state, right, twin = feeds["past"], feeds["past"].clone(), feeds["past"].clone()
    rig.graphs.fail("instantiate")
    for _ in range(8):
        right = right + feeds["x"]
        eager = case.eager.run({**feeds, "past": twin}, {"present": twin})
        found = case.replay.run(feeds, {"present": state})
        equal(found, eager)
        equal(found, [right, right * 10])
    assert sum(case.stats["fallbacks"].values()) == 1
    assert case.stats["captures"] == 1
    assert case.replay.executable.copies == 0


@fault
def test_state_that_is_not_given_back_is_left_alone(rig: Rig) -> None:
    case = rig.case("state")
    for seed in range(3):
        feeds = case.feeds(seed)
        before = feeds["past"].clone()
        case.check(feeds=feeds)
        equal([feeds["past"]], [before])


@fault
def test_a_sessions_state_in_place(rig: Rig) -> None:
    """Captured and eagerly: the same bits, step by step, at the same address."""
    options: dict[str, Any] = {"donate": {"present": "past"}}
    captured = rig.load(cache_model(), **options)
    eager = rig.load(cache_model(), capture="off", **options)
    states = [torch.zeros(2, 16, 4, device=PLACE) for _ in range(2)]
    for position in range(6):
        given = step(states[0].cpu().numpy(), position)
        feeds = {n: torch.from_numpy(x).to(PLACE) for n, x in given.items() if n != "past"}
        found = [
            session.run({**feeds, "past": state}, out={"present": state})
            for session, state in zip((captured, eager), states, strict=True)
        ]
        assert found[0][0] is states[0]
        equal(found[0], found[1])
    assert captured.stats["captures"] == 1
    assert captured.stats["replays"] == 6
    assert captured.stats["fallbacks"] == {}


def noise(seed: float | None) -> onnx.ModelProto:
    """x and some noise."""
    options: dict[str, Any] = {} if seed is None else {"seed": seed}
    nodes = [
        helper.make_node("RandomUniform", [], ["noise"], shape=[4], **options),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


@fault
def test_random_numbers_differ_between_replays_and_repeat_with_a_seed(rig: Rig) -> None:
    x = torch.zeros(4, device=PLACE)
    first, second, eager = (
        [session.run({"x": x})[0] for _ in range(DRAWS)]
        for session in (
            rig.load(noise(7.0)),
            rig.load(noise(7.0)),
            rig.load(noise(7.0), capture="off"),
        )
    )
    equal(first, second)
    equal(first, eager)
    assert len({t.cpu().numpy().tobytes() for t in first}) == DRAWS
    unseeded = rig.load(noise(None))
    drawn = [unseeded.run({"x": x})[0] for _ in range(DRAWS)]
    assert len({t.cpu().numpy().tobytes() for t in drawn}) == DRAWS
    assert unseeded.stats["captures"] == 1
    assert unseeded.stats["replays"] == DRAWS


def scaled() -> onnx.ModelProto:
    """x times a number."""
    nodes = [helper.make_node("Mul", ["x", "s"], ["y"])]
    return model(nodes, {"x": (FLOAT, [6]), "s": (FLOAT, [])}, {"y": (FLOAT, [6])})


@pytest.mark.parametrize("where", ["beside tensors", "beside arrays"])
@fault
def test_a_changed_host_scalar_changes_the_output(rig: Rig, where: str) -> None:
    """Fed anew or changed in place, from the first captured run on."""
    session, eager = rig.load(scaled()), rig.load(scaled(), capture="off")
    x: Any = torch.arange(6.0, device=PLACE)
    if where == "beside arrays":
        x = x.cpu().numpy()
    scalar = np.array(2, np.float32)
    for number in (2.0, 3.0, -1.0):
        scalar[...] = number
        for s in (scalar, np.float32(number)):
            found, plain = (
                [torch.as_tensor(y).cpu() for y in one.run({"x": x, "s": s})]
                for one in (session, eager)
            )
            equal(found, plain)
            equal(found, [torch.arange(6.0) * number])
    assert session.stats["captures"] == 1
