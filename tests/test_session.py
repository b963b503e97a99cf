"""Session: feeds are checked, outputs are fresh, shapes may vary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.config import make_config
from monograph.errors import ConfigError, FeedError, ModelError, UnsupportedError
from tests.effort import CountedName, touches_of


def model_of(nodes, inputs, outputs, initialisers=(), opset: int = 21) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        list(initialisers),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def affine() -> onnx.ModelProto:
    """y = x * w + b over a symbolic batch, and x itself as a second output."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    return model_of(
        [
            helper.make_node("Mul", ["x", "w"], ["m"], "scale"),
            helper.make_node("Add", ["m", "b"], ["y"], "shift"),
            helper.make_node("Identity", ["x"], ["same"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3]), ("b", TensorProto.FLOAT, ["N", 1])],
        [("y", TensorProto.FLOAT, ["N", 3]), ("same", TensorProto.FLOAT, ["N", 3])],
        [weight],
    )


def feeds(n: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 3), np.float32), "b": np.zeros((n, 1), np.float32)}


def test_outputs_come_in_model_order() -> None:
    session = monograph.load(affine())
    y, same = session.run(feeds())
    assert y.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert same.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_outputs_can_be_chosen_by_name() -> None:
    session = monograph.load(affine())
    (same, y) = session.run(feeds(), ["same", "y"])
    assert y[0].tolist() == [1, 2, 3]
    assert same[0].tolist() == [1, 1, 1]
    with pytest.raises(FeedError, match="no such output") as e:
        session.run(feeds(), ["sane"])
    assert e.value.hint == "did you mean same?"
    with pytest.raises(FeedError, match="sequence of names") as e:
        session.run(feeds(), "same")
    assert e.value.expected == "['same']"


def test_a_model_loads_from_a_path_bytes_or_a_proto(tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    path.write_bytes(affine().SerializeToString())
    for source in (path, str(path), path.read_bytes(), affine()):
        assert monograph.load(source).run(feeds())[0].shape == (2, 3)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    path.write_bytes(affine().SerializeToString())
    with pytest.raises(ModelError, match="a model must be a path") as e:
        monograph.load(3)  # type: ignore[arg-type]
    assert e.value.given == "int"
    with path.open("rb") as file, pytest.raises(ModelError, match="a model must be a path") as e:
        monograph.load(file)  # type: ignore[arg-type]
    assert "read()" in str(e.value)


def test_ports_tell_names_types_and_symbols() -> None:
    session = monograph.load(affine())
    assert [str(p) for p in session.inputs] == ["x: f32[N, 3]", "b: f32[N, 1]"]
    assert [p.name for p in session.outputs] == ["y", "same"]
    assert session.outputs[0].shape == ("N", 3)
    assert session.outputs[0].dtype is not None
    assert session.outputs[0].dtype.name == "f32"


def test_outputs_keep_the_names_that_the_model_declares() -> None:
    """The number of non-zero elements cannot be inferred; the file has a name for it."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    inputs = [("x", TensorProto.FLOAT, ["N", 3])]
    shapes = {"found": "found", None: "~y_1", 7: 7, "N": "N"}
    for declared, shown in shapes.items():
        model = model_of([node], inputs, [("y", TensorProto.INT64, [2, declared])])
        assert monograph.load(model).outputs[0].shape == (2, shown)
    assert monograph.load(model, dims={"N": 5}).outputs[0].shape == (2, 5)
    same = helper.make_node("Neg", ["x"], ["y"])
    unnamed = ("x", TensorProto.FLOAT, [None]), ("y", TensorProto.FLOAT, [None])
    assert monograph.load(model_of([same], unnamed[:1], unnamed[1:])).outputs[0].shape == ("~x_0",)


def test_dims_bind_symbols() -> None:
    session = monograph.load(affine(), dims={"N": 5})
    assert session.outputs[0].shape == (5, 3)
    with pytest.raises(FeedError, match="not 5"):
        session.run(feeds(2))
    with pytest.raises(ConfigError, match="no such dimension"):
        monograph.load(affine(), dims={"M": 5})
    assert monograph.load(affine(), dims={"N": np.int64(5)}).inputs == session.inputs
    for wrong in (-5, "5", 5.0, True, None):
        with pytest.raises(ConfigError, match="a dimension is a size") as e:
            monograph.load(affine(), dims={"N": wrong})  # type: ignore[dict-item]
        assert e.value.given == f"N: {wrong!r}"
    with pytest.raises(ConfigError, match="dims maps names to sizes") as e:
        monograph.load(affine(), dims={5: 1})  # type: ignore[dict-item]
    assert e.value.given == "5"
    with pytest.raises(ConfigError, match="dims is a mapping"):
        monograph.load(affine(), dims=["N"])  # type: ignore[arg-type]


def test_shapes_may_vary_between_calls() -> None:
    session = monograph.load(affine())
    for n in (1, 4, 0, 2):
        assert session.run(feeds(n))[0].shape == (n, 3)


def test_outputs_are_fresh_arrays() -> None:
    session = monograph.load(affine())
    given = feeds()
    _, same = session.run(given)
    same[:] = 9
    assert given["x"][0, 0] == 1
    assert session.run(given)[1][0, 0] == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"b": ...}, "b: missing (expected f32[N, 1])"),
        ({"b": None}, "b: expected f32[N, 1], given None"),
        ({"c": np.zeros(1)}, "c: the model has no such input"),
        (
            {"x": np.ones((2, 3))},
            "x: expected f32[N, 3], given f64[2, 3] (cast it with .astype(np.float32))",
        ),
        ({"x": [[True, False, True]]}, "bool[1, 3] (make it with np.array(..., np.float32))"),
        ({"x": [[2**24 + 1, 2, 3]]}, "given i64[1, 3] (integers must be exact in f32)"),
        ({"x": [[1.0, 2.0], [3.0]]}, "given a list that is no array: of mixed kinds, or of uneven"),
        ({"xx": np.zeros(1)}, "xx: the model has no such input (did you mean x?)"),
        ({"x": np.ones((2, 3, 1), np.float32)}, "given rank 3: [2, 3, 1]"),
        ({"x": np.ones((2, 4), np.float32)}, "dimension 1 is 4, not 3"),
        ({"x": np.ones((5, 3), np.float32)}, "b: dimension 0 is 2, but 'N' is 5 in x dimension 0"),
        ({"x": object()}, "x: expected f32[N, 3], given object"),
        ({"x": np.array(["a"])}, "x: expected f32[N, 3], given str[1]"),
        ({"x": np.zeros(2, "datetime64[s]")}, "given an array of datetime64[s]"),
    ],
)
def test_feeds_that_do_not_fit_are_shown(change, expected: str) -> None:
    given = {k: v for k, v in (feeds() | change).items() if v is not ...}
    with pytest.raises(FeedError) as e:
        monograph.load(affine()).run(given)
    assert expected in str(e.value)


def test_the_byte_order_of_feeds_does_not_matter() -> None:
    given = {name: x.astype(x.dtype.newbyteorder(">")) for name, x in feeds().items()}
    y, _ = monograph.load(affine()).run(given)
    assert y.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert y.dtype.isnative


def test_scalars_of_numpy_are_taken_every_time() -> None:
    """They have a shape and a dtype, as arrays do, but no memory that outlives a look at it."""
    number = TensorProto.FLOAT
    nodes = [helper.make_node("Add", ["x", "a"], ["s"]), helper.make_node("Mul", ["s", "b"], ["y"])]
    model = model_of(nodes, [(n, number, []) for n in "xab"], [("y", number, [])])
    session = monograph.load(model, target="cpu")
    for i in range(4):
        (y,) = session.run({"x": np.array(0, np.float32), "a": np.float32(i), "b": np.float32(10)})
        assert y == 10 * i


def test_what_can_become_an_array_is_taken_every_time() -> None:
    class Wrapped:
        shape, dtype = (2, 3), np.dtype(np.float32)

        def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
            return np.ones(self.shape, self.dtype)

    session = monograph.load(affine(), target="cpu")
    for given in (feeds(), feeds() | {"x": Wrapped()}, feeds() | {"x": Wrapped()}):
        assert session.run(given)[0].tolist() == [[1, 2, 3], [1, 2, 3]]


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(FeedError) as e:
        monograph.load(affine()).run({"x": np.ones((2, 4)), "z": np.zeros(1)})
    for part in ("x: expected", "b: missing", "z: the model has no such input"):
        assert part in str(e.value)


def test_feeds_must_be_a_mapping() -> None:
    with pytest.raises(FeedError, match="mapping"):
        monograph.load(affine()).run([np.ones((2, 3))])  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_an_array_is_no_mapping_at_any_time(target: str) -> None:
    model = model_of(
        [helper.make_node("Neg", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 3])],
    )
    session = monograph.load(model, target=target)
    x = np.ones((1, 3), np.float32)  # as long as there are inputs
    for _ in range(3):
        for start in (session.run, session.run_async):
            with pytest.raises(FeedError, match="a mapping from names"):
                start(x)  # type: ignore[arg-type]
        session.run({"x": x})


def test_donation_is_checked_and_leaves_the_callers_array_alone() -> None:
    session = monograph.load(affine(), donate={"y": "x"})
    assert session.graph.donations == (("y", "x"),)
    given = feeds()
    session.run(given)
    assert (given["x"] == 1).all()
    with pytest.raises(ConfigError, match="cannot be written into"):
        monograph.load(affine(), donate={"y": "b"}, dims={"N": 2})
    with pytest.raises(ConfigError, match="names outputs that the model does not have") as e:
        monograph.load(affine(), donate={"nothing": "b"})
    assert e.value.expected == ["y", "same"]
    with pytest.raises(ConfigError, match="names inputs that the model does not have"):
        monograph.load(affine(), donate={"y": "w"})
    with pytest.raises(ConfigError, match="several outputs into one input"):
        monograph.load(affine(), donate={"y": "x", "same": "x"})
    for wrong in ({"y": ["x"]}, {5: "x"}, {"y": None}):
        with pytest.raises(ConfigError, match="donate maps names of outputs to names of inputs"):
            monograph.load(affine(), donate=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="donate is a mapping"):
        monograph.load(affine(), donate=["y"])  # type: ignore[arg-type]


def test_reference_ignores_defaults_of_targets_that_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONOGRAPH_SPECIALISE", "off")
    monkeypatch.setenv("MONOGRAPH_CAPTURE", "require")
    assert make_config(target="reference").specialise == "auto"
    assert make_config(target="cpu").specialise == "off"
    with pytest.raises(ConfigError, match="needs a device"):
        make_config(target="reference", specialise="off")


def test_the_cpu_is_the_default_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert monograph.load(affine()).config.target == "cpu"
    assert monograph.load(affine(), "reference").config.target == "reference"
    monkeypatch.setenv("MONOGRAPH_TARGET", "reference")
    session = monograph.load(affine())
    session.run(feeds())
    assert session.config.target == "reference"
    assert session.stats["compiled"] == 0


def test_unknown_options_and_targets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such target"):
        monograph.load(affine(), target="tpu")
    with pytest.raises(ConfigError, match="no such option"):
        monograph.load(affine(), thread=3)
    with pytest.raises(ConfigError, match="max_cached_shapes"):
        monograph.load(affine(), max_cached_shapes=0)
    for wrong in ({"threads": "x"}, {"threads": 1.0}, {"threads": True}, {"optimise": 1}):
        with pytest.raises(ConfigError, match="must be of type") as e:
            monograph.load(affine(), **wrong)
        assert e.value.given == repr(*wrong.values())
    assert type(monograph.load(affine(), threads=np.int32(2)).config.threads) is int
    assert monograph.load(affine(), cache_dir=Path("a")).config.cache_dir == "a"
    monkeypatch.setenv("MONOGRAPH_MAX_CACHED_SHAPES", "3")
    assert monograph.load(affine()).config.max_cached_shapes == 3
    monkeypatch.setenv("MONOGRAPH_MAX_CACHED_SHAPES", "many")
    with pytest.raises(ConfigError, match="MONOGRAPH_MAX_CACHED_SHAPES"):
        monograph.load(affine())


def test_every_unsupported_op_is_reported_at_once() -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["a"], "first", domain="my.domain"),
        helper.make_node("Strange", ["a"], ["c"], "second", domain="my.domain"),
        helper.make_node("Odd", ["c"], ["y"], "third", domain="my.domain"),
    ]
    model = model_of(nodes, [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, [1])])
    model.opset_import.append(helper.make_opsetid("my.domain", 3))
    with pytest.raises(UnsupportedError) as e:
        monograph.load(model)
    text = str(e.value)
    assert "my.domain.Odd (opset 3) x1: third" in text
    assert "my.domain.Strange (opset 3) x2: first, second" in text
    assert "what to do" in text


def test_a_rank_that_only_the_feeds_decide_is_imported_late() -> None:
    # The input declares no shape, and Transpose needs its rank.
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["y"])],
        "g",
        [info],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    session = monograph.load(model, max_cached_shapes=2)
    for shape in ((2, 3), (4, 5, 6), (7,), (2, 3)):
        assert session.run({"x": np.zeros(shape, np.float32)})[0].shape == shape[::-1]
    assert session.stats["compiled"] == 2
    with pytest.raises(ModelError, match="rank of a tensor"):
        session.graph  # noqa: B018


def test_a_graph_can_go_through_the_pipeline_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = monograph.load(affine(), target="reference")
    optimised = monograph.load(affine(), target="reference", optimise=True)
    for rows in (2, 5, 2):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        feeds = {"x": x, "b": np.ones((rows, 1), np.float32)}
        for a, b in zip(plain.run(feeds), optimised.run(feeds), strict=True):
            np.testing.assert_array_equal(a, b)
        graph = optimised.graph_for(feeds)
        assert all(t.is_static for t in graph.input_types)
        assert optimised.bound_graph(feeds).input_types == graph.input_types
    assert len(optimised._bindings.graphs) == 2
    monkeypatch.setenv("MONOGRAPH_OPTIMISE", "true")
    assert monograph.load(affine()).config.optimise is True
    monkeypatch.setenv("MONOGRAPH_OPTIMISE", "perhaps")
    with pytest.raises(ConfigError, match="MONOGRAPH_OPTIMISE"):
        monograph.load(affine())


def test_what_a_session_is_can_be_read() -> None:
    session = monograph.load(affine(), target="cpu", threads=2, cache_dir="")
    given = feeds()
    assert repr(session).startswith("Session(cpu, threads=2: (x: f32[")
    executable = session.executable(given)
    assert "kernels=" in repr(executable)
    assert f"threads={executable.threads}" in repr(executable)
    assert session.stats["threads"] == executable.threads == 1, "so little work is for one"
    assert repr(monograph.load(affine(), target="reference")).startswith("Session(reference: (x:")


def test_threads_may_share_a_session() -> None:
    session = monograph.load(affine())

    def once(i: int) -> bool:
        x = np.full((i % 3 + 1, 3), i, np.float32)
        y, _ = session.run({"x": x, "b": np.zeros((len(x), 1), np.float32)})
        return bool((y == x * [1, 2, 3]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(once, range(200)))


def test_choosing_among_many_outputs_takes_time_in_proportion() -> None:
    count = 500
    nodes = [helper.make_node("Relu", ["x"], [f"y{i}"]) for i in range(count)]
    outputs = [(f"y{i}", TensorProto.FLOAT, [1]) for i in range(count)]
    session = monograph.load(model_of(nodes, [("x", TensorProto.FLOAT, [1])], outputs))
    wanted = [CountedName(f"y{i}") for i in range(count)]
    fed = {"x": np.ones(1, "f4")}
    assert touches_of(lambda: session.run(fed, wanted)) < 10 * count
