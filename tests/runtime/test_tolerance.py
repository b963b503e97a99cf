from __future__ import annotations

import math

import numpy as np
import onnx.parser
import pytest
from onnx import helper

from monograph import load
from monograph.frontend.onnx import import_model, read_model
from monograph.ir import Graph, Input, Op, parse_tensor_type, tensor
from monograph.ir.dtype import f32
from monograph.ops.attention import Attention
from monograph.ops.composite import LayerNorm, RmsNorm, Softmax
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.elementwise import Add
from monograph.ops.linear import Det, Dot
from monograph.ops.pool import AveragePool, LpPool, MaxPool
from monograph.ops.reduce import CumSum, ReduceProd, ReduceSum
from monograph.ops.resize import Resize
from monograph.ops.signal import Dft
from monograph.runtime.numerics.tolerance import (
    EXACT,
    MARGIN,
    Tolerance,
    allowed_by_file,
    contraction,
    derive,
)
from tests.report import models

EPS = 2.0**-23


def tolerances(text: str) -> dict[str, Tolerance]:
    return derive(import_model(read_model(onnx.parser.parse_model(text))))


def one(body: str, inputs: str = "float[2] x", output: str = "float[2] y") -> Tolerance:
    text = f'<ir_version: 9, opset_import: ["" : 21]> g ({inputs}) => ({output}) {{ {body} }}'
    return tolerances(text)["y"]


def test_one_op_may_differ_by_one_unit():
    assert one("y = Exp(x)").rtol == pytest.approx(MARGIN * EPS)


def test_roundings_along_a_path_add_as_variances():
    assert one("a = Exp(x) b = Sin(a) y = Tanh(b)").rtol == pytest.approx(
        MARGIN * EPS * math.sqrt(3)
    )


def test_the_worst_path_counts():
    assert one("a = Exp(x) b = Sin(a) y = Add(b, x)").rtol == pytest.approx(
        MARGIN * EPS * math.sqrt(3)
    )


def test_a_contraction_counts_its_terms():
    # eps^2 for the result and 99 more for the terms
    given = one("y = MatMul(x, w)", "float[2, 100] x, float[100, 4] w", "float[2, 4] y")
    assert given.rtol == pytest.approx(MARGIN * EPS * 10)
    given = one("y = Conv(x, w)", "float[1, 4, 9, 9] x, float[8, 4, 5, 5] w", "float[1, 8, 5, 5] y")
    assert given.rtol == pytest.approx(MARGIN * EPS * 10)
    given = one("y = ReduceSum <keepdims = 0> (x)", "float[4, 25] x", "float y")
    assert given.rtol == pytest.approx(MARGIN * EPS * 10)


def test_places_of_samples_count_as_often_as_there_are_pixels():
    types = "float[1, 1, 30, 40] x, float[1, 5, 5, 2] g", "float[1, 1, 5, 5] y"
    # The result and three more terms; the places as they are scaled, and as they were computed.
    own, scaled = 4, 40**2
    given = one("y = GridSample(x, g)", *types)
    assert given.rtol == pytest.approx(MARGIN * EPS * math.sqrt(own + scaled))
    given = one("h = Sin(g) y = GridSample(x, h)", *types)
    assert given.rtol == pytest.approx(MARGIN * EPS * math.sqrt(own + 2 * scaled))


@pytest.mark.parametrize(
    ("op", "types", "count"),
    [
        (Dot(), "f32[2, 7] f32[7, 3]", 7),
        (Conv((1,), (0,), (0,), (1,)), "f32[1, 4, 9] f32[8, 4, 5]", 20),
        # Every second element of the kernel: 4 / 2 groups * ceil(5 / 2)
        (ConvTranspose((2,), (0,), (0,), (1,), (0,), 2), "f32[1, 4, 9] f32[4, 3, 5]", 6),
        (Attention(), "f32[1, 2, 3, 8] f32[1, 2, 5, 8] f32[1, 2, 5, 8]", 8 + 2 * 5),
        (ReduceSum((0, 1)), "f32[4, 25]", 100),
        (ReduceProd((1,)), "f32[4, 25]", 25),
        (CumSum(1), "f32[4, 25]", 25),
        (Softmax(-1), "f32[4, 25]", 25),
        (LayerNorm((1,)), "f32[4, 25]", 25),
        (RmsNorm((1,)), "f32[4, 25]", 25),
        (AveragePool((2, 3), (1, 1), (0, 0), (0, 0), (1, 1)), "f32[1, 1, 5, 5]", 6),
        (MaxPool((2, 3), (1, 1), (0, 0), (0, 0), (1, 1)), "f32[1, 1, 5, 5]", 1),
        (LpPool((2, 2), (1, 1), (0, 0), (0, 0), (1, 1)), "f32[1, 1, 5, 5]", 4),
        (Dft(1), "f32[2, 12, 1]", 12),
        (Det(), "f32[4, 4]", 4),
        (Resize((2,), sizes=(9,), mode="cubic"), "f32[1, 1, 5]", 4),
        (Add(), "f32[2] f32[2]", 1),
    ],
    ids=lambda x: x.name if isinstance(x, Op) else str(x),
)
def test_every_sum_counts_its_terms(op: Op, types: str, count: int):
    parts = [parse_tensor_type(f"f32[{part}") for part in types.split("f32[")[1:]]
    operands = [Input(f"x{i}", part)() for i, part in enumerate(parts)]
    assert contraction(op(*operands)) == count


def test_a_recurrent_cell_counts_every_step():
    """5 steps of a sum over 3 inputs and 2 states."""
    given = one(
        "y = RNN(x, w, r)",
        "float[5, 1, 3] x, float[1, 2, 3] w, float[1, 2, 2] r",
        "float[5, 1, 1, 2] y",
    )
    assert given.rtol >= MARGIN * EPS * math.sqrt(5 * (3 + 2))


def test_feeds_tell_how_long_a_sum_is():
    """A symbol counts as one term; a session knows its size from the feeds."""
    text = """<ir_version: 9, opset_import: ["" : 21]>
    g (float[2, K] x, float[K, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }"""
    session = load(onnx.parser.parse_model(text))
    assert derive(session.graph)["y"].rtol == pytest.approx(MARGIN * EPS)
    feeds = {"x": np.ones((2, 100), "f4"), "w": np.ones((100, 4), "f4")}
    assert session.tolerances(feeds)["y"].rtol == pytest.approx(MARGIN * EPS * 10)


def test_narrow_floats_accumulate_in_f32():
    given = one("y = MatMul(x, w)", "float16[2, 101] x, float16[101, 4] w", "float16[2, 4] y")
    eps = 2.0**-10
    assert given.rtol == pytest.approx(MARGIN * math.sqrt(eps**2 + 100 * EPS**2))


def test_the_coarsest_type_on_the_way_counts():
    given = one("a = Cast <to = 10> (x) b = Exp(a) y = Cast <to = 1> (b)")
    assert given.rtol == pytest.approx(MARGIN * math.sqrt(2 * 2.0**-20 + EPS**2), rel=1e-3)


def test_a_quantiser_counts_half_a_step():
    text = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
    given = one(f"s = Constant <value_float = 0.1> () {text}")
    assert MARGIN * 2.0**-8 <= given.rtol < MARGIN * 2.0**-7


def test_quantised_outputs_are_allowed_a_step_and_other_integers_none():
    given = one("s = Constant <value_float = 0.1> () y = QuantizeLinear(x, s)", output="uint8[2] y")
    assert given == Tolerance(atol=1.0)
    assert tolerances(models.LINEAR)["best"] == EXACT
    assert one("y = Identity(x)", "uint8[2] x", "uint8[2] y") == EXACT
    assert one("y = Greater(x, x)", output="bool[2] y") == EXACT


def test_branches_count_with_their_bodies():
    assert tolerances(models.BRANCH)["y"].rtol == pytest.approx(MARGIN * EPS)


def test_an_output_that_is_an_input_is_still_rounded():
    assert one("y = Identity(x)").rtol == pytest.approx(MARGIN * EPS)


def test_a_dot_that_permits_rounding_counts_half_a_step():
    x, w = (Input(n, tensor(f32, *s))() for n, s in (("x", (2, 1)), ("w", (1, 3))))
    graph = Graph((x, w), (("y", Dot(None, 8)(x, w)),))
    assert derive(graph)["y"].rtol == pytest.approx(MARGIN * math.hypot(EPS, 2.0**-8))


def test_accuracy_levels_of_the_file():
    def allowed(*levels: int) -> float:
        sizes = "K = 32, N = 8, bits = 4, block_size = 32"
        nodes = [
            f"y{i} = com.microsoft.MatMulNBits <{sizes}, accuracy_level = {level}> (x, w, s)"
            for i, level in enumerate(levels)
        ]
        model = onnx.parser.parse_model(f"""
            <ir_version: 9, opset_import: ["com.microsoft" : 1]>
            g (float[1, 32] x, uint8[8, 1, 16] w, float[8] s) => (float[1, 8] y0)
            {{ {" ".join(nodes)} }}
        """)
        return allowed_by_file(read_model(model))

    assert allowed(0, 1) == 0
    assert allowed(4) == 2.0**-16
    assert allowed(4, 4, 4, 4) == 4 * 2.0**-16
    assert allowed(2) < allowed(4) < allowed(3)


def test_levels_inside_functions_count_at_every_call():
    attributes = {"K": 32, "N": 1, "bits": 4, "block_size": 32, "accuracy_level": 4}
    inner = helper.make_node(
        "MatMulNBits", ["a", "b", "s"], ["c"], domain="com.microsoft", **attributes
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    once = helper.make_function("local", "Once", ["a", "b", "s"], ["c"], [inner], imports)
    call = helper.make_node("Once", ["a", "b", "s"], ["c"], domain="local")
    twice = helper.make_function(
        "local", "Twice", ["a", "b", "s"], ["c"], [call, relabelled(call)], [*imports, local()]
    )
    calls = [helper.make_node("Twice", ["a", "b", "s"], [f"y{i}"], domain="local") for i in "ab"]
    graph = helper.make_graph(
        calls,
        "g",
        [
            helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 32]),
            helper.make_tensor_value_info("b", onnx.TensorProto.UINT8, [1, 1, 16]),
            helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("ya", onnx.TensorProto.FLOAT, [1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[*imports, local()], functions=[once, twice])
    assert allowed_by_file(read_model(model)) == 4 * 2.0**-16


def relabelled(call: onnx.NodeProto) -> onnx.NodeProto:
    again = onnx.NodeProto()
    again.CopyFrom(call)
    again.output[0] = "again"
    return again


def local() -> onnx.OperatorSetIdProto:
    return helper.make_opsetid("local", 1)
