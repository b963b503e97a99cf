"""Outputs in arrays that exist already: `out=`, and state that is donated in place."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import FeedError
from monograph.session import Session

LENGTH = 16
Load = Callable[..., Session]


def cache_model(named: bool = False) -> onnx.ModelProto:
    """Writes rows into a state at places that are data; gives the sum of all rows as well."""
    rows: list[Any] = ["batch" if named else 2, LENGTH, 4]
    inputs = {"past": rows, "at": [rows[0], 1, 4], "new": [rows[0], 1, 4]}
    nodes = [
        helper.make_node("ScatterElements", ["past", "at", "new"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present", "axes"], ["total"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "cache",
        [
            helper.make_tensor_value_info(
                n, TensorProto.INT64 if n == "at" else TensorProto.FLOAT, shape
            )
            for n, shape in inputs.items()
        ],
        [
            helper.make_tensor_value_info("present", TensorProto.FLOAT, rows),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, [rows[0], 4]),
        ],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(params=["cpu", "reference"])
def load(request: pytest.FixtureRequest) -> Load:
    def made(model: onnx.ModelProto | None = None, **options: Any) -> Session:
        source = model or cache_model()
        return monograph.load(source, target=request.param, cache_dir="", **options)

    return made


def step(past: np.ndarray, position: int) -> dict[str, np.ndarray]:
    batch = len(past)
    return {
        "past": past,
        "at": np.full((batch, 1, 4), position),
        "new": np.full((batch, 1, 4), position + 1, np.float32),
    }


def empty(batch: int = 2) -> np.ndarray:
    return np.zeros((batch, LENGTH, 4), np.float32)


def filled(count: int) -> np.ndarray:
    state = empty()
    state[:, :count] = np.arange(1, count + 1)[:, None]
    return state


def test_state_that_comes_back_is_updated_in_place(load: Load) -> None:
    session = load(donate={"present": "past"})
    first = empty()
    state, _ = session.run(step(first, 0))
    for position in range(1, 5):
        present, total = session.run(step(state, position))
        assert present is state
        np.testing.assert_array_equal(total, np.full((2, 4), sum(range(position + 2))))
    np.testing.assert_array_equal(state, filled(5))
    # What the caller made was copied once, and never changed.
    assert not first.any()


def test_nothing_is_copied_between_steps() -> None:
    session = monograph.load(cache_model(), target="cpu", donate={"present": "past"}, cache_dir="")
    state, _ = session.run(step(empty(), 0))
    assert session.stats["donation_copies"] == 1
    for position in range(1, 5):
        state, _ = session.run(step(state, position))
    assert session.stats["donation_copies"] == 1


def test_an_array_of_the_caller_is_updated_only_if_named(load: Load) -> None:
    session = load(donate={"present": "past"})
    mine = empty()
    for position in range(3):
        present, _ = session.run(step(mine, position), out={"present": mine})
        assert present is mine
    np.testing.assert_array_equal(mine, filled(3))
    other, _ = session.run(step(mine, 3))
    assert other is not mine
    np.testing.assert_array_equal(mine, filled(3))
    np.testing.assert_array_equal(other, filled(4))


def test_state_goes_elsewhere_if_out_says_so(load: Load) -> None:
    session = load(donate={"present": "past"})
    state, _ = session.run(step(empty(), 0))
    place = empty()
    present, _ = session.run(step(state, 1), out={"present": place})
    assert present is place
    np.testing.assert_array_equal(state, filled(1))
    np.testing.assert_array_equal(place, filled(2))


def test_views_of_state_are_not_written_to(load: Load) -> None:
    session = load(donate={"present": "past"})
    state, _ = session.run(step(empty(), 0))
    present, _ = session.run(step(state[:], 1))
    assert present is not state
    np.testing.assert_array_equal(state, filled(1))


def test_state_that_was_made_read_only_is_kept(load: Load) -> None:
    session = load(donate={"present": "past"})
    state, _ = session.run(step(empty(), 0))
    state.flags.writeable = False
    present, _ = session.run(step(state, 1))
    assert present is not state
    np.testing.assert_array_equal(state, filled(1))
    np.testing.assert_array_equal(present, filled(2))


def test_state_of_another_session_is_not_written_to(load: Load) -> None:
    ours, theirs = load(donate={"present": "past"}), load(donate={"present": "past"})
    state, _ = theirs.run(step(empty(), 0))
    present, _ = ours.run(step(state, 1))
    assert present is not state
    np.testing.assert_array_equal(state, filled(1))


def test_arrays_that_are_gone_are_forgotten(load: Load) -> None:
    session = load(donate={"present": "past"})
    state, _ = session.run(step(empty(), 0))
    del state
    gc.collect()
    for _ in range(50):  # one of them may lie where the state was
        mine = empty()
        present, _ = session.run(step(mine, 0))
        assert present is not mine
        assert not mine.any()
        del present


def test_without_donation_nothing_is_written_over(load: Load) -> None:
    session = load()
    state, _ = session.run(step(empty(), 0))
    present, _ = session.run(step(state, 1))
    assert present is not state
    np.testing.assert_array_equal(state, filled(1))


def test_sizes_may_change_between_runs(load: Load) -> None:
    session = load(cache_model(named=True), donate={"present": "past"})
    for batch in (1, 3, 1):
        state, _ = session.run(step(empty(batch), 0))
        present, total = session.run(step(state, 1))
        assert present is state
        np.testing.assert_array_equal(total, np.full((batch, 4), 3))


def test_outputs_are_written_where_the_caller_says(load: Load) -> None:
    session = load()
    total = np.full((2, 4), np.nan, np.float32)
    results = session.run(step(empty(), 2), out={"total": total})
    assert results[1] is total
    np.testing.assert_array_equal(total, np.full((2, 4), 3))
    (only,) = session.run(step(filled(2), 2), ["total"], out={"total": total})
    assert only is total
    np.testing.assert_array_equal(total, np.full((2, 4), 6))


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"nothing": np.empty(2)}, "does not have"),
        ({"totl": np.empty(2)}, "did you mean total"),
        ({"total": [[0.0] * 4] * 2}, "an array is needed, not list"),
        ({"total": np.empty((2, 4))}, "expected f32, given f64"),
        ({"total": np.empty((2, 4), ">f4")}, "expected f32|bytes"),
        ({"total": np.empty((4, 2), np.float32)}, r"expected the shape \[2, 4\], given \[4, 2\]"),
        ({"total": np.empty((2, 4, 1), np.float32)}, "expected the shape"),
        ({"total": readonly(np.empty((2, 4), np.float32))}, "read-only"),
        ({"total": np.empty((4, 2), np.float32).T}, "one after the other"),
        ({"total": np.empty((2, 8), np.float32)[:, ::2]}, "one after the other"),
        ([np.empty((2, 4))], "out maps names of outputs to arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(load: Load, out: Any, message: str) -> None:
    session = load()
    with pytest.raises(FeedError, match=message):
        session.run(step(empty(), 0), out=out)


def test_a_size_that_is_only_known_by_the_run_is_checked(load: Load) -> None:
    session = load(cache_model(named=True))
    with pytest.raises(FeedError, match="does not fit"):
        session.run(step(empty(3), 0), out={"total": np.empty((2, 4), np.float32)})


def test_outputs_must_not_lie_in_inputs(load: Load) -> None:
    session = load()
    state = empty()
    with pytest.raises(FeedError, match=r"input 'past'.*donate=\{'present': 'past'\}"):
        session.run(step(state, 0), out={"present": state})
    assert not state.any()
    feeds = step(empty(), 0)
    feeds["new"] = np.zeros((2, 2, 4), np.float32)[:, :1]
    within = feeds["new"].base[0].reshape(2, 4)
    with pytest.raises(FeedError, match="memory of the input 'new'"):
        session.run(feeds, out={"total": within})


def test_a_donated_output_must_not_lie_in_its_input_in_part(load: Load) -> None:
    session = load(donate={"present": "past"})
    memory = np.zeros(2 * LENGTH * 4 + 4, np.float32)
    past, shifted = (memory[k : k + 2 * LENGTH * 4].reshape(2, LENGTH, 4) for k in (0, 4))
    with pytest.raises(FeedError, match="only in part"):
        session.run(step(past, 0), out={"present": shifted})


def test_outputs_must_not_lie_in_each_other(load: Load) -> None:
    session = load()
    present = empty()
    with pytest.raises(FeedError, match="memory of the output"):
        session.run(step(empty(), 0), out={"present": present, "total": present[0, :2]})


def test_state_must_not_be_another_input_too(load: Load) -> None:
    session = load(donate={"present": "past"})
    state, _ = session.run(step(empty(), 0))
    feeds = {**step(state, 1), "new": state[:, 1:2]}
    with pytest.raises(FeedError, match="memory of the input 'new'"):
        session.run(feeds)
    np.testing.assert_array_equal(state, filled(1))


def swap_model() -> onnx.ModelProto:
    """Two states that change places; the new ones cannot both be written over the old."""
    nodes = [
        helper.make_node("Neg", ["b"], ["new_a"]),
        helper.make_node("Exp", ["a"], ["new_b"]),
    ]
    infos = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [3])
        for n in ("a", "b", "new_a", "new_b")
    }
    graph = helper.make_graph(
        nodes, "swap", [infos["a"], infos["b"]], [infos["new_a"], infos["new_b"]]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_states_that_need_each_other_are_right(load: Load) -> None:
    session = load(swap_model(), donate={"new_a": "a", "new_b": "b"})
    a, b = np.float32([1, 2, 3]), np.float32([-1, 0, 1])
    first = session.run({"a": a, "b": b})
    expected = [(-b).copy(), np.exp(a)]
    for _ in range(3):
        new = session.run({"a": first[0], "b": first[1]})
        assert new[0] is first[0]
        assert new[1] is first[1]
        expected = [-expected[1], np.exp(expected[0])]
        np.testing.assert_allclose(new, expected, rtol=1e-5)


def test_copies_into_arrays_of_the_caller_are_counted_as_others_are() -> None:
    names = {"new_a": "a", "new_b": "b"}
    ours = monograph.load(swap_model(), target="cpu", donate=names, cache_dir="")
    mine = monograph.load(swap_model(), target="cpu", donate=names, cache_dir="")
    arrays = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    state = ours.run(arrays)
    before = ours.stats["donation_copies"]
    ours.run({"a": state[0], "b": state[1]})
    mine.run(arrays, out={"new_a": arrays["a"], "new_b": arrays["b"]})
    copies = ours.stats["donation_copies"] - before
    assert copies > 0, "both states were written over what the other still reads"
    assert mine.stats["donation_copies"] == copies


def test_a_donated_program_from_disk_is_in_place(tmp_path: Any) -> None:
    path = tmp_path / "cache.onnx"
    onnx.save(cache_model(), path)
    options = {"target": "cpu", "donate": {"present": "past"}, "cache_dir": str(tmp_path / "kept")}
    for _ in range(2):
        session = monograph.load(path, **options)
        state, _ = session.run(step(empty(), 0))
        present, _ = session.run(step(state, 1))
        assert present is state
        np.testing.assert_array_equal(state, filled(2))
        assert session.stats["donation_copies"] == 1
    assert session.stats["from_disk"] == 1
