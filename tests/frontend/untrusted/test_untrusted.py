"""Model files whose structure is broken or hostile: each is refused, soon and by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import monograph
from monograph.frontend.onnx import read_model
from monograph.frontend.onnx.validate import MAX_GRAPH_NESTING, MAX_NAME
from tests.effort import at_most
from tests.frontend.untrusted.hostile import info, model, refused, spoil, subgraph

relu = helper.make_node("Relu", ["x"], ["y"], name="only")
fine = model([relu])


def test_the_model_that_the_others_spoil_is_fine():
    assert read_model(fine).opsets == {"": 21}
    assert read_model(fine.SerializeToString()).proto == fine


# Files


@pytest.mark.parametrize("raw", [b"\xff\xff", b"not a model", fine.SerializeToString()[:-3]])
def test_bytes_that_do_not_parse(raw):
    with refused("not an ONNX model", "the given bytes"):
        read_model(raw)


def test_no_graph():
    with refused("there is no graph in it"):
        read_model(onnx.ModelProto(ir_version=8).SerializeToString())


def test_files_that_cannot_be_read(tmp_path: Path):
    with refused("cannot be read", "absent.onnx"):
        read_model(tmp_path / "absent.onnx")
    with refused("cannot be read", str(tmp_path)):
        read_model(tmp_path)
    with refused("cannot be read", "null"):
        read_model("a\0b")


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.onnx")
    with refused("not a plain file", "pipe.onnx"):
        read_model(tmp_path / "pipe.onnx")
    with refused("not a plain file"):
        read_model("/dev/zero")


def test_a_file_larger_than_protobuf_takes_is_not_read(tmp_path: Path):
    """A hole of a terabyte takes no room on the disk."""
    path = tmp_path / "hole.onnx"
    path.touch()
    os.truncate(path, 1 << 40)
    with refused("too large", "2,147,483,647", "external data"):
        read_model(path)


def test_a_proto_without_graph():
    with refused("there is no graph in it", "ModelProto"):
        read_model(onnx.ModelProto())


# Names


def test_duplicate_names():
    twice = [relu, helper.make_node("Abs", ["x"], ["y"], name="second")]
    with refused("defined twice", "'y'", "second"):
        read_model(model(twice))
    with refused("defined twice", "'x'", "input"):
        read_model(model([relu], inputs=[info("x"), info("x")]))
    with refused("defined twice", "'x'", "output"):
        read_model(model([helper.make_node("Relu", ["x"], ["x"])], outputs=[info("x")]))
    with refused("two outputs share a name", "y"):
        read_model(model([relu], outputs=[info("y"), info("y")]))
    w = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse = helper.make_sparse_tensor(w, indices, [4])
    with refused("two initialisers share a name", "w"):
        read_model(model([relu], initializer=[w], sparse_initializer=[sparse]))
    with refused("defined twice", "'w'"):
        read_model(model([helper.make_node("Relu", ["x"], ["w"]), relu], initializer=[w]))


def test_an_initialiser_may_be_an_inputs_default():
    x = helper.make_tensor("x", TensorProto.FLOAT, [2], [1.0, -1.0])
    assert monograph.load(model([relu], initializer=[x])).run({})[0].tolist() == [1.0, 0.0]


def test_a_subgraph_redefines_a_name_that_it_captured():
    inner = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Abs", ["t"], ["x"])]
    branch = subgraph(inner, "x")
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [info("x"), info("c", [], TensorProto.BOOL)]
    with refused("defined twice", "'x'"):
        read_model(model([node], inputs))


def test_dangling_names():
    with refused("nothing before it defines", "ghost", "only"):
        read_model(model([helper.make_node("Relu", ["ghost"], ["y"], name="only")]))
    with refused("an output is not defined", "y"):
        read_model(model([helper.make_node("Relu", ["x"], ["z"])]))
    with refused("the graph has no outputs"):
        read_model(model([relu], outputs=[]))
    inner = subgraph([helper.make_node("Relu", ["ghost"], ["z"], name="deep")])
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    with refused("nothing before it defines", "ghost", "deep"):
        read_model(model([node]))


def test_a_name_of_a_subgraph_is_not_seen_outside():
    inner = subgraph([helper.make_node("Relu", ["x"], ["z"])])
    node = helper.make_node("If", ["x"], ["t"], then_branch=inner, else_branch=inner)
    with refused("nothing before it defines", "z", "after"):
        read_model(model([node, helper.make_node("Relu", ["z"], ["y"], name="after")]))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.graph.input[0], "name", ""),
        lambda m: setattr(m.graph.output[0], "name", ""),
        lambda m: setattr(m.graph.node[0], "op_type", ""),
        lambda m: m.graph.initializer.add(data_type=1),
        lambda m: m.graph.node[0].attribute.add(type=2, i=1),
        lambda m: m.functions.add(domain="d"),
    ],
)
def test_missing_names(change):
    with refused("has no name"):
        read_model(spoil(fine, change))


@pytest.mark.parametrize("place", ["input", "output", "op_type", "name", "domain", "dim_param"])
def test_names_that_are_not_text(place):
    made = model([helper.make_node("Relu", ["x"], ["y"], domain="dddd")], opsets={"dddd": 1})
    node = made.graph.node[0]
    if place == "dim_param":
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "mark"
    elif place in ("input", "output"):
        getattr(node, place)[0] = "mark"
    else:
        setattr(node, place, "mark")
    raw = made.SerializeToString()
    assert raw.count(b"mark") == 1
    with refused("not UTF-8", r"b'm\xffrk'"):
        read_model(raw.replace(b"mark", b"m\xffrk"))


def test_a_producer_that_is_not_text():
    raw = spoil(fine, lambda m: setattr(m, "producer_name", "mark")).SerializeToString()
    with refused("the producer", "not UTF-8"):
        read_model(raw.replace(b"mark", b"m\xffrk"))


def test_endless_names():
    with refused("too long", "zzz", str(MAX_NAME)):
        read_model(spoil(fine, lambda m: setattr(m.graph.node[0], "name", "z" * 10**6)))


# Order


def test_a_cycle_is_named():
    ring = [
        helper.make_node("Add", ["x", "c"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Abs", ["b"], ["c"], name="third"),
        helper.make_node("Abs", ["c"], ["y"]),
    ]
    with refused("the graph has a cycle", "first -> second -> third -> first"):
        read_model(model(ring))
    with refused("the graph has a cycle", "self -> self"):
        read_model(model([helper.make_node("Relu", ["y"], ["y"], name="self")]))


def test_a_cycle_through_a_subgraph():
    inner = subgraph([helper.make_node("Relu", ["late"], ["z"])])
    nodes = [
        helper.make_node("Relu", ["y"], ["t"], name="reader"),
        helper.make_node("If", ["t"], ["y"], name="if", then_branch=inner, else_branch=inner),
        helper.make_node("Relu", ["t"], ["late"], name="maker"),
    ]
    with refused("the graph has a cycle", "reader", "if"):
        read_model(model(nodes))


def test_a_long_cycle_is_found_soon():
    count = 50_000
    nodes = [helper.make_node("Abs", [f"t{(i - 1) % count}"], [f"t{i}"]) for i in range(count)]
    with refused("the graph has a cycle", "more", calls=30 * count):
        read_model(model(nodes, outputs=[info("t5")]))


# Nesting


def _nested(depth: int) -> onnx.ModelProto:
    """If in If in If ... made by hand: protobuf itself refuses to parse such a file."""
    made = spoil(fine, lambda m: m.graph.ClearField("node"))
    graph = made.graph
    for _ in range(depth):
        node = graph.node.add(op_type="If", input=["x"], output=["y"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        graph.output.add(name="y")
    graph.node.add(op_type="Relu", input=["x"], output=["y"])
    return made


def test_deep_subgraphs():
    read_model(_nested(MAX_GRAPH_NESTING - 1))
    with refused("nested too deeply", str(MAX_GRAPH_NESTING)):
        read_model(_nested(80))
    with refused("does not parse"):
        read_model(_nested(80).SerializeToString())


def test_deep_types():
    type_ = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    for _ in range(25):
        type_ = helper.make_sequence_type_proto(type_)
    made = model([relu], inputs=[info("x"), helper.make_value_info("deep", type_)])
    with refused("nested too deeply", "deep"):
        monograph.load(made)


# Opsets


def test_opsets():
    with refused("no opset is imported for the domain 'acme'", "only", "ai.onnx"):
        read_model(model([helper.make_node("Foo", ["x"], ["y"], domain="acme", name="only")]))
    with refused("too new", "ai.onnx", "given: 9999", str(onnx.defs.onnx_opset_version())):
        read_model(model([relu], opsets={"": 9999}))
    with refused("too new", "ai.onnx.ml", "given: 77"):
        read_model(model([relu], opsets={"": 21, "ai.onnx.ml": 77}))
    with refused("impossible opset", "given: -4"):
        read_model(model([relu], opsets={"": -4}))
    with refused("impossible opset of acme", str(2**40)):
        read_model(model([relu], opsets={"": 21, "acme": 2**40}))
    with refused("no opset is imported for the domain 'ai.onnx'"):
        read_model(spoil(fine, lambda m: m.ClearField("opset_import")))


def test_a_file_from_before_opsets():
    old = spoil(fine, lambda m: (m.ClearField("opset_import"), setattr(m, "ir_version", 2)))
    assert read_model(old).opsets == {"": 1}


# Attributes


def test_attributes():
    with refused("given twice", "alpha", "only"):
        read_model(
            spoil(fine, lambda m: [m.graph.node[0].attribute.add(name="alpha") for _ in "ab"])
        )
    with refused("outside of a function", "'alpha' -> 'beta'", "only"):
        read_model(
            spoil(
                fine,
                lambda m: m.graph.node[0].attribute.add(name="alpha", ref_attr_name="beta", type=1),
            )
        )
    with refused("has no graph in it", "body"):
        read_model(spoil(fine, lambda m: m.graph.node[0].attribute.add(name="body", type=5)))


# Functions


def function(name: str, nodes, outputs=("y",), inputs=("x",)) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, list(inputs), list(outputs), nodes, imports)


def call(name: str, x: str = "x", y: str = "y") -> onnx.NodeProto:
    return helper.make_node(name, [x], [y], domain="f")


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    return model([call("f0")], functions=functions, opsets={"": 21, "f": 1})


def test_recursive_functions():
    with refused("call themselves", "f0"):
        read_model(calling(function("f0", [call("f0")])))
    with refused("call themselves", "f0", "f1"):
        read_model(calling(function("f0", [call("f1")]), function("f1", [call("f0")])))


def test_recursion_through_a_subgraph():
    inner = subgraph([call("f0", y="z")])
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    with refused("call themselves", "f0"):
        read_model(calling(function("f0", [node])))


def test_functions_that_are_malformed():
    with refused("two functions share a name", "f:f0"):
        read_model(calling(function("f0", [relu]), function("f0", [relu])))
    with refused("a function's output is not defined", "missing", "'f0'"):
        read_model(calling(function("f0", [relu], outputs=["missing"])))
    with refused("nothing before it defines", "ghost", "'f0'"):
        read_model(calling(function("f0", [helper.make_node("Relu", ["ghost"], ["y"])])))
    with refused("defined twice", "'x'", "'f0'"):
        read_model(calling(function("f0", [relu], inputs=["x", "x"])))
    twice = function("f0", [relu])
    twice.attribute.extend(["a", "a"])
    with refused("declared twice", "given: a", "'f0'"):
        read_model(calling(twice))


def test_billion_laughs():
    """Each function calls the next one twice: 2^60 nodes from a file of a few kilobytes."""
    last = function("f60", [relu])
    doubling = [
        function(f"f{i}", [call(f"f{i + 1}", "x", "t"), call(f"f{i + 1}", "t", "y")])
        for i in range(60)
    ]
    with refused("too many nodes once its functions are inlined"):
        read_model(calling(*doubling, last))


def test_a_long_chain_of_functions_is_refused_soon():
    chain = [function(f"f{i}", [call(f"f{i + 1}")]) for i in range(5000)]
    with refused("nested too deeply", calls=5_000_000):
        monograph.load(calling(*chain, function("f5000", [relu])))


def test_labels_do_not_multiply():
    """A long name of a call is part of every label below it."""
    body = [helper.make_node("Abs", ["x"], ["t0"])]
    body += [helper.make_node("Abs", [f"t{i}"], [f"t{i + 1}"]) for i in range(1000)]
    made = calling(function("f0", body, outputs=["t1000"]))
    made.graph.node[0].name = "n" * MAX_NAME
    labels = {*monograph.load(made).graph.origins.values()}
    assert max(map(len, labels)) < 500


# Size


def test_large_graphs_validate_in_linear_time():
    count = 20_000
    nodes = [helper.make_node("Abs", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(count)]
    made = model(nodes, inputs=[info("t0")], outputs=[info(f"t{count}")])
    with at_most(50 * count):
        read_model(made)


@pytest.mark.slow
def test_a_chain_of_100_000_nodes_loads():
    count = 100_000
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    made = model(nodes, inputs=[info("t0")], outputs=[info(f"t{count}")])
    session = monograph.load(made.SerializeToString())
    assert len(session.graph.values) == count + 1
    x = np.array([1.5, -2], np.float32)
    assert session.run({"t0": x})[0].tolist() == x.tolist()
