"""Ops of Monograph's own domain, and a cache inside a loop."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import monograph
from monograph.ops.control import Loop

LENGTH, SIZE = 8, 4


def test_cache_update_writes_each_row_at_its_start() -> None:
    make = helper.make_tensor_value_info
    node = helper.make_node("CacheUpdate", ["cache", "new", "starts"], ["y"], axis=2)
    node.domain = "monograph"
    shape = [2, 1, LENGTH, SIZE]
    graph = helper.make_graph(
        [node],
        "update",
        [
            make("cache", TensorProto.FLOAT, shape),
            make("new", TensorProto.FLOAT, [2, 1, 2, SIZE]),
            make("starts", TensorProto.INT64, [2]),
        ],
        [make("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("monograph", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    cache = np.zeros(shape, np.float32)
    new = np.arange(2 * 2 * SIZE, dtype=np.float32).reshape(2, 1, 2, SIZE)
    expected = cache.copy()
    expected[0, :, 1:3], expected[1, :, 6:8] = new[0], new[1]
    for target in ("reference", "cpu"):
        session = monograph.load(model, target=target)
        (y,) = session.run({"cache": cache, "new": new, "starts": np.array([1, 6])})
        np.testing.assert_array_equal(y, expected)


def test_a_cache_of_grouped_attention_keeps_its_size_in_a_loop() -> None:
    """Its length is known to be enough: nothing is padded, and every turn has the same types."""
    make, floats, ints = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT32
    cache = [1, 1, LENGTH, SIZE]
    attention = helper.make_node(
        "GroupQueryAttention",
        ["x", "x", "x", "keys", "values", "last", "total"],
        ["y", "new_keys", "new_values"],
        domain="com.microsoft", num_heads=1, kv_num_heads=1,
    )  # fmt: skip
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["i32"], to=ints),
            helper.make_node("Reshape", ["i32", "one"], ["last"]),
            attention,
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [
            make("i", TensorProto.INT64, []),
            make("go", TensorProto.BOOL, []),
            make("x", floats, [1, 1, SIZE]),
            make("keys", floats, cache),
            make("values", floats, cache),
        ],
        [
            make("still", TensorProto.BOOL, []),
            make("y", floats, [1, 1, SIZE]),
            make("new_keys", floats, cache),
            make("new_values", floats, cache),
        ],
    )
    loop = helper.make_node(
        "Loop", ["turns", "", "first", "k", "v"], ["last_x", "last_k", "last_v"], body=body
    )
    names = {"first": [1, 1, SIZE], "k": cache, "v": cache}
    graph = helper.make_graph(
        [loop],
        "loop",
        [make(n, floats, s) for n, s in names.items()],
        [make(n, floats, s) for n, s in (("last_x", [1, 1, SIZE]), ("last_k", cache))],
        [
            helper.make_tensor("turns", TensorProto.INT64, [], [5]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("total", ints, [], [LENGTH]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    feeds = {n: np.full(s, 0.5, np.float32) for n, s in names.items()}
    sessions = {t: monograph.load(model, target=t) for t in ("reference", "cpu")}
    (value,) = [v for v in sessions["reference"].graph.values if isinstance(v.op, Loop)]
    assert [str(t) for t in value.op.body.input_types[2:5]] == [  # type: ignore[attr-defined]
        f"f32[1, 1, {SIZE}]",
        f"f32[1, 1, {LENGTH}, {SIZE}]",
        f"f32[1, 1, {LENGTH}, {SIZE}]",
    ]
    expected, found = (s.run(feeds) for s in sessions.values())
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert sessions["cpu"].stats["launches_per_run"] == 1
