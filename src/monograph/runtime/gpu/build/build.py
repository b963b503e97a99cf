"""One kernel from source text to machine code: a Triton function, compiled for an architecture.

Triton reads the source of a function from the file that defines it. The files of generated kernels
exist in memory only.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from dataclasses import dataclass
from typing import Any

from triton import knobs

from monograph.codegen.triton.emit.scalar import stored
from monograph.codegen.triton.module.kernel import NAME, Arch, Launch
from monograph.errors import CodegenError
from monograph.ir import DType

_HEAD = "import triton\nimport triton.language as tl\n"
_INTERPRETED = "from monograph.codegen.triton.emit import interpreter_math as functions\n"
_IMPORTS = (
    ("functions.", "from triton.language.extra import libdevice as functions\n"),
    ("gdc_", "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"),
)
_lock = threading.Lock()
_functions: dict[str, Any] = {}


def named(source: str, stem: str) -> str:
    """Name a kernel after its stem and a hash of its source."""
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    words = "".join(c if c.isalnum() else "_" for c in stem)
    return f"{words}_{key}"


def function(source: str, stem: str = "kernel") -> Any:
    """Return the Triton function of a source text; equal texts share one function."""
    name = named(source, stem)
    with _lock:
        if name not in _functions:
            _functions[name] = _define(name, source.replace(NAME, name))
        return _functions[name]


def _define(name: str, source: str) -> Any:
    imports = "".join(line for name, line in _IMPORTS if name in source)
    if knobs.runtime.interpret:
        imports = imports.replace(_IMPORTS[0][1], _INTERPRETED)
    text = f"{_HEAD}{imports}\n\n{source}"
    file = f"<monograph kernel {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": f"monograph_kernels.{name}", "__file__": file}
    exec(compile(text, file, "exec"), space)
    return space[name]


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
"""Triton's pointer types, by LLVM's element types."""


@dataclass(frozen=True)
class CompileRequest:
    """A kernel to compile: its source, and the types and alignment of its arguments.

    Field names enter the keys of the binary cache.
    """

    source: str
    stem: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int
    stages: int
    dependent: bool


@dataclass(frozen=True)
class KernelBinary:
    """A compiled kernel: code that the driver loads, and its launch parameters."""

    name: str
    code: bytes
    shared: int
    threads: int
    dependent: bool


def request(
    launch: Launch, dtypes: tuple[DType, ...], aligned: tuple[bool, ...], stem: str
) -> CompileRequest:
    """Return the compile request of a launch."""
    types = tuple(POINTERS[stored(t)] for t in dtypes)
    return CompileRequest(
        launch.source, stem, types, aligned, launch.warps, launch.stages, launch.dependent
    )


def build(wanted: CompileRequest, arch: Arch) -> KernelBinary:
    """Compile a kernel for an architecture; no device is needed."""
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
            f"cannot compile a kernel for {arch.name}: {error}", op=wanted.stem
        ) from error
    code = compiled.asm["cubin" if arch.backend == "cuda" else "hsaco"]
    meta = compiled.metadata
    return KernelBinary(
        meta.name, bytes(code), meta.shared, meta.num_warps * arch.warp, wanted.dependent
    )
