"""A compiled GPU program as named members of a file: launches, machine code, weights.

    layout      JSON: what a run has to know, and which kernel is launched how
    kernel0...  machine code (a cubin, or an hsaco for AMD)

The constants, in the form that kernels read, are stored by the digests of their bytes: programs of
a model share them. Nothing is unpickled, and nothing is compiled when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from monograph.codegen.triton.module.launch import BufferRef
from monograph.codegen.triton.module.library import FUNCTIONS
from monograph.ir import Array, dtype
from monograph.ir.lazy import lazy
from monograph.runtime.cache.artefact import Number, Weights
from monograph.runtime.cache.object_cache import Buffer
from monograph.runtime.executable import Executable, WrappedExecutable
from monograph.runtime.gpu.bound_program import DeviceFaultText, DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.build.binaries import KernelBinary
from monograph.runtime.gpu.capture.control import PLAIN, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.driver.devices import Device, Record
from monograph.runtime.gpu.library_record import LibraryRecord, TensorView
from monograph.runtime.gpu.memory import NO_CONSTANTS, ConstantBlock, DeviceConstants, out_of_memory

if TYPE_CHECKING:
    from monograph.codegen.triton.module.layout import GpuModule
    from monograph.program.program import Program
    from monograph.runtime.gpu.executable import GpuExecutable

LAYOUT, KERNEL = "layout", "kernel"


def same(number: Any) -> Any:
    """Return a size as it is: it is not open."""
    return number


@dataclass(frozen=True)
class Planned:
    """A launch: which kernel, on which grid."""

    kernel: int
    grid: tuple[int, int, int]
    sizes: tuple[int, ...] = ()
    """The open sizes that the kernel takes as numbers."""
    for_multiples: int = -1
    """The kernel for sizes that are all multiples of 16; -1 for the same one."""


@dataclass(frozen=True)
class PlannedCall:
    """A call of a library: which function, with what, on tensors of which shape and strides."""

    name: str
    options: Mapping[str, Any]
    views: tuple[TensorView, ...]


@dataclass(frozen=True)
class GpuArtefact:
    """A compiled program that the device alone can run, apart from the process that made it."""

    layout: GpuLayout
    launches: Sequence[Planned | PlannedCall]
    """Of the works that are no branches or loops, in order."""
    binaries: Sequence[KernelBinary]
    digests: Sequence[str]
    """The digests of the pieces of constants."""
    find: Callable[[Sequence[str]], Mapping[str, Array]]
    """Returns pieces by digest."""
    choices: Mapping[str, str]
    """The measured winner of each problem that a measurement decided."""

    @property
    def whole(self) -> bool:
        """Return True: the device does all the work."""
        return True

    @property
    def weights(self) -> Mapping[str, Array]:
        """The pieces of constants by digest, each found when it is asked for."""
        return _FoundWeights(list(dict.fromkeys(self.digests)), self.find)

    def members(self, number: Number = same) -> dict[str, Buffer]:
        """Return the members by name, without the weights; `number` writes open sizes."""
        plans = {
            "layout": layout_to_json(self.layout, number),
            "launches": [_launch_to_json(p, number) for p in self.launches],
            "kernels": [{**asdict(b), "code": None} for b in self.binaries],
            "digests": list(self.digests),
            "choices": dict(self.choices),
        }
        found: dict[str, Buffer] = {LAYOUT: json.dumps(plans).encode()}
        return found | {f"{KERNEL}{i}": b.code for i, b in enumerate(self.binaries)}

    @staticmethod
    def of(
        members: Mapping[str, memoryview], weights: Weights, number: Number = same
    ) -> GpuArtefact:
        """Return the artefact of some members; `weights` finds constants, `number` reads sizes."""
        plans = json.loads(bytes(members[LAYOUT]))
        binaries = [
            KernelBinary(**{**about, "code": bytes(members[f"{KERNEL}{i}"])})
            for i, about in enumerate(plans["kernels"])
        ]
        launches = [_launch_from_json(p, number) for p in plans["launches"]]
        layout = layout_from_json(plans["layout"], number)
        digests = [str(d) for d in plans["digests"]]
        choices = {str(k): str(name) for k, name in plans["choices"].items()}
        _check_fit(layout, launches, len(binaries), digests)
        return GpuArtefact(layout, launches, binaries, digests, weights, choices)


class _FoundWeights(Mapping[str, Array]):
    """Constants that a function finds."""

    def __init__(
        self, digests: Sequence[str], find: Callable[[Sequence[str]], Mapping[str, Array]]
    ) -> None:
        self._digests = digests
        self._find = find

    def __getitem__(self, digest: str) -> Array:
        return self._find([digest])[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._digests)

    def __len__(self) -> int:
        return len(self._digests)


def _check_fit(
    layout: GpuLayout,
    launches: Sequence[Planned | PlannedCall],
    kernels: int,
    digests: Sequence[str],
) -> None:
    """Raise a ValueError for parts that are not of one program."""
    if len(launches) != sum(n.kind == PLAIN for n in layout.every_nest):
        raise ValueError("launches and kernels do not fit")
    for launch in launches:
        if isinstance(launch, PlannedCall):
            if launch.name not in FUNCTIONS:
                raise ValueError(f"no library has {launch.name}")
        elif not 0 <= launch.kernel < kernels or not -1 <= launch.for_multiples < kernels:
            raise ValueError("launches and kernels do not fit")
    if len(digests) != len(layout.pieces):
        raise ValueError("constants and their digests do not fit")


def _launch_to_json(launch: Planned | PlannedCall, number: Number) -> Any:
    if isinstance(launch, PlannedCall):
        return {"library": launch.name, "options": launch.options, "views": launch.views}
    grid, sizes = [number(n) for n in launch.grid], [number(n) for n in launch.sizes]
    return [launch.kernel, grid, sizes, launch.for_multiples] if sizes else [launch.kernel, grid]


def _launch_from_json(found: Any, number: Number) -> Planned | PlannedCall:
    if isinstance(found, Mapping):
        views = tuple(view and (tuple(view[0]), tuple(view[1])) for view in found["views"])
        return PlannedCall(str(found["library"]), dict(found["options"]), views)
    kernel, grid, *rest = found
    x, y, z = map(number, grid)
    sizes, other = rest or ((), -1)
    return Planned(int(kernel), (x, y, z), tuple(map(number, sizes)), int(other))


class LoadedGpuExecutable(GpuProgram):
    """A program that was compiled before, by this process or another."""

    def __init__(
        self,
        artefact: GpuArtefact,
        device: Device,
        constants: DeviceConstants,
        compile_again: Callable[[], Executable],
    ) -> None:
        self._artefact = artefact
        self._compile_again = compile_again
        block = upload_constants(artefact, device, constants)
        super().__init__(artefact.layout, self._made, device, NO_CONSTANTS, block)

    def _made(self) -> list[Record]:
        plans = iter(self._artefact.launches)
        found: list[Record] = []
        for nest, arguments in zip(self.layout.every_nest, self.layout.arguments, strict=True):
            if nest.kind != PLAIN:
                found.append(ConditionalLaunch(nest))
                continue
            plan = next(plans)
            if isinstance(plan, PlannedCall):
                function = partial(FUNCTIONS[plan.name], **plan.options)
                dtypes = [a.dtype for a in arguments]
                found.append(LibraryRecord(function, dtypes, plan.views))
                continue
            binary = self._artefact.binaries[plan.kernel]
            found.append(self.device.loaded(binary, plan.grid, arguments))
        return found

    def artefact(self) -> GpuArtefact:
        """Return the artefact that was loaded."""
        return self._artefact

    @lazy
    def _compiled(self) -> GpuExecutable:
        from monograph.runtime.gpu.executable import GpuExecutable

        made = self._compile_again()
        if isinstance(made, WrappedExecutable):
            made = made.inner
        assert isinstance(made, GpuExecutable)
        return made

    @property
    def module(self) -> GpuModule:
        """The module of the program, compiled again from the model."""
        return self._compiled.module

    @property
    def program(self) -> Program:
        """The program, compiled again from the model."""
        return self._compiled.program

    @property
    def programs(self) -> list[Program]:
        return [self.program]


def upload_constants(
    artefact: GpuArtefact, device: Device, constants: DeviceConstants
) -> ConstantBlock:
    """Return the constants of an artefact on a device, where what is there is shared."""
    layout = artefact.layout
    try:
        return constants.upload_stored(layout.pieces, artefact.digests, artefact.find)
    except torch.OutOfMemoryError as e:
        size = sum(count for _, count in layout.pieces)
        raise out_of_memory(device, layout.arena_bytes, size, layout.kept_bytes, e) from None


def layout_to_json(layout: GpuLayout, number: Number = same) -> dict[str, Any]:
    """A layout as JSON has it: types by name; `number` writes open sizes."""
    return {
        "inputs": [_slot_to_json(s, number) for s in layout.inputs],
        "outputs": [_slot_to_json(s, number) for s in layout.outputs],
        "arguments": [
            [[w.memory, number(w.offset), w.dtype.name, w.port] for w in row]
            for row in layout.arguments
        ],
        "nests": [asdict(n) for n in layout.nests],
        "faults": [asdict(f) for f in layout.faults],
        "pieces": layout.pieces,
        "arena_bytes": number(layout.arena_bytes),
        "streams": layout.streams,
        "waits": layout.waits,
        **{name: getattr(layout, name) for name in _PLAIN},
    }


_PLAIN = ("kept_bytes", "flops", "moved", "bounds_checks", "stream_key")


def layout_from_json(found: Mapping[str, Any], number: Number = same) -> GpuLayout:
    """Return the layout that `layout_to_json` was given."""
    if {f.name for f in fields(GpuLayout)} != {*found}:
        raise ValueError("its layout is of another format")
    return GpuLayout(
        inputs=tuple(_slot(s, number) for s in found["inputs"]),
        outputs=tuple(_slot(s, number) for s in found["outputs"]),
        arguments=tuple(
            tuple(
                BufferRef(memory, number(at), dtype(kind), port) for memory, at, kind, port in row
            )
            for row in found["arguments"]
        ),
        pieces=tuple((start, size) for start, size in found["pieces"]),
        faults=tuple(DeviceFaultText(**f) for f in found["faults"]),
        nests=tuple(LaunchTree(**(n | {"bodies": tuple(n["bodies"])})) for n in found["nests"]),
        arena_bytes=number(found["arena_bytes"]),
        streams=tuple(found["streams"]),
        waits=tuple(map(tuple, found["waits"])),
        **{name: found[name] for name in _PLAIN},
    )


def _slot(found: Mapping[str, Any], number: Number) -> DevicePort:
    if {f.name for f in fields(DevicePort)} != {*found}:
        raise ValueError("a port is of another format")
    kind, shape = dtype(found["dtype"]), tuple(map(number, found["shape"]))
    narrowed = found["narrowed"]
    return DevicePort(
        found["name"], kind, shape, found["over"], dtype(narrowed) if narrowed else None
    )


def _slot_to_json(slot: DevicePort, number: Number) -> dict[str, Any]:
    narrowed = slot.narrowed.name if slot.narrowed else None
    shape = [number(n) for n in slot.shape]
    return {**vars(slot), "dtype": slot.dtype.name, "narrowed": narrowed, "shape": shape}
