"""Runs on state that stays where it is: nothing is checked twice, nothing taken for granted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from onnx import TensorProto, helper

import monograph
from monograph import calls
from monograph.errors import FeedError
from monograph.session import Session

SHAPE = (2, 3)


@pytest.fixture
def session() -> Session:
    """present = past + x, and their product."""
    nodes = [
        helper.make_node("Mul", ["past", "x"], ["product"]),
        helper.make_node("Add", ["past", "x"], ["present"]),
    ]
    ports = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)
        for name in ("past", "x", "product", "present")
    }
    graph = helper.make_graph(
        nodes, "state", [ports["past"], ports["x"]], [ports["product"], ports["present"]]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return monograph.load(model, target="cpu", cache_dir="", donate={"present": "past"})


def x(value: float = 1.0) -> np.ndarray:
    return np.full(SHAPE, value, np.float32)


def checks(run: Callable[[], list[Any]]) -> tuple[list[Any], int]:
    """Return what a run gives, and how often feeds were checked for it."""
    with mock.patch.object(calls, "check_feeds", wraps=calls.check_feeds) as check:
        return run(), check.call_count


def settled(session: Session) -> np.ndarray:
    """State of the session's own that has come back once."""
    state = session.run({"past": x(0), "x": x()})[1]
    return session.run({"past": state, "x": x()})[1]


def test_state_that_comes_back_is_not_checked_again(session: Session) -> None:
    state = settled(session)
    for turn in range(3, 6):
        (product, present), count = checks(lambda: session.run({"past": state, "x": x(2)}))
        assert count == 0
        assert present is state
        before = 2 + 2 * (turn - 3)
        np.testing.assert_array_equal(present, x(before + 2))
        np.testing.assert_array_equal(product, x(2 * before))
    assert session.stats["runs"] == 5
    assert session.stats["donation_copies"] == 1


def test_named_places_are_not_checked_again(session: Session) -> None:
    own = x(0)
    for turn in range(4):
        made, count = checks(lambda: session.run({"past": own, "x": x()}, out={"present": own}))
        assert count == (1 if turn == 0 else 0)
        assert made[1] is own
    np.testing.assert_array_equal(own, x(4))
    # Fed without being named it is left alone.
    kept = own.copy()
    made = session.run({"past": own, "x": x()})
    assert made[1] is not own
    np.testing.assert_array_equal(own, kept)
    np.testing.assert_array_equal(made[1], x(5))


def test_results_stay_as_they_are(session: Session) -> None:
    state = settled(session)
    first = session.run({"past": state, "x": x(2)})[0]
    second = session.run({"past": state, "x": x(3)})[0]
    np.testing.assert_array_equal(first, x(4))
    np.testing.assert_array_equal(second, x(12))


def _frozen(state: np.ndarray) -> dict[str, Any]:
    state.flags.writeable = False
    return {"past": state, "x": x()}


OTHERS: dict[str, Callable[[np.ndarray], dict[str, Any]]] = {
    "another state": lambda state: {"past": state.copy(), "x": x()},
    "read-only state": _frozen,
    "strided": lambda state: {"past": state, "x": np.ones((2, 6), np.float32)[:, ::2]},
    "a view of another array": lambda state: {"past": state, "x": np.ones((3, 3), np.float32)[1:]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_as_it_was_goes_the_long_way(session: Session, name: str) -> None:
    state = settled(session)
    feeds = OTHERS[name](state)
    before = feeds["past"].copy()
    made, count = checks(lambda: session.run(feeds))
    assert count == 1
    np.testing.assert_array_equal(made[0], before)
    np.testing.assert_array_equal(made[1], before + 1)


@pytest.mark.parametrize("operand", ["the state", "a view of it"])
def test_an_operand_in_the_memory_of_the_state_is_refused(session: Session, operand: str) -> None:
    state = settled(session)
    kept = state.copy()
    with pytest.raises(FeedError, match="lies in the memory of the input 'x'"):
        session.run({"past": state, "x": state if operand == "the state" else state[:]})
    np.testing.assert_array_equal(state, kept)


@pytest.mark.parametrize("feeds", [{}, {"x": x()}, {"past": x(), "x": x(), "y": x()}, None, 3])
def test_wrong_feeds_are_still_refused(session: Session, feeds: Any) -> None:
    settled(session)
    with pytest.raises(FeedError):
        session.run(feeds)


def test_another_type_is_still_refused(session: Session) -> None:
    state = settled(session)
    with pytest.raises(FeedError, match="f64"):
        session.run({"past": state, "x": x().astype(np.float64)})
    with pytest.raises(FeedError):
        session.run({"past": state, "x": np.ones((3, 2), np.float32)})


def test_state_that_nobody_holds_is_let_go(session: Session) -> None:
    import gc
    import weakref

    state = settled(session)
    session.run({"past": state, "x": x()})
    gone = weakref.ref(state)
    del state
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(session.run({"past": x(1), "x": x()})[1], x(2))
