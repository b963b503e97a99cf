"""A compiled program as named members, the form in which caches and packages store it.

    layout      JSON: ports, buffers, functions
    object0...  object code
    constants   small constants as kernels read them

Large constants (weights) are stored once for all programs of a model, by the digest of their bytes.
Nothing is unpickled. The storage checks that members are read as they were written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from monograph.ir import Array, dtype, parse_type
from monograph.ir.lazy import lazy
from monograph.runtime.cache.object_cache import Buffer
from monograph.runtime.cpu.launch import Layout, NativeExecutable, NativeFaultText, NativePort
from monograph.runtime.cpu.native import NativeCode
from monograph.runtime.executable import Executable
from monograph.runtime.feeds import Metadata, ModelSignature, Port

if TYPE_CHECKING:
    from monograph.codegen.llvm.module.assembler import Module
    from monograph.program.program import Program
    from monograph.runtime.cpu.executable import CpuExecutable

FORMAT = 6
"""The format of members; raise it when their meaning changes."""
LAYOUT, CONSTANTS, OBJECT = "layout", "constants", "object"
_PORTS = ("inputs", "outputs", "optional")
Weights: TypeAlias = Callable[[Sequence[str]], Mapping[str, Array]]
"""Returns the large constants of these digests, in this order; KeyError where one is missing."""

Number: TypeAlias = Callable[[Any], Any]
"""Writes a size as JSON data, or reads it."""


def _same(size: Any) -> Any:
    return size


@dataclass(frozen=True)
class Artefact:
    """A compiled program that is one native function, independent of its process."""

    layout: Layout
    objects: Sequence[Buffer]
    constants: Array
    weights: Mapping[str, Array]
    """The large constants by digest, in the order of the layout."""

    @property
    def whole(self) -> bool:
        """Return whether one native function does all the work."""
        return self.layout.whole

    def members(self, number: Number = _same) -> dict[str, Buffer]:
        """Return the members by name, without the weights; `number` writes open sizes."""
        layout = json.dumps(layout_to_json(self.layout, number)).encode()
        found: dict[str, Buffer] = {LAYOUT: layout}
        found |= {f"{OBJECT}{i}": data for i, data in enumerate(self.objects)}
        return found | {CONSTANTS: self.constants}

    @staticmethod
    def of(members: Mapping[str, memoryview], weights: Weights, number: Number = _same) -> Artefact:
        """Return the artefact that the members hold.

        weights: finds its large constants. number: reads open sizes.
        """
        count = sum(name.startswith(OBJECT) for name in members)
        layout = layout_from_json(json.loads(bytes(members[LAYOUT])), number)
        return Artefact(
            layout,
            [members[f"{OBJECT}{i}"] for i in range(count)],
            np.frombuffer(members[CONSTANTS], np.uint8),
            weights(layout.weights),
        )


class LoadedExecutable(NativeExecutable):
    """A compiled program loaded from disk. Its program is compiled again when asked for."""

    def __init__(self, artefact: Artefact, compile_again: Callable[[], Executable]) -> None:
        objects = [bytes(data) for data in artefact.objects]
        code = NativeCode(objects, artefact.layout.functions)
        super().__init__(artefact.layout, code, artefact.constants, artefact.weights)
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


def layout_to_json(layout: Layout, number: Number = _same) -> dict[str, Any]:
    """Return a layout as JSON data."""
    slots: dict[str, Any] = {
        which: [
            asdict(s) | {"dtype": s.dtype.name, "shape": [number(n) for n in s.shape]}
            for s in getattr(layout, which)
        ]
        for which in ("inputs", "outputs")
    }
    slots["arena_bytes"] = number(layout.arena_bytes)
    return (
        {f: getattr(layout, f) for f in Layout.__dataclass_fields__}
        | slots
        | {"faults": [asdict(f) for f in layout.faults]}
    )


def layout_from_json(found: Mapping[str, Any], number: Number = _same) -> Layout:
    """Return the layout that `layout_to_json` was given."""
    slots: dict[str, Any] = {
        which: tuple(
            NativePort(
                **(s | {"dtype": dtype(s["dtype"]), "shape": tuple(map(number, s["shape"]))})
            )
            for s in found[which]
        )
        for which in ("inputs", "outputs")
    }
    slots["arena_bytes"] = number(found["arena_bytes"])
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
