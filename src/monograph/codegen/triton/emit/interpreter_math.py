"""The mathematical library of kernels for Triton's interpreter, by numpy.

In compiled kernels the same names are those of NVIDIA's and AMD's libraries, which Triton finds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NAMES = (
    ("acos", np.arccos),
    ("acosh", np.arccosh),
    ("asin", np.arcsin),
    ("asinh", np.arcsinh),
    ("atan", np.arctan),
    ("atanh", np.arctanh),
    ("cos", np.cos),
    ("cosh", np.cosh),
    ("exp", np.exp),
    ("fmod", np.fmod),
    ("log", np.log),
    ("pow", np.power),
    ("nearbyint", np.rint),
    ("sin", np.sin),
    ("sinh", np.sinh),
    ("tan", np.tan),
    ("tanh", np.tanh),
)


def _interpreted(function: Any) -> Any:
    """Wrap a numpy function for the interpreter's tensors."""
    from triton.language.core import tensor
    from triton.runtime.interpreter import TensorHandle

    def call(*operands: Any) -> Any:
        whole = max(operands, key=lambda x: (len(x.shape), x.handle.data.size))
        rank = whole.handle.data.ndim
        # The first axis of an array is the program; a scalar has no other.
        spread = (x.handle.data for x in operands)
        with np.errstate(all="ignore"):
            data = function(*(x.reshape(*x.shape, *[1] * (rank - x.ndim)) for x in spread))
        made = data.astype(whole.handle.data.dtype)
        return tensor(TensorHandle(made, whole.handle.dtype), whole.type)

    return call


def _erf(x: Any) -> Any:
    from math import erf as one

    return np.vectorize(one, otypes=[np.float64])(x)


for _name, _function in (*_NAMES, ("erf", _erf)):
    globals()[_name] = _interpreted(_function)
