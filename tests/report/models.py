"""Small models for the tests of reports and of the command line, in ONNX's text form."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

LINEAR = """
<ir_version: 9, opset_import: ["" : 18], producer_name: "tests", producer_version: "1">
linear (float[N, 3] x) => (float[N, 2] y, int64[1] best)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}>
{
    product = MatMul(x, w)
    y = Add(product, b)
    axes = Constant <value_ints = [0]> ()
    total = ReduceSum <keepdims = 0> (y, axes)
    best = ArgMax <axis = 0> (total)
}
"""

UNSUPPORTED = """
<ir_version: 9, opset_import: ["" : 18, "acme" : 1]>
odd (float[2] x) => (float[2] y)
{
    a = acme.Frobnicate(x)
    b = acme.Frobnicate(a)
    c = Relu(b)
    y = acme.Twist(c)
}
"""

BRANCH = """
<ir_version: 9, opset_import: ["" : 18]>
branch (bool cond, float[2] x) => (float[2] y)
{
    y = If (cond) <
        then_branch = yes () => (float[2] a) { a = Exp(x) },
        else_branch = no () => (float[2] b) <float[2] k = {3, 4}> { b = Mul(x, k) }
    >
}
"""

RANDOM = """
<ir_version: 9, opset_import: ["" : 18]>
noisy (float[4] x) => (float[4] y)
{
    r = RandomNormalLike(x)
    y = Add(x, r)
}
"""

CONTRADICTORY = """
<ir_version: 9, opset_import: ["" : 18]>
wrong (float[2, 3] x) => (float[2, 5] y)
<float[4, 5] w = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
{
    y = MatMul(x, w)
}
"""


def save(text: str, folder: Path, name: str = "model.onnx") -> Path:
    """Writes a model given as text to a file."""
    path = folder / name
    onnx.save(onnx.parser.parse_model(text), path)
    return path
