from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
from rich.console import Console

from monograph.errors import ModelError
from monograph.report.commands.inspect import inspect_model
from monograph.report.render.tables import inspection_json, show_inspection
from tests.report import models


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def shown(found: object) -> str:
    console = Console(width=100, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    show_inspection(console, "m.onnx", found)  # type: ignore[arg-type]
    return console.export_text()


def test_a_supported_model():
    found = inspect_model(parse(models.LINEAR))
    assert found.supported
    assert found.opsets == {"ai.onnx": 18}
    assert found.producer == "tests 1"
    assert [(p.name, p.dtype, p.shape) for p in found.inputs] == [("x", "f32", ("N", 3))]
    assert [(p.name, p.dtype, p.shape) for p in found.outputs] == [
        ("y", "f32", ("N", 2)),
        ("best", "i64", (1,)),
    ]
    assert found.nodes == 5
    assert found.ops == {"Add": 1, "ArgMax": 1, "Constant": 1, "MatMul": 1, "ReduceSum": 1}
    assert found.canonical is not None
    assert found.canonical["dot"] == 1
    assert found.dimensions == {"N": ["x[0]"]}
    # The initialisers, 6 and 2 floats; the attribute list of a Constant is no tensor.
    assert (found.parameters, found.bytes) == (8, 32)
    assert "Every op is supported." in shown(found)


def test_unsupported_ops_are_listed_at_once():
    found = inspect_model(parse(models.UNSUPPORTED))
    assert not found.supported
    assert found.canonical is None
    assert [(m.domain, m.name, len(m.nodes)) for m in found.missing] == [
        ("acme", "Frobnicate", 2),
        ("acme", "Twist", 1),
    ]
    assert [p.shape for p in found.outputs] == [(2,)]
    text = shown(found)
    assert "acme.Frobnicate" in text
    assert "What to do: export the model with other ops" in text
    assert inspection_json("m.onnx", found)["unsupported"][0]["count"] == 2


def test_sub_graphs_are_counted():
    found = inspect_model(parse(models.BRANCH))
    assert found.ops == {"Exp": 1, "If": 1, "Mul": 1}
    assert found.parameters == 2
    assert found.canonical is not None
    assert {"exp", "mul"} <= set(found.canonical)


def test_random_ops_are_named():
    assert inspect_model(parse(models.RANDOM)).random
    assert inspect_model(parse(models.LINEAR)).random == []


def test_a_model_that_contradicts_itself_is_described_with_the_reason():
    found = inspect_model(parse(models.CONTRADICTORY))
    assert not found.supported
    assert found.missing == ()
    assert isinstance(found.problem, ModelError)
    assert "cannot be imported" in shown(found)


def test_functions_and_packed_weights():
    model = parse("""
        <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 21]>
        twice (a) => (b) { b = Add(a, a) }
    """)
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [3], [1, 2, 3])
    model.graph.initializer.append(weight)
    found = inspect_model(model)
    assert found.functions == 1
    assert found.ops == {"Add": 1, "local.twice": 1}
    assert [(w.dtype, w.elements, w.bytes) for w in found.weights] == [("i4", 3, 2)]


def test_an_output_without_a_type_is_inferred():
    model = parse(models.LINEAR)
    model.graph.output[0].ClearField("type")
    assert inspect_model(model).outputs[0].shape == ("N", 2)


def test_open_dimensions_of_paddle_exports_are_not_names():
    model = parse(models.LINEAR)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert inspect_model(model).inputs[0].shape == ("~x_0", 3)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "?"
    assert inspect_model(model).inputs[0].shape == ("~x_0", 3)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -2
    assert inspect_model(model).inputs[0].shape == ("~x_0", 3)


def test_ops_on_the_host_are_named_with_the_reason():
    model = parse(
        """
        <ir_version: 9, opset_import: ["": 20]>
        g (string[2] a, string[2] b, float[2] x) => (bool[2] same, float[2] y) {
            both = StringConcat(a, b)
            same = Equal(both, b)
            y = Exp(x)
        }
        """
    )
    found = inspect_model(model)
    assert found.host == {"string_concat": "strings", "equal": "strings"}
    assert inspection_json("m.onnx", found)["host_ops"] == found.host
    assert "on the host" in shown(found)
    assert "on the host" not in shown(inspect_model(parse(models.LINEAR)))
