"""Kernels of one elementwise op, compiled and called: the op's `scalar` against its reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.module.features import TABLE, Features, host_features
from monograph.ir import Array, DType, Op, from_numpy
from monograph.ops.scalar import Scalar
from monograph.runtime.cpu.native import NativeCode, compile_module

Emit = Callable[..., Scalar]
"""A builder and elements of the operands to the element of the result."""


def instruction_sets() -> list[Features]:
    """One entry of the table for each vector width that this host has, and for no FMA."""
    host = host_features()
    forced = [TABLE[n] for n in ("avx2", "sse2", "baseline") if host.name.startswith("avx")]
    return [host, *(f for f in forced if f.vector_bits <= host.vector_bits and f != host)]


@dataclass(frozen=True)
class Case:
    """Something to compute: its element type, flat operands of one size, elements at a time."""

    emit: Emit
    to: DType
    operands: tuple[Array, ...]
    lanes: int = 0

    @staticmethod
    def of(op: Op, to: DType, operands: Sequence[Array], lanes: int = 0) -> Case:
        return Case(op.scalar, to, tuple(operands), lanes)

    def text(self, name: str, features: Features, flush: bool) -> tuple[set[str], str]:
        """`void name(ptr in..., ptr out, i64 n)` and what it declares."""
        dtypes = [from_numpy(x.dtype) for x in self.operands]
        sources = [f"x{i}" for i in range(len(dtypes))]
        b = Builder(name, [*((n, "ptr") for n in sources), ("out", "ptr"), ("n", "i64")])
        s = LlvmScalars(b, features)

        def body(i: Int, _: list[Reg]) -> None:
            operands = [
                s.load(d, b.offset(b.arguments[n], b.mul(i, d.itemsize)), self.lanes)
                for n, d in zip(sources, dtypes, strict=True)
            ]
            result = self.emit(s, *operands)
            assert result.dtype == self.to
            result = s.splat(result, self.lanes)
            s.store(result, b.offset(b.arguments["out"], b.mul(i, self.to.itemsize)))

        before = _set_float_mode(b, features) if flush else None
        b.loop(0, b.arguments["n"], max(self.lanes, 1), body)
        if before is not None:
            _write_float_mode(b, features, before)
        b.ret()
        return b.declarations, b.text()


def _set_float_mode(b: Builder, features: Features) -> Reg:
    """Switches denormals off; gives where the mode before is kept."""
    mode = features.float_mode
    assert mode is not None
    assert mode.in_memory
    before = b.set("ptr", f"alloca {mode.type}")
    b.call(mode.read, "void", before)
    wanted = b.set("ptr", f"alloca {mode.type}")
    b.store(Reg(str(mode.value), mode.type), wanted, 4)
    _write_float_mode(b, features, wanted)
    return before


def _write_float_mode(b: Builder, features: Features, where: Reg) -> None:
    assert features.float_mode is not None
    b.call(features.float_mode.write, "void", where)


def run_all(cases: Sequence[Case], features: Features, flush: bool = False) -> list[Array]:
    """Return what the kernels give, all compiled in one module; with denormals off if asked."""
    names = [f"f{i}" for i in range(len(cases))]
    parts = [c.text(n, features, flush) for c, n in zip(cases, names, strict=True)]
    declared = set().union(*(d for d, _ in parts))
    text = "\n".join([*sorted(declared), *(t for _, t in parts)])
    code = NativeCode([compile_module(text, features)], names)
    return [_call(code.address(n), c) for n, c in zip(names, cases, strict=True)]


def _call(address: int, case: Case) -> Array:
    count, width = case.operands[0].size, max(case.lanes, 1)
    padded = -(-count // width) * width
    sources = [np.ascontiguousarray(np.resize(x, padded)) for x in case.operands]
    result = np.zeros(padded, case.to.numpy)
    kinds = [ctypes.c_void_p] * (len(sources) + 1)
    function = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_int64)(address)
    function(*(x.ctypes.data for x in sources), result.ctypes.data, padded)
    return result[:count]


def run(case: Case, features: Features, flush: bool = False) -> Array:
    return run_all([case], features, flush)[0]
