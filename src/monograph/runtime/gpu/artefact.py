"""A compiled GPU program as named members of a package: launches, machine code, constants.

    layout      JSON: what a run has to know, and which kernel is launched how
    kernel0...  machine code (a cubin, or an hsaco for AMD)
    constants   what kernels read, as they read it

Nothing is unpickled, and nothing is compiled when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from monograph.codegen.triton.module.kernel import Call, Launch
from monograph.codegen.triton.module.layout import BufferRef, GpuModule
from monograph.errors import ConfigError
from monograph.ir import Array, dtype
from monograph.program.legalise.lower_random import states_of
from monograph.runtime.cache.object_cache import Buffer
from monograph.runtime.gpu.bound_program import DeviceFaultText, DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.build.compiler import CompileRequest, KernelBinary
from monograph.runtime.gpu.build.tune import requests_of
from monograph.runtime.gpu.capture.control import PLAIN, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.executable import layout_of
from monograph.runtime.gpu.memory import DeviceConstants

LAYOUT, CONSTANTS, KERNEL = "layout", "constants", "kernel"


@dataclass(frozen=True)
class Planned:
    """A launch: which kernel, on which grid."""

    kernel: int
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class GpuArtefact:
    """A compiled program that the device alone can run, apart from the process that made it."""

    layout: GpuLayout
    launches: Sequence[Planned]
    """Of the works that are no branches or loops, in order."""
    binaries: Sequence[KernelBinary]
    constants: Array

    @property
    def whole(self) -> bool:
        return True

    @property
    def weights(self) -> Mapping[str, Array]:
        """None: executables of a GPU share constants on the device."""
        return {}

    def members(self) -> dict[str, Buffer]:
        """The members by name."""
        plans = {
            "layout": layout_to_json(self.layout),
            "launches": [[p.kernel, list(p.grid)] for p in self.launches],
            "kernels": [{**asdict(b), "code": None} for b in self.binaries],
        }
        found: dict[str, Buffer] = {LAYOUT: json.dumps(plans).encode()}
        found |= {f"{KERNEL}{i}": b.code for i, b in enumerate(self.binaries)}
        return found | {CONSTANTS: self.constants}

    @staticmethod
    def of(members: Mapping[str, memoryview]) -> GpuArtefact:
        """Return the artefact of some members."""
        plans = json.loads(bytes(members[LAYOUT]))
        binaries = [
            KernelBinary(**{**about, "code": bytes(members[f"{KERNEL}{i}"])})
            for i, about in enumerate(plans["kernels"])
        ]
        launches = [Planned(int(k), (int(x), int(y), int(z))) for k, (x, y, z) in plans["launches"]]
        layout = layout_from_json(plans["layout"])
        plain = sum(n.kind == PLAIN for n in layout.every_nest)
        if len(launches) != plain or any(not 0 <= p.kernel < len(binaries) for p in launches):
            raise ValueError("launches and kernels do not fit")
        constants = np.frombuffer(members[CONSTANTS], np.uint8)
        return GpuArtefact(layout, launches, binaries, constants)


def make_artefact(
    module: GpuModule, code: Callable[[CompileRequest], KernelBinary]
) -> GpuArtefact | None:
    """A module with its machine code; None where the host has steps, or random ops a state."""
    if module.host or states_of(module.program.graph):
        return None
    works = [b.work for b in module.every]
    if calls := sorted({w.name for w in works if isinstance(w, Call)}):
        raise ConfigError(
            "the model cannot be saved: it calls other libraries",
            given=", ".join(calls),
            hint="compile it with `monograph compile --target gpu:ARCHITECTURE`, which does not",
        )
    requests = requests_of(module)
    numbers = {r: i for i, r in enumerate(dict.fromkeys(requests))}
    grids = [w.grid for w in works if isinstance(w, Launch)]
    launches = [Planned(numbers[r], g) for r, g in zip(requests, grids, strict=True)]
    binaries = [code(r) for r in numbers]
    return GpuArtefact(layout_of(module), launches, binaries, module.constants)


class LoadedGpuExecutable(GpuProgram):
    """A program that was compiled ahead of time."""

    def __init__(self, artefact: GpuArtefact, device: Device, constants: DeviceConstants) -> None:
        self._artefact = artefact
        super().__init__(artefact.layout, self._made, device, artefact.constants, constants)
        # They are on the device now.
        self._artefact = replace(artefact, constants=np.zeros(0, np.uint8))

    def _made(self) -> list[Record]:
        plans = iter(self._artefact.launches)
        found: list[Record] = []
        for nest, arguments in zip(self.layout.every_nest, self.layout.arguments, strict=True):
            if nest.kind != PLAIN:
                found.append(ConditionalLaunch(nest))
                continue
            plan = next(plans)
            binary = self._artefact.binaries[plan.kernel]
            found.append(self.device.loaded(binary, plan.grid, arguments))
        return found

    def artefact(self) -> GpuArtefact:
        """Return the artefact that was loaded, with its constants."""
        return replace(self._artefact, constants=self._constants.to_host())


def layout_to_json(layout: GpuLayout) -> dict[str, Any]:
    """A layout as JSON has it: types by name."""
    return {
        "inputs": [_slot_to_json(s) for s in layout.inputs],
        "outputs": [_slot_to_json(s) for s in layout.outputs],
        "arguments": [
            [[w.memory, w.offset, w.dtype.name, w.port] for w in row] for row in layout.arguments
        ],
        "nests": [asdict(n) for n in layout.nests],
        "faults": [asdict(f) for f in layout.faults],
        "pieces": layout.pieces,
        **{name: getattr(layout, name) for name in _PLAIN},
    }


_PLAIN = ("arena_bytes", "kept_bytes", "flops", "moved", "bounds_checks")


def layout_from_json(found: Mapping[str, Any]) -> GpuLayout:
    """Return the layout that `layout_to_json` was given."""
    if {f.name for f in fields(GpuLayout)} != {*found}:
        raise ValueError("its layout is of another format")
    return GpuLayout(
        inputs=tuple(map(_slot, found["inputs"])),
        outputs=tuple(map(_slot, found["outputs"])),
        arguments=tuple(
            tuple(BufferRef(memory, at, dtype(kind), port) for memory, at, kind, port in row)
            for row in found["arguments"]
        ),
        pieces=tuple((start, size) for start, size in found["pieces"]),
        faults=tuple(DeviceFaultText(**f) for f in found["faults"]),
        nests=tuple(LaunchTree(**(n | {"bodies": tuple(n["bodies"])})) for n in found["nests"]),
        **{name: found[name] for name in _PLAIN},
    )


def _slot(found: Mapping[str, Any]) -> DevicePort:
    kind, shape = dtype(found["dtype"]), tuple(found["shape"])
    narrowed = found.get("narrowed")  # older packages do not say
    return DevicePort(
        found["name"], kind, shape, found["over"], dtype(narrowed) if narrowed else None
    )


def _slot_to_json(slot: DevicePort) -> dict[str, Any]:
    narrowed = slot.narrowed.name if slot.narrowed else None
    return {**vars(slot), "dtype": slot.dtype.name, "narrowed": narrowed}
