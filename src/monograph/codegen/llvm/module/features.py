"""The instruction sets of hosts, as tables: the only module that knows them.

Kernels use a vector width and a number of registers; they name no instruction of one architecture
except through the intrinsics listed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from monograph.errors import ConfigError


@dataclass(frozen=True)
class FloatMode:
    """The floating-point control register of an architecture, and its value in kernels."""

    read: str
    """The intrinsic that reads the register."""
    write: str
    """The intrinsic that writes it."""
    type: str
    in_memory: bool
    """True if the intrinsics take a pointer to the value, False for the value itself."""
    value: int
    """Denormals are zero, exceptions masked, results rounded to nearest."""


@dataclass(frozen=True)
class Features:
    """An instruction set as kernels see it."""

    name: str
    vector_bits: int
    registers: int
    """The vector registers that a kernel may use."""
    flags: str
    """The feature flags for LLVM; "" for the default of the target."""
    cpu: str = "generic"
    dot_i8: str = ""
    """The intrinsic that adds products of u8 and i8 in fours to i32, if there is one."""
    dot_i16: str = ""
    """The intrinsic that multiplies i16 and adds neighbours to i32, if there is one."""
    lookup: str = ""
    """The intrinsic that picks among as many f32 as a register has by the low bits of an index."""
    relax: str = ""
    """The intrinsic that marks a spin loop, if there is one."""
    float_mode: FloatMode | None = None
    """The control of denormals, if it is known."""
    converts_half: bool = False
    """True if there are instructions between f16 and f32."""

    def lanes(self, bits: int) -> int:
        """Return the number of elements of a width in a register."""
        return max(1, self.vector_bits // bits)


_X86_RELAX = "llvm.x86.sse2.pause"
_X86_FLOATS = FloatMode("llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr", "i32", True, 0x9FC0)
_ARM_FLOATS = FloatMode("llvm.aarch64.get.fpcr", "llvm.aarch64.set.fpcr", "i64", False, 1 << 24)
_NOT_IN_ALL = "".join(
    f",-{flag}"
    for flag in (
        "avx512vbmi",
        "avx512vbmi2",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512ifma",
        "gfni",
        "vaes",
        "vpclmulqdq",
    )
)
"""Ice Lake's features, whose timing LLVM uses; not every CPU with VNNI has all of them."""

TABLE: dict[str, Features] = {
    f.name: f
    for f in (
        Features(
            "avx512",
            512,
            32,
            "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx2,+fma,+f16c,+bmi,+bmi2",
            "skylake-avx512",
            dot_i16="llvm.x86.avx512.pmaddw.d.512",
            lookup="llvm.x86.avx512.permvar.sf.512",
            relax=_X86_RELAX,
            float_mode=_X86_FLOATS,
            converts_half=True,
        ),
        Features(
            "avx512_vnni",
            512,
            32,
            "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx512vnni,+avx2,+fma,+f16c"
            ",+bmi,+bmi2" + _NOT_IN_ALL,
            "icelake-server",
            dot_i8="llvm.x86.avx512.vpdpbusd.512",
            dot_i16="llvm.x86.avx512.pmaddw.d.512",
            lookup="llvm.x86.avx512.permvar.sf.512",
            relax=_X86_RELAX,
            float_mode=_X86_FLOATS,
            converts_half=True,
        ),
        Features(
            "avx2",
            256,
            16,
            "+avx2,+fma,+f16c,+bmi,+bmi2",
            "haswell",
            dot_i16="llvm.x86.avx2.pmadd.wd",
            relax=_X86_RELAX,
            float_mode=_X86_FLOATS,
            converts_half=True,
        ),
        Features(
            "sse2",
            128,
            16,
            "",
            "x86-64",
            dot_i16="llvm.x86.sse2.pmadd.wd",
            relax=_X86_RELAX,
            float_mode=_X86_FLOATS,
        ),
        Features("neon", 128, 32, "+neon", "generic", float_mode=_ARM_FLOATS, converts_half=True),
        Features("baseline", 128, 16, "", "generic"),
    )
}
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")
_NEEDS = {
    "avx512_vnni": (*_AVX512, "avx512vnni"),
    "avx512": _AVX512,
    "avx2": _AVX2,
    "sse2": ("sse2",),
    "neon": ("neon",),
}


@cache
def usable_features() -> tuple[str, ...]:
    """Return the entries of the table that this host has, the widest first."""
    llvm.initialize_native_target()
    try:
        present = {k for k, on in llvm.get_host_cpu_features().items() if on}
    except RuntimeError:
        present = set()
    found = (name for name, needed in _NEEDS.items() if present.issuperset(needed))
    return (*found, "baseline")


def host_features() -> Features:
    """The widest entry of the table that this host has."""
    return TABLE[usable_features()[0]]


def choose_features(name: str = "") -> Features:
    """Return the requested features, or the host's; raise an error if the host lacks them."""
    if not name:
        return host_features()
    if name not in TABLE:
        raise ConfigError("no such instruction set", expected=" | ".join(TABLE), given=name)
    if name not in usable_features():
        raise ConfigError(
            "the host does not have these instructions",
            expected=" | ".join(usable_features()),
            given=name,
        )
    return TABLE[name]
