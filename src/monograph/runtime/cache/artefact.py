"""A compiled program as named members, the form in which caches and packages store it.

    layout      JSON: ports, buffers, functions
    object0...  object code
    constants   constants as kernels read them

Nothing is unpickled. The storage checks that members are read as they were written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from monograph.ir import Array, dtype, parse_type
from monograph.ir.lazy import lazy
from monograph.runtime.cache.object_cache import Buffer
from monograph.runtime.cpu.launch import Layout, NativeExecutable, NativeFaultText, NativePort
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.executable import Executable
from monograph.runtime.feeds import Metadata, ModelSignature, Port

if TYPE_CHECKING:
    from monograph.codegen.llvm.module.compile import Module
    from monograph.program.program import Program
    from monograph.runtime.cpu.executable import CpuExecutable

FORMAT = 3
"""The format of members; raise it when their meaning changes."""
LAYOUT, CONSTANTS, OBJECT = "layout", "constants", "object"
_PORTS = ("inputs", "outputs", "optional")


@dataclass(frozen=True)
class Artefact:
    """A compiled program that is one native function, independent of its process."""

    layout: Layout
    objects: Sequence[Buffer]
    constants: Array

    @property
    def whole(self) -> bool:
        """Return whether one native function does all the work."""
        return self.layout.whole

    def members(self) -> dict[str, Buffer]:
        """Return the members by name."""
        found: dict[str, Buffer] = {LAYOUT: json.dumps(layout_to_json(self.layout)).encode()}
        found |= {f"{OBJECT}{i}": data for i, data in enumerate(self.objects)}
        return found | {CONSTANTS: self.constants}

    @staticmethod
    def of(members: Mapping[str, memoryview]) -> Artefact:
        """Return the artefact that the members hold."""
        count = sum(name.startswith(OBJECT) for name in members)
        return Artefact(
            layout_from_json(json.loads(bytes(members[LAYOUT]))),
            [members[f"{OBJECT}{i}"] for i in range(count)],
            np.frombuffer(members[CONSTANTS], np.uint8),
        )


class LoadedExecutable(NativeExecutable):
    """A compiled program loaded from disk. Its program is compiled again when asked for."""

    def __init__(self, artefact: Artefact, compile_again: Callable[[], Executable]) -> None:
        objects = [bytes(data) for data in artefact.objects]
        code = NativeCode(objects, artefact.layout.functions)
        super().__init__(artefact.layout, code, artefact.constants)
        self._artefact = artefact
        self._compile_again = compile_again

    def artefact(self) -> Artefact:
        """Return the artefact that was loaded."""
        return self._artefact

    @lazy
    def _compiled(self) -> CpuExecutable:
        from monograph.runtime.cpu.executable import CpuExecutable

        made = self._compile_again()
        assert isinstance(made, CpuExecutable)
        return made

    @property
    def program(self) -> Program:
        """The program, compiled again from the model."""
        return self._compiled.program

    @property
    def programs(self) -> list[Program]:
        return [self.program]

    @property
    def module(self) -> Module:
        """The program before code generation, compiled again from the model."""
        return self._compiled.module


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout as JSON data."""
    slots = {
        which: [asdict(s) | {"dtype": s.dtype.name} for s in getattr(layout, which)]
        for which in ("inputs", "outputs")
    }
    return (
        {f: getattr(layout, f) for f in Layout.__dataclass_fields__}
        | slots
        | {"faults": [asdict(f) for f in layout.faults]}
    )


def layout_from_json(found: Mapping[str, Any]) -> Layout:
    """Return the layout that `layout_to_json` was given."""
    slots = {
        which: tuple(
            NativePort(**(s | {"dtype": dtype(s["dtype"]), "shape": tuple(s["shape"])}))
            for s in found[which]
        )
        for which in ("inputs", "outputs")
    }
    rest = {f: found[f] for f in Layout.__dataclass_fields__}
    values: dict[str, Any] = {f: tuple(x) if isinstance(x, list) else x for f, x in rest.items()}
    values |= slots | {"faults": tuple(map(_fault, found["faults"]))}
    return Layout(**values)


def _fault(found: Mapping[str, Any]) -> NativeFaultText:
    return NativeFaultText(**{**found, "buffers": tuple(found["buffers"])})


def signature_to_json(signature: ModelSignature) -> dict[str, Any]:
    """Return a signature as JSON data; types are text."""
    ports = {which: getattr(signature, which) for which in _PORTS}
    return {
        **{
            which: [[p.name, None if p.type is None else str(p.type)] for p in group]
            for which, group in ports.items()
        },
        "metadata": asdict(signature.metadata),
    }


def signature_from_json(found: Mapping[str, Any]) -> ModelSignature:
    """Return the signature that `signature_to_json` was given."""
    return ModelSignature(
        **{
            which: tuple(Port(name, text and parse_type(text)) for name, text in found[which])
            for which in _PORTS
        },
        metadata=Metadata(**found["metadata"]),
    )
