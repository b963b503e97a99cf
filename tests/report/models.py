"""Small models for the tests of reports and of the command line, in ONNX's text form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
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

RANDOM_PRODUCT = """
<ir_version: 9, opset_import: ["" : 18]>
noisy (float[4, 4] x) => (float[4, 4] y)
{
    r = RandomNormalLike(x)
    s = Add(x, r)
    y = MatMul(s, x)
}
"""

SPLIT = """
<ir_version: 9, opset_import: ["" : 20]>
split (float[4] x) => (float[4] y)
{
    [before] a = Exp(x)
    [written] s = Cast <to = 8> (a)
    [read] b = Cast <to = 1> (s)
    [behind] y = Neg(b)
}
"""

SIZED = """
<ir_version: 9, opset_import: ["" : 18]>
sized (float[N, 4] x) => (float[M] y)
{
    [found] at = NonZero(x)
    [turned] rows = Transpose(at)
    [picked] chosen = GatherND(x, rows)
    [last] y = Exp(chosen)
}
"""

PAIRS = """
<ir_version: 9, opset_import: ["" : 18]>
pairs (float[W] x) => (float[7, 2] y)
{
    shape = Constant <value_ints = [7, 2]> ()
    y = Reshape(x, shape)
}
"""
"""It takes one size of x, which no command tries."""

CHOSEN = """
<ir_version: 9, opset_import: ["" : 18]>
chosen (float[1, 1, 4, 4] x) => (float[1, 1, H, W] y)
{
    [early] a = Relu(x)
    axes = Constant <value_ints = [0, 1, 2, 3]> ()
    largest = ReduceMax <keepdims = 0> (a, axes)
    whole = Ceil(largest)
    k = Cast <to = 7> (whole)
    first = Constant <value_ints = [0]> ()
    more = Unsqueeze(k, first)
    two = Constant <value_ints = [2, 2]> ()
    image = Add(two, more)
    one = Constant <value_ints = [1, 1]> ()
    sizes = Concat <axis = 0> (one, image)
    [late] y = Resize <mode = "linear"> (a, , , sizes)
}
"""
"""A model whose data decide the size of the result."""

WORDS = """
<ir_version: 9, opset_import: ["" : 20]>
words (float[4] x, string[2] s) => (float[4] y, string[2] t)
{
    [native] y = Exp(x)
    [written] t = StringConcat(s, s)
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
LAYERS = """
<ir_version: 9, opset_import: ["" : 18]>
layers (float[64, 32] x) => (float[64, 32] y)
<float[32, 32] w, float[32, 32] v>
{
    [first] a = MatMul(x, w)
    [between] b = Softmax(a)
    [second] c = MatMul(b, v)
    [last] y = Relu(c)
}
"""


def save(text: str, folder: Path, name: str = "model.onnx") -> Path:
    """Writes a model given as text to a file."""
    path = folder / name
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def save_weighted(text: str, folder: Path, name: str = "model.onnx") -> Path:
    """... with random numbers for the weights that the text only declares."""
    model = onnx.parser.parse_model(text)
    drawn = np.random.default_rng(0)
    for info in model.graph.value_info:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        data = drawn.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, info.name))
    path = folder / name
    onnx.save(model, path)
    return path
