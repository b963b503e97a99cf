"""Models in which a number made of an open size is an operand of an op: an index, a count, a place.

The number is k = n - 5 for an input f32[n, 6]. So its sign changes with the size, and so does
whether it is a valid index.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
import onnx.parser

import monograph
from monograph.errors import MonographError

SIZES = (7, 9, 5, 4, 6, 12, 1)
_HEAD = """
    shape = Shape (x)  zero = Constant <value_int = 0> ()  n = Gather <axis = 0> (shape, zero)
    five = Constant <value_int = 5> ()  k = Sub (n, five)
    one = Constant <value_ints = [1]> ()  k1 = Reshape (k, one)
    corner = Constant <value_ints = [1, 1]> ()  k2 = Reshape (k, corner)
    row = Constant <value_ints = [1, 6]> ()  kept = Shape (x)
"""
_ZEROS = "zeros = ConstantOfShape (row)"
_IF = """
    yes = Less (k, n)
    y = If (yes) <
        then_branch = then () => (float[a, b] s) {{ {then} }},
        else_branch = other () => (float[a, b] t) {{ t = Identity (x) }}
    >
"""
_LOOP = """
    two = Constant <value_int = 2> ()  go = Constant <value = bool[1] {1}> ()
    none = Constant <value_ints = [0]> ()  more = Squeeze (go, none)
    last, y = Loop (two, more, x) <
        body = turn (int64 i, bool c, float[a, b] s)
            => (bool d, float[a, b] t, float[e, f] taken) {
            d = Identity (c)  t = Add (s, s)  taken = GatherND (s, k2)
        }
    >
"""
BODIES: Mapping[str, str] = {
    "gather a row": "y = Gather <axis = 0> (x, k)",
    "gather a column": "y = Gather <axis = 1> (x, k1)",
    "gather twice": f"{_ZEROS} y0 = Gather <axis = 1> (x, k1) y = Mul (y0, y0)",
    "gather elements": "e = Expand (k2, row)  y = GatherElements <axis = 0> (x, e)",
    "gather one element": "y = GatherElements <axis = 1> (x, k2)",
    "gather by places": "y = GatherND (x, k2)",
    "scatter by places": f"{_ZEROS} y = ScatterND (x, k2, zeros)",
    "add by places": f'{_ZEROS} y = ScatterND <reduction = "add"> (x, k2, zeros)',
    "scatter a row": f"{_ZEROS} e = Expand (k2, row)  y = ScatterElements (x, e, zeros)",
    "scatter an element": "u = Constant <value = float[1, 1] {9}> ()"
    "  y = ScatterElements <axis = 1> (x, k2, u)",
    "triangle": "y = Trilu (x, k)",
    "range": "one0 = Constant <value_int = 1> ()  y = Range (zero, k, one0)",
    "one hot": "v = Constant <value_floats = [0.0, 1.0]> ()  d = Constant <value_int = 4> ()"
    "  y = OneHot (k1, d, v)",
    "sum": "f = Cast <to = 1> (k)  y = Add (x, f)",
    "in a branch": _IF.format(then="s = GatherND (x, k2)"),
    "in a loop": _LOOP,
}


def model(body: str) -> onnx.ModelProto:
    """The model of a body."""
    text = (
        f'<ir_version: 9, opset_import: ["" : 21]>\ng (float[n, 6] x) => (y) {{ {_HEAD} {body} }}'
    )
    return onnx.parser.parse_model(text)


def feeds(n: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(6 * n, dtype=np.float32).reshape(n, 6) + 1}


@cache
def expected(name: str) -> dict[int, np.ndarray | None]:
    """Return the reference's result for each size; None where the number is no valid operand."""
    return {n: answer(reference, n) for reference in [_load(name, "reference")] for n in SIZES}


def answer(session: monograph.Session, n: int) -> np.ndarray | None:
    try:
        (y,) = session.run(feeds(n))
    except MonographError as e:
        if e.internal:
            raise
        return None
    return np.asarray(y)


def _load(name: str, target: str) -> monograph.Session:
    return monograph.load(model(BODIES[name]).SerializeToString(), target, cache_dir="")
