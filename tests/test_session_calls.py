"""Python numbers as feeds, sessions that are closed, and calls in the style of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.errors import ConfigError, ExecutionError, FeedError
from monograph.session import Session
from tests.test_session import affine, feeds, model_of


def identity(element: int, shape: list[int]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model_of(nodes, [("x", element, shape)], [("y", element, shape)])


def echo(given: Any, element: int, shape: list[int], target: str = "reference") -> Any:
    return monograph.load(identity(element, shape), target=target).run({"x": given})[0]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("given", [[0.1, 2], (0.1, 2.0), [np.float32(0.1), 2]])
def test_lists_get_the_type_of_the_input(given: Any, target: str) -> None:
    found = echo(given, TensorProto.FLOAT, [2], target)
    assert (found.dtype, found.tolist()) == (np.float32, [np.float32(0.1), 2.0])


@pytest.mark.parametrize(
    ("given", "element", "expected"),
    [
        (3, TensorProto.INT64, 3),
        (-128, TensorProto.INT8, -128),
        (2**64 - 1, TensorProto.UINT64, 2**64 - 1),
        (True, TensorProto.BOOL, True),
        (0.5, TensorProto.DOUBLE, 0.5),
        (2, TensorProto.FLOAT16, 2.0),
        (1e40, TensorProto.FLOAT, float("inf")),
    ],
)
def test_numbers_are_scalars(given: Any, element: int, expected: Any) -> None:
    found = echo(given, element, [])
    assert (found.shape, found.item()) == ((), expected)


@pytest.mark.parametrize(
    ("given", "element"),
    [
        (1.0, TensorProto.INT64),
        (300, TensorProto.UINT8),
        (-1, TensorProto.UINT32),
        (2**24 + 1, TensorProto.FLOAT),
        (2049, TensorProto.FLOAT16),
        (1 << 70, TensorProto.INT64),
        (True, TensorProto.FLOAT),
        (1, TensorProto.BOOL),
        (np.float64(1), TensorProto.FLOAT),
        (np.int32(1), TensorProto.INT64),
    ],
)
def test_numbers_that_do_not_fit_are_refused(given: Any, element: int) -> None:
    with pytest.raises(FeedError, match="do not fit the model"):
        echo(given, element, [])


def test_empty_lists_are_arrays_without_elements() -> None:
    assert echo([], TensorProto.INT32, [0]).dtype == np.int32


def test_arrays_are_not_cast() -> None:
    with pytest.raises(FeedError, match="cast it with"):
        echo(np.ones(2), TensorProto.FLOAT, [2])


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_closed_session_does_not_run(target: str) -> None:
    session = monograph.load(affine(), target=target)
    session.run(feeds())
    pending = session.run_async(feeds())
    session.close()
    session.close()  # again is no error
    assert len(pending.result()) == 2
    for call in (session.run, session.run_async):
        with pytest.raises(ExecutionError, match="closed"):
            call(feeds()).result()  # type: ignore[attr-defined]
    with pytest.raises(ExecutionError, match="closed"):
        session.run(feeds(), outputs=["y"])
    assert session.stats["runs"] == 2


def test_a_block_closes_its_session() -> None:
    with monograph.load(affine(), target="cpu") as session:
        assert isinstance(session, Session)
        session.run(feeds())
    assert session.stats["compiled"] == 0
    with pytest.raises(ExecutionError, match="closed"):
        session.run(feeds())


@pytest.mark.parametrize(
    ("first", "ours"), [(None, "session.run(feeds)"), (["y"], "session.run(feeds, outputs=['y'])")]
)
def test_order_of_arguments_of_onnxruntime(first: Any, ours: str) -> None:
    session = monograph.load(affine(), target="reference")
    for _ in range(2):
        with pytest.raises(FeedError, match="feeds are the first argument") as raised:
            session.run(first, feeds())
        assert raised.value.expected == ours


@pytest.mark.parametrize("names", [None, ["y"]])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_order_of_arguments_of_an_asynchronous_run(target: str, names: Any) -> None:
    session = monograph.load(affine(), target=target)
    with pytest.raises(FeedError, match="feeds are the first argument") as raised:
        session.run_async(names, feeds())
    assert raised.value.expected == "session.run_async(feeds)"


@pytest.mark.parametrize(
    ("call", "given", "named", "ours"),
    [
        ("run", (), {"output_names": ["y"], "input_feed": {}}, "run(feeds, outputs=['y'])"),
        ("run", (None,), {"input_feed": {}}, "run(feeds)"),
        ("run", (["y"], {}, None), {}, "run(feeds, outputs=['y'])"),
        ("run", (None, {}), {"run_options": None}, "run(feeds)"),
        ("run_async", (None, {}, print, None), {}, "run_async(feeds)"),
        ("run_async", (["y"], {}), {"callback": print, "user_data": 1}, "run_async(feeds)"),
    ],
)
def test_arguments_of_onnxruntime(call: str, given: Any, named: Any, ours: str) -> None:
    session = monograph.load(affine(), target="reference")
    with pytest.raises(FeedError, match="arguments of ONNX Runtime") as raised:
        getattr(session, call)(*given, **named)
    assert raised.value.expected == f"session.{ours}"


@pytest.mark.parametrize("call", ["run", "run_async"])
def test_other_arguments_of_a_run(call: str) -> None:
    run = getattr(monograph.load(affine(), target="reference"), call)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        run(feeds(), other=1)
    with pytest.raises(TypeError, match="5 arguments without a name; `out` has one"):
        run(feeds(), None, None, None, None)
    with pytest.raises(FeedError, match="missing"):
        run()


@pytest.mark.parametrize("call", ["run", "run_async"])
@pytest.mark.parametrize("given", [None, [np.ones(3)], np.ones(3), "x"])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_feeds_without_names(target: str, given: Any, call: str) -> None:
    session = monograph.load(affine(), target=target)
    names = ", ".join(f"{port.name!r}: array" for port in session.inputs)
    for _ in range(2):
        with pytest.raises(FeedError, match="feeds are a mapping") as raised:
            getattr(session, call)(given)
        assert raised.value.expected == f"session.run({{{names}}})"
        session.run(feeds())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("get_inputs", "session.inputs"),
        ("get_modelmeta", "session.metadata"),
        ("get_provider_options", "session.config"),
    ],
)
def test_members_of_onnxruntime(name: str, ours: str) -> None:
    session = monograph.load(affine(), target="reference")
    with pytest.raises(AttributeError, match=f"{name}.*use {ours}"):
        getattr(session, name)()
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = session.other


def test_names_of_onnxruntime() -> None:
    for name in ("InferenceSession", "get_available_providers"):
        with pytest.raises(AttributeError, match=r"use monograph\.load, or monograph\.onnxrun"):
            getattr(monograph, name)
    with pytest.raises(AttributeError, match=r"use monograph\.errors\.FeedError"):
        _ = monograph.FeedError  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = monograph.other  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match='target="gpu"'):
        monograph.load(affine(), providers=["CUDAExecutionProvider"])


def chain() -> onnx.ModelProto:
    """y = -relu(2x), with names for what is between."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Relu", ["twice"], ["positive"]),
        helper.make_node("Neg", ["positive"], ["y"]),
    ]
    return model_of(nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, ["n"])])


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_values_inside_of_a_model_are_returned(target: str) -> None:
    given = chain()
    session = monograph.load(given, target=target)
    x = np.array([1, -2], np.float32)
    for _ in range(2):
        twice, y = session.run({"x": x}, outputs=["twice", "y"])
        assert (twice.tolist(), y.tolist()) == ([2, -4], [-2, 0])
    (found,) = session.run({"x": x}, outputs=["positive"])
    assert found.tolist() == [2, 0]
    assert [x.tolist() for x in session.run({"x": x})] == [[-2, 0]]
    assert [p.name for p in session.outputs] == ["y"]
    assert len(given.graph.output) == 1  # the caller's model is not changed


def test_inputs_and_initialisers_are_values_too() -> None:
    model = chain()
    model.graph.node[0].input[1] = "w"
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [5]))
    x, w = monograph.load(model, target="cpu").run({"x": [1.0, 2.0]}, outputs=["x", "w"])
    assert (x.tolist(), w.tolist()) == ([1, 2], [5])


def test_values_come_from_the_cache_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain().SerializeToString())
    for _ in range(2):
        session = monograph.load(path, cache_dir=str(tmp_path / "cache"))
        assert session.run({"x": [1.0, -1.0]})[0].tolist() == [-2, 0]
        (found,) = session.run({"x": [1.0, -1.0]}, outputs=["twice"])
        assert found.tolist() == [2, -2]


def test_values_are_written_into_arrays() -> None:
    mine = np.zeros(2, np.float32)
    monograph.load(chain(), target="cpu").run(
        {"x": [1.0, 3.0]}, outputs=["twice"], out={"twice": mine}
    )
    assert mine.tolist() == [2, 6]


def test_names_that_are_no_value_are_refused(tmp_path: Path) -> None:
    session = monograph.load(chain(), target="cpu")
    with pytest.raises(FeedError, match="no such output, and no such value") as raised:
        session.run({"x": [1.0]}, outputs=["twic"])
    assert raised.value.hint == "did you mean twice?"
    session.run({"x": [1.0]})
    session.save(tmp_path / "chain.mono")
    with pytest.raises(FeedError, match="load the model for values inside"):
        monograph.load(tmp_path / "chain.mono").run({"x": [1.0]}, outputs=["twice"])
