"""Kernels as machine code: Triton compiles them, with or without a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monograph.codegen.triton.module.kernel import Arch, Launch
from monograph.codegen.triton.emit.scalar import stored
from monograph.errors import CodegenError
from monograph.ir import DType
from monograph.runtime.gpu.driver.arches import ARCHES as ARCHES
from monograph.runtime.gpu.build.source import function

POINTERS = {
    "i8": "*i8",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "half": "*fp16",
    "bfloat": "*bf16",
    "float": "*fp32",
    "double": "*fp64",
}
"""What Triton calls a pointer to elements that LLVM calls so."""


@dataclass(frozen=True)
class CompileRequest:
    """A kernel to compile: its source, and what is known of its arguments."""

    source: str
    stem: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int
    stages: int
    dependent: bool


@dataclass(frozen=True)
class KernelBinary:
    """A compiled kernel: code that the driver loads, and how to launch it."""

    name: str
    code: bytes
    shared: int
    threads: int
    dependent: bool


def request(
    launch: Launch, dtypes: tuple[DType, ...], aligned: tuple[bool, ...], stem: str
) -> CompileRequest:
    """What the compiler is asked for."""
    types = tuple(POINTERS[stored(t)] for t in dtypes)
    return CompileRequest(
        launch.source, stem, types, aligned, launch.warps, launch.stages, launch.dependent
    )


def build(wanted: CompileRequest, arch: Arch) -> KernelBinary:
    """Compiles a kernel for an architecture; no device is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = int(arch.name.removeprefix("sm_")) if arch.backend == "cuda" else arch.name
    made = function(wanted.source, wanted.stem)
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, aligned in enumerate(wanted.aligned) if aligned
    }
    signature = {f"p{i}": kind for i, kind in enumerate(wanted.types)}
    options: dict[str, Any] = {"num_warps": wanted.warps, "num_stages": wanted.stages}
    if wanted.dependent:
        options["launch_pdl"] = True
    try:
        compiled = triton.compile(
            ASTSource(made, signature, attrs=attributes),
            target=GPUTarget(arch.backend, name, arch.warp),
            options=options,
        )
    except Exception as error:
        raise CodegenError(
            f"a kernel does not compile for {arch.name}: {error}", op=wanted.stem
        ) from error
    code = compiled.asm["cubin" if arch.backend == "cuda" else "hsaco"]
    meta = compiled.metadata
    return KernelBinary(meta.name, bytes(code), meta.shared, meta.num_warps * arch.warp, wanted.dependent)
