"""The nesting of a module's work: what each branch and each loop contains."""

from __future__ import annotations

from monograph.codegen.triton.module.kernel import Branch, RepeatWork
from monograph.codegen.triton.module.layout import Bound, GpuModule
from monograph.runtime.gpu.capture.control import BRANCH, REPEAT, LaunchTree


def nests(module: GpuModule) -> tuple[LaunchTree, ...]:
    """Return the nesting of the works of a module, in the order of `module.every`.

    Empty where none does.
    """
    found = tuple(nest_of(bound) for bound in module.every)
    return found if any(nest.bodies for nest in found) else ()


def nest_of(bound: Bound) -> LaunchTree:
    """Return the nesting of a piece of work."""
    sizes = tuple(map(len, bound.bodies))
    if isinstance(bound.work, Branch):
        return LaunchTree(BRANCH, sizes)
    if isinstance(bound.work, RepeatWork):
        return LaunchTree(REPEAT, sizes, bound.work.count)
    return LaunchTree()
