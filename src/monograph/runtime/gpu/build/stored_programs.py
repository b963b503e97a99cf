"""Compiled modules as artefacts: launches, machine code and constants that a file can hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from monograph.codegen.triton.module.kernel import Call
from monograph.codegen.triton.module.launch import Launch
from monograph.codegen.triton.module.layout import Bound, GpuModule
from monograph.codegen.triton.module.library import LibraryCall
from monograph.errors import ConfigError
from monograph.ir import Array
from monograph.program.legalise.lower_random import states_of
from monograph.runtime.gpu.artefact import GpuArtefact, Planned, PlannedCall
from monograph.runtime.gpu.build.binaries import CompileRequest, KernelBinary
from monograph.runtime.gpu.build.layouts import is_whole, layout_of
from monograph.runtime.gpu.build.tune import requests_of_work
from monograph.runtime.gpu.executable import views_of


def make_artefact(
    module: GpuModule,
    code: Callable[[CompileRequest], KernelBinary],
    digests: Sequence[str],
    find: Callable[[Sequence[str]], Mapping[str, Array]],
    choices: Mapping[str, str],
) -> GpuArtefact | None:
    """A module with its machine code; None where the host has steps, or random ops a state.

    digests: those of the constants, which `find` returns.
    """
    if not is_whole(module) or states_of(module.program.graph):
        return None
    numbers: dict[CompileRequest, int] = {}
    launches = [
        _planned(module, bound, numbers)
        for bound in module.every
        if isinstance(bound.work, (Launch, Call))
    ]
    binaries = [code(r) for r in numbers]
    return GpuArtefact(layout_of(module), launches, binaries, digests, find, choices)


def constants_of(
    module: GpuModule,
) -> tuple[Sequence[str], Callable[[Sequence[str]], Mapping[str, Array]]]:
    """Return the digests of a module's constants, and a function that finds them."""
    data = [module.constants[at : at + count] for at, count in module.pieces]
    digests = [hashlib.sha256(piece.data).hexdigest() for piece in data]
    held = dict(zip(digests, data, strict=True))
    return digests, lambda wanted: {d: held[d] for d in wanted}


def _planned(
    module: GpuModule, bound: Bound, numbers: dict[CompileRequest, int]
) -> Planned | PlannedCall:
    """Return a launch as plain data; kernels get numbers."""
    work = bound.work
    if isinstance(work, Call):
        if not isinstance(work.function, LibraryCall):
            raise ConfigError(
                "the model cannot be saved: it calls a library in its own way", given=work.name
            )
        options, name = work.function.options, work.function.name
        return PlannedCall(name, options, views_of(module.program, work))
    assert isinstance(work, Launch)
    first, *others = (numbers.setdefault(r, len(numbers)) for r in requests_of_work(bound))
    return Planned(first, work.grid, work.sizes, others[0] if others else -1)
