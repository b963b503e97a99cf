"""Models that ask for far more memory or time than their files suggest."""

from __future__ import annotations

import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import monograph
from monograph.errors import ExecutionError, InferError, ModelError, MonographError
from monograph.ir import Input, constant, evaluate, tensor
from monograph.ir.dtype import f32
from monograph.ir.graph import Graph
from monograph.ir.memory import MAX_RANK, MAX_TENSOR_BYTES, check_result, lend
from monograph.ops.image import DecodeImage
from monograph.ops.shape import Broadcast
from tests.effort import at_most, check_linear
from tests.frontend.untrusted.hostile import CALLS, info, model, refused

HUGE = 2**50
LARGE = 10**9
"""Elements that a type may have, but that no import should touch."""


def node(op: str, inputs: list[str], outputs=("t",), **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, list(outputs), **attributes)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: int | float, kind: type = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(value, kind), name)


def growing(size: int) -> dict[str, tuple[list[onnx.NodeProto], list[TensorProto]]]:
    """Ops that make much of little, each with constants that ask for `size` elements."""
    one = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "one")
    vector = numpy_helper.from_array(np.ones(1, np.float32), "vector")
    return {
        "Expand": ([node("Expand", ["one", "s"])], [one, ints("s", size)]),
        "ConstantOfShape": ([node("ConstantOfShape", ["s"])], [ints("s", size)]),
        "Tile": ([node("Tile", ["one", "s"])], [one, ints("s", 1, 1, 1, size)]),
        "Range": (
            [node("Range", ["a", "b", "c"])],
            [scalar("a", 0), scalar("b", size), scalar("c", 1)],
        ),
        "Pad": ([node("Pad", ["vector", "s"])], [vector, ints("s", size, 0)]),
        "Resize": (
            [node("Resize", ["one", "", "", "s"], mode="nearest")],
            [one, ints("s", 1, 1, 1, size)],
        ),
        "OneHot": (
            [node("OneHot", ["i", "s", "v"])],
            [ints("i", 0), scalar("s", size), numpy_helper.from_array(np.ones(2, np.float32), "v")],
        ),
        "EyeLike": (
            [node("ConstantOfShape", ["s"], ["z"]), node("EyeLike", ["z"])],
            [ints("s", 1, size)],
        ),
        "RandomUniform": ([node("RandomUniform", [], shape=[size])], []),
        "HannWindow": ([node("HannWindow", ["s"])], [scalar("s", size)]),
        "Broadcasting": (
            [
                node("ConstantOfShape", ["s"], ["a"]),
                node("ConstantOfShape", ["r"], ["b"]),
                node("Add", ["a", "b"]),
            ],
            [ints("s", 1, 1000), ints("r", size // 1000, 1)],
        ),
        "Gather": (
            [
                node("ConstantOfShape", ["s"], ["i"], value=ints("", 0)),
                node("Gather", ["one", "i"]),
            ],
            [one, ints("s", size)],
        ),
        "ConvTranspose": (
            [
                node(
                    "ConvTranspose", ["one", "one"], strides=[1, size], output_padding=[0, size - 1]
                )
            ],
            [one],
        ),
        "AveragePool": (
            [node("AveragePool", ["one"], kernel_shape=[1, 1], pads=[0, size // 2, 0, size // 2])],
            [one],
        ),
    }


def load(nodes: list[onnx.NodeProto], weights: list[TensorProto]) -> monograph.Session:
    summed = helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0)
    output = onnx.ValueInfoProto(name="y")
    return monograph.load(model([*nodes, summed], inputs=[], outputs=[output], initializer=weights))


@pytest.fixture
def little_memory():
    """Of address space, so that a large allocation fails instead of being granted lazily."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", growing(HUGE))
def test_impossible_sizes_are_refused(name, little_memory):
    """A petabyte is refused when the model is loaded."""
    nodes, weights = growing(HUGE)[name]
    with refused("too large", f"at most {MAX_TENSOR_BYTES:,} bytes", "node: "):
        load(nodes, weights)


@pytest.mark.parametrize("name", growing(LARGE))
def test_loading_does_not_compute_large_constants(name, little_memory):
    """A large but possible size is left for the run; with little memory that is an error."""
    with at_most(CALLS):
        session = load(*growing(LARGE)[name])
    with refused("node: ", error=ExecutionError):
        session.run({})


def test_sizes_from_the_feeds_are_checked_too(little_memory):
    x = helper.make_tensor_value_info("s", TensorProto.INT64, [2])
    made = model(
        [node("ConstantOfShape", ["s"]), node("ReduceSum", ["t"], ["y"], keepdims=0)],
        inputs=[x],
        outputs=[info("y", [])],
    )
    session = monograph.load(made)
    for shape in ([2**40, 2**40], [2**62, 2**62], [-1, 3], [2**31, 1]):
        with pytest.raises(ExecutionError):
            session.run({"s": np.array(shape, np.int64)})
    assert session.run({"s": np.array([2, 3], np.int64)})[0] == 0


def test_an_output_that_takes_no_memory_until_it_is_copied(little_memory):
    made = model(
        [node("Expand", ["x", "s"], ["y"])],
        inputs=[info("x", [1])],
        outputs=[info("y", [LARGE])],
        initializer=[ints("s", LARGE)],
    )
    with refused("out of memory for the outputs", "y: ", error=ExecutionError):
        monograph.load(made).run({"x": np.ones(1, np.float32)})


def test_types_have_limits():
    x = constant(np.float32(1))
    with pytest.raises(InferError, match="too large"):
        Broadcast((2**20, 2**20))(x)
    with pytest.raises(InferError, match="too large"):
        Broadcast((2**62, 0, 2**62))(x)
    with pytest.raises(InferError, match="too many dimensions"):
        Broadcast((1,) * (MAX_RANK + 1))(x)
    with pytest.raises(InferError, match="too large"):
        Input("x", tensor(f32, "N", 2**40))()


def test_declared_inputs_have_limits():
    relu = helper.make_node("Relu", ["x"], ["y"])
    with refused("too large", str(2**45)):
        monograph.load(model([relu], inputs=[info("x", [2**45])]))
    with refused("too many dimensions", "60"):
        monograph.load(model([relu], inputs=[info("x", [1] * 60)]))


def test_results_have_limits():
    check_result((2, 3), 4)
    for shape in ((MAX_TENSOR_BYTES,), (-1,), (1,) * 40, (2**62, 0, 4)):
        with pytest.raises(ExecutionError, match=r"too large|impossible"):
            check_result(shape, 4)
    with lend(100), pytest.raises(ExecutionError, match="at most 100 bytes"):
        check_result((26,), 4)


def test_a_result_that_the_machine_cannot_hold():
    value = Broadcast((2**34,))(constant(np.uint8(1)))
    with lend(1 << 20), pytest.raises(ExecutionError, match="too large") as caught:
        evaluate(Graph((), (("y", value),)), {})
    assert caught.value.op == "broadcast"


def _loop(trips: int | None) -> onnx.ModelProto:
    """A loop over nothing but constants."""
    body = helper.make_graph(
        [node("Add", ["s", "s"], ["u"]), node("Identity", ["go"], ["on"])],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("s", [])],
        [info("on", [], TensorProto.BOOL), info("u", [])],
    )
    weights = [scalar("zero", 0, np.float32)]
    if trips is not None:
        weights.append(scalar("trips", trips))
    inputs = ["" if trips is None else "trips", "", "zero"]
    return model(
        [helper.make_node("Loop", inputs, ["y"], body=body)],
        inputs=[],
        outputs=[info("y", [])],
        initializer=weights,
    )


@pytest.mark.parametrize("trips", [2**62, 10**8, None])
def test_endless_loops_of_constants_are_not_run_while_loading(trips):
    with at_most(CALLS):
        monograph.load(_loop(trips))


def test_nested_loops_that_change_their_state():
    """Every loop takes two rounds to settle its types, so that nesting doubles the work."""

    def free(name: str, kind: int = TensorProto.FLOAT, shape=None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inner = None
    for i in range(28):
        work = node("Concat", [f"s{i}", f"s{i}"], [f"t{i}"], axis=0)
        if inner is not None:
            work = node("Loop", ["trips", "", f"s{i}"], [f"t{i}"], body=inner)
        inner = helper.make_graph(
            [node("Identity", [f"go{i}"], [f"on{i}"]), work],
            f"body{i}",
            [
                free(f"i{i}", TensorProto.INT64, []),
                free(f"go{i}", TensorProto.BOOL, []),
                free(f"s{i}"),
            ],
            [free(f"on{i}", TensorProto.BOOL, []), free(f"t{i}")],
        )
    outer = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=inner)
    made = model([outer], [info("x", ["N"])], [free("y")], initializer=[scalar("trips", 1)])
    with at_most(5_000_000):
        try:
            monograph.load(made.SerializeToString())
        except ModelError as e:
            assert "Loop" in str(e)  # noqa: PT017 (both outcomes are right)


def test_size_arithmetic_over_a_wide_graph_is_not_quadratic():
    """Layers of sums of sizes, each of which reads two of the layer before."""
    width, depth = 60, 60
    nodes = [helper.make_node("Shape", ["x"], ["l0_0"])]
    nodes += [helper.make_node("Neg", ["l0_0"], [f"l0_{i}"]) for i in range(1, width)]
    for d in range(1, depth):
        for i in range(width):
            pair = [f"l{d - 1}_{i}", f"l{d - 1}_{(i * 7 + d) % width}"]
            nodes.append(helper.make_node("Mul", pair, [f"l{d}_{i}"]))
    out = helper.make_tensor_value_info(f"l{depth - 1}_0", TensorProto.INT64, [1])
    with at_most(700 * width * depth):
        monograph.load(model(nodes, inputs=[info("x", ["N"])], outputs=[out]))


def test_a_regular_expression_cannot_hang():
    """A pattern that takes a backtracking matcher time exponential in the length of the text."""
    made = model(
        [helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=r"(a+)+b")],
        inputs=[info("x", ["N"], TensorProto.STRING)],
        outputs=[info("y", ["N"], TensorProto.BOOL)],
    )
    with at_most(CALLS):
        try:
            (result,) = monograph.load(made).run({"x": np.array(["a" * 40], object)})
            assert not result[0]
        except MonographError:
            pass  # refusing such a pattern is right as well


@pytest.mark.parametrize(
    ("limit", "delta"), [(1e30, 1e-30), (np.inf, 1.0), (1.0, 0.0), (2.0**70, 1.0)]
)
def test_an_endless_range_is_not_an_empty_one(limit, delta):
    numbers = [scalar(n, v, np.float32) for n, v in zip("abc", (0, limit, delta), strict=True)]
    with refused("too large"):
        load([node("Range", ["a", "b", "c"])], numbers)


def test_messages_stay_short():
    """A message shows what was given, and a file may give a million numbers."""
    many = numpy_helper.from_array(np.zeros(10**6, np.int64), "s")
    with pytest.raises(ModelError) as caught:
        load([node("Split", ["x", "s"], ["t"])], [many, ints("x", 1)])
    assert len(str(caught.value)) < 10_000


def test_wide_graphs_load_and_run_in_linear_time():
    def load_and_run(count: int) -> None:
        names = [f"i{k}" for k in range(count)]
        made = model([node("Max", names, ["y"])], inputs=[info(n, [1]) for n in names])
        feeds = {n: np.full(1, k, np.float32) for k, n in enumerate(names)}
        assert monograph.load(made).run(feeds)[0].tolist() == [count - 1]

    check_linear(load_and_run, 5_000)


def _png(width: int, height: int, body: bytes | None = None) -> np.ndarray:
    """A grey PNG of one bit a pixel: a few kilobytes for a hundred million pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", rows) if body is None else body]
    return np.frombuffer(b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b""), np.uint8)


def test_an_image_is_not_larger_than_what_is_lent():
    pytest.importorskip("PIL")
    assert DecodeImage().reference(_png(16, 8)).shape == (8, 16, 3)
    with lend(1 << 16), refused("too large", "9000", error=ExecutionError):
        DecodeImage().reference(_png(9_000, 9_000))
    with refused("1600000000 pixels", error=ExecutionError):
        DecodeImage().reference(_png(40_000, 40_000))


@pytest.mark.parametrize("body", [b"", b"junk", struct.pack(">I", 9) + b"IDAT" + b"123456789" * 2])
def test_broken_images(body):
    pytest.importorskip("PIL")
    with refused("not an image that can be decoded", error=ExecutionError):
        DecodeImage().reference(_png(16, 8, body))


def test_a_type_is_not_walked_element_by_element():
    """A declared size costs nothing to state, and must cost nothing to read."""
    grid = node("AffineGrid", ["theta", "s"], ["y"])
    made = model([grid], inputs=[info("theta", [1, 2**31, 3])], initializer=[ints("s", 1, 1, 2, 2)])
    with refused("theta must be"):
        monograph.load(made)
