"""Kernels of one elementwise op, compiled and called: the op's `scalar` against its reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from monograph.codegen.llvm.builder import Builder, Int, Reg
from monograph.codegen.llvm.features import TABLE, Features, host_features
from monograph.codegen.llvm.scalar import LlvmScalars
from monograph.ir import Array, DType, Op, from_numpy
from monograph.ops.scalar import Scalar
from monograph.runtime.native import NativeCode, compile_module

Emit = Callable[[LlvmScalars, Sequence[Scalar]], Scalar]


def table() -> list[Features]:
    """The entries of the table of instruction sets that this host has."""
    host = host_features()
    if host.name.startswith("avx") or host.name == "sse2":
        names = ("avx512_vnni", "avx2", "sse2")
    else:
        names = (host.name, "baseline")
    return [TABLE[n] for n in names if TABLE[n].vector_bits <= host.vector_bits]


def kernel_text(emit: Emit, dtypes: Sequence[DType], features: Features, lanes: int) -> str:
    """`void f(ptr in..., ptr out, i64 n)`: element by element, or `lanes` of them at a time."""
    names = [f"x{i}" for i in range(len(dtypes))]
    b = Builder("f", [*((n, "ptr") for n in names), ("out", "ptr"), ("n", "i64")])
    s = LlvmScalars(b, features)

    def body(i: Int, _: list[Reg]) -> None:
        operands = [
            s.load(d, b.offset(b.arguments[n], b.mul(i, d.itemsize)), lanes)
            for n, d in zip(names, dtypes, strict=True)
        ]
        result = emit(s, operands)
        s.store(result, b.offset(b.arguments["out"], b.mul(i, result.dtype.itemsize)))

    b.loop(0, b.arguments["n"], max(lanes, 1), body)
    b.ret()
    return "\n".join([*sorted(b.declarations), b.text()])


@cache
def _compiled(text: str, features: Features) -> NativeCode:
    return NativeCode([compile_module(text, features)], ["f"])


def run(
    emit: Emit, to: DType, arrays: Sequence[Array], features: Features, lanes: int = 0
) -> Array:
    """What a kernel makes of flat arrays of one size."""
    text = kernel_text(emit, [from_numpy(x.dtype) for x in arrays], features, lanes)
    code = _compiled(text, features)
    count = arrays[0].size
    padded = -(-count // max(lanes, 1)) * max(lanes, 1)
    sources = [np.resize(x.reshape(-1), padded) for x in arrays]
    result = np.zeros(padded, to.numpy)
    kinds = [ctypes.c_void_p] * (len(arrays) + 1)
    function = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_int64)(code.address("f"))
    function(*(x.ctypes.data for x in sources), result.ctypes.data, padded)
    return result[:count]


def run_op(op: Op, to: DType, arrays: Sequence[Array], features: Features, lanes: int = 0) -> Array:
    return run(lambda s, xs: op.scalar(s, *xs), to, arrays, features, lanes)
