"""The kernels of a code generator, found by the class of the op that they compute.

A kernel module registers its kernels with `kernel_for`. The registry imports the kernel rooms of
the generator (packages, or single modules) before the first lookup, so a new kernel needs no entry
in a central table.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from monograph.ir import Op, Value
from monograph.ir.dtype import COMPLEX
from monograph.program.fusion.op_classes import is_view

G = TypeVar("G")
NOT_KERNELS = ("emit", "module")
"""Rooms of a generator that hold no kernels."""
Serves: TypeAlias = Callable[[Value], bool]
Readable: TypeAlias = Callable[[Value, int, Value], bool]
"""(user, index, operand): True if the kernel of `user` reads this operand through its views."""


def always(value: Value) -> bool:
    return True


def has_elements(value: Value) -> bool:
    """Return True if the first operand has elements."""
    return 0 not in value.inputs[0].tensor.static


def is_real(value: Value) -> bool:
    return value.dtype.kind != COMPLEX


def any_view(user: Value, index: int, operand: Value) -> bool:
    """Return True: the kernel follows views to the stored value."""
    return True


def stored_only(user: Value, index: int, operand: Value) -> bool:
    """Return False for a view: the program stores a copy of it."""
    return not is_view(operand)


@dataclass(frozen=True)
class KernelEntry(Generic[G]):
    """A kernel generator, the values that it serves, and the operands that it reads."""

    make: G
    serves: Serves
    readable: Readable
    runs_empty: bool
    """True if the kernel runs although its result has no elements: it may fail a run."""


class KernelRegistry(Generic[G]):
    """The kernels that the modules of a package register."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._entries: dict[type[Op], list[KernelEntry[G]]] = {}
        self._loaded = False

    def kernel_for(
        self,
        *ops: type[Op],
        when: Serves = always,
        readable: Readable = stored_only,
        runs_empty: bool = False,
        first: bool = False,
    ) -> Callable[[G], G]:
        """Register the decorated kernel generator for op classes and their subclasses.

        `when` says which values of these classes it serves. With `first` it is tried before the
        other kernels of the same class.
        """

        def register(make: G) -> G:
            entry = KernelEntry(make, when, readable, runs_empty)
            for op in ops:
                known = self._entries.setdefault(op, [])
                known.insert(0 if first else len(known), entry)
            return make

        return register

    def find(self, value: Value) -> KernelEntry[G] | None:
        """Return the kernel that computes a value; None where the op has none."""
        self.load()
        for kind in type(value.op).__mro__:
            for entry in self._entries.get(kind, ()):
                if entry.serves(value):
                    return entry
        return None

    def load(self) -> None:
        """Import the kernel modules, which register their kernels; later calls do nothing."""
        if self._loaded:
            return
        package = importlib.import_module(self.package)
        for room in pkgutil.iter_modules(package.__path__):
            if room.name in NOT_KERNELS:
                continue
            found = importlib.import_module(f"{self.package}.{room.name}")
            for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
                importlib.import_module(f"{found.__name__}.{module.name}")
        self._loaded = True
