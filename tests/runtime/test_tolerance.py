from __future__ import annotations

import math

import onnx.parser
import pytest

from monograph.frontend.onnx import import_model, read_model
from monograph.runtime.tolerance import EXACT, MARGIN, Tolerance, allowed_by_file, derive
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
