"""State of loops in the caller's memory: updated there where that is right, else copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.session import Session

Load = Callable[..., Session]
SHAPE = (3, 40)
STRAIGHT = {"y0": "x0", "y1": "x1"}
CROSSED = {"y0": "x1", "y1": "x0"}
BODIES = {
    "updated": ("Add a one", "Mul b two"),
    "swapped": ("Identity b", "Add a one"),
    "made of each other": ("Add a b", "Sub a b"),
    "captured too": ("Add a x0", "Mul b x0"),
    "one captured by the other": ("Add a one", "Add b x0"),
}
"""By name: how each of two states is made of both (a, b), and of what they were at first."""


def loop_model(body: str, fed: tuple[str, str] = ("x0", "x1")) -> onnx.ModelProto:
    """A loop over two states, for as many turns as `turns` says."""
    kind = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["go"], ["on"])]
    for i, made in enumerate(BODIES[body]):
        op, *inputs = made.split()
        nodes.append(helper.make_node(op, inputs, [f"made{i}"]))
    turn = helper.make_graph(
        nodes,
        "turn",
        [
            kind("i", TensorProto.INT64, []),
            kind("go", TensorProto.BOOL, []),
            kind("a", TensorProto.FLOAT, SHAPE),
            kind("b", TensorProto.FLOAT, SHAPE),
        ],
        [
            kind("on", TensorProto.BOOL, []),
            kind("made0", TensorProto.FLOAT, SHAPE),
            kind("made1", TensorProto.FLOAT, SHAPE),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["turns", "", *fed], ["y0", "y1"], body=turn)],
        "loop",
        [
            kind("turns", TensorProto.INT64, []),
            *(kind(f"x{i}", TensorProto.FLOAT, SHAPE) for i in range(2)),
        ],
        [kind(f"y{i}", TensorProto.FLOAT, SHAPE) for i in range(2)],
        [
            helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
            helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def load() -> Load:
    def made(model: onnx.ModelProto, **options: Any) -> Session:
        return monograph.load(model, target="cpu", cache_dir="", **options)

    return made


def go_on(session: Session, donate: dict[str, str], turns: list[int]) -> list[np.ndarray]:
    """Both states, after runs that each take up where the one before has ended."""
    rng = np.random.default_rng(2)
    state = {f"x{i}": rng.integers(-4, 5, SHAPE).astype(np.float32) for i in range(2)}
    first = {n: x.copy() for n, x in state.items()}
    given = dict(state)
    for count in turns:
        made = dict(zip(("y0", "y1"), session.run({"turns": count, **state}), strict=True))
        state = {input_: made[output] for output, input_ in donate.items()}
    for name, array in given.items():  # what a caller has not donated is not changed
        np.testing.assert_array_equal(array, first[name])
    return [np.array(state[n]) for n in ("x0", "x1")]


@pytest.mark.parametrize("donate", [STRAIGHT, CROSSED], ids=["straight", "crossed"])
@pytest.mark.parametrize("body", BODIES)
def test_donated_state_of_a_loop(load: Load, body: str, donate: dict[str, str]) -> None:
    model, turns = loop_model(body), [3, 1, 0, 4]
    plain = monograph.load(model, target="reference", cache_dir="")
    found = go_on(load(model, donate=donate), donate, turns)
    for ours, expected in zip(found, go_on(plain, donate, turns), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_one_input_that_is_both_states(load: Load) -> None:
    model = loop_model("made of each other", ("x0", "x0"))
    plain = monograph.load(model, target="reference", cache_dir="")
    found = go_on(load(model, donate=STRAIGHT), STRAIGHT, [2, 2])
    for ours, expected in zip(found, go_on(plain, STRAIGHT, [2, 2]), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("body", ["updated", "swapped", "made of each other"])
def test_state_of_a_loop_that_comes_back_is_not_copied(load: Load, body: str) -> None:
    session = load(loop_model(body), donate=STRAIGHT)
    feeds = {"x0": np.ones(SHAPE, np.float32), "x1": np.zeros(SHAPE, np.float32)}
    state = session.run({"turns": 2, **feeds})
    copies = session.stats["donation_copies"]
    for count in (0, 3):
        new = session.run({"turns": count, "x0": state[0], "x1": state[1]})
        assert new[0] is state[0]
        assert new[1] is state[1]
    assert session.stats["donation_copies"] == copies
