"""The choice of a kernel for a region on the CPU, or the reason why the region runs on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monograph.codegen.llvm.control import control
from monograph.codegen.llvm.conv import choose as conv
from monograph.codegen.llvm.emit.map_kernel import pointwise
from monograph.codegen.llvm.module.kernel import (
    KERNELS,
    KernelGenerator,
    no_work,
)
from monograph.ir import (
    Constant,
    Graph,
    Input,
    Item,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    Value,
    subgraphs,
)
from monograph.ir.dtype import COMPLEX, STRING
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.deferred import Deferred
from monograph.ops.linear import Dot
from monograph.program.dynamic.bounded import BoundedLoop
from monograph.program.dynamic.stages import is_host_loop
from monograph.program.fusion.op_classes import is_native, is_view
from monograph.program.fusion.region import Region
from monograph.program.fusion.siblings import merge_reductions
from monograph.program.legalise.lower_complex import in_parts
from monograph.program.lowering import CPU_LOWERING, LoweringTarget
from monograph.program.memory.buffer_assignment import Halo

STRUCTURE = (Constant, Input, Item)
_CONTAINERS = {SequenceType: "a sequence", OptionalType: "an optional", MapType: "a map"}


def region_name(region: Region) -> str:
    """Return the op that names a region without a kernel."""
    return region.root.op.name if region.anchor is None else region.kind


def host_reason(region: Region) -> str:
    """Say why a region that no generator serves runs on the host."""
    reasons = (_of_value(v) for v in (region.root, *region.body, *region.inputs))
    found = next((r for r in reasons if r), "")
    if found:
        return found
    for v in (*region.outputs, *region.inputs, *_inside(region)):
        if _is_open(v.type):
            within = "" if v in region.outputs or v in region.inputs else f"inside it {v.op.name}: "
            return f"{within}the data decide a size that nothing bounds"
    return "its shapes are refused: the reference says why"


def _inside(region: Region) -> list[Value]:
    """The values of the sub-graphs that a region's op carries."""
    if region.anchor is None:
        return []
    return [v for graph in subgraphs(region.anchor.op) for v in graph.values]


def host_reasons(graph: Graph) -> dict[str, str]:
    """Return the ops of a graph that run on the host whatever its sizes, and the reasons."""
    graph = in_parts(graph) or graph
    found: dict[str, str] = {}
    for v in graph.values:
        if isinstance(v.op, STRUCTURE) or not (why := _of_value(v)):
            continue
        if is_host_loop(v):  # its iterations are compiled except for these
            for inner in subgraphs(v.op):
                found |= host_reasons(inner)
        else:
            found[v.op.name] = why
    return found


def _of_value(value: Value) -> str:
    """Return why an op runs on the host; "" if its kind and types do not decide it."""
    kind = value.op.target_class if isinstance(value.op, Deferred) else type(value.op)
    if kind.host_reason:
        return kind.host_reason
    held = _of_types((value.type, *(v.type for v in value.inputs)))
    if held:
        return held
    for graph in subgraphs(value.op):
        for inner in graph.values:
            if why := _of_value(inner):
                return f"inside it {inner.op.name}: {why}"
    return ""


def _of_types(types: Iterable[Type]) -> str:
    for t in types:
        if isinstance(t, TupleType):
            if found := _of_types(t.items):
                return found
        elif not isinstance(t, TensorType):
            return _CONTAINERS[type(t)]
        elif t.dtype.kind in (STRING, COMPLEX):
            return "strings" if t.dtype.kind == STRING else "complex numbers"
    return ""


def _is_open(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(map(_is_open, type_.items))
    return isinstance(type_, TensorType) and not type_.is_static


def generator(region: Region) -> KernelGenerator | None:
    """Return the kernel generator of a region; None where it runs on the host."""
    if not all(map(is_native, (*region.inputs, *region.body))):
        return None
    if region.anchor is None:
        return pointwise
    entry = KERNELS.find(region.anchor)
    if entry is not None:
        return entry.make
    return no_work if _is_empty(region) else None


def compiles(value: Value) -> bool:
    """Return True if a branch or a loop is compiled: its sizes are known, and all inside too."""
    return all(map(is_native, (value, *value.inputs))) and control.serves(value)


def _is_empty(region: Region) -> bool:
    """Return True if there is nothing to compute, and no operand to check."""
    assert region.anchor is not None
    empty = all(0 in v.tensor.static for v in region.outputs)
    return empty and not region.anchor.op.checks_operands


@dataclass(frozen=True)
class CpuTarget(LoweringTarget):
    """The rules of the CPU's kernels."""

    lowering = CPU_LOWERING
    host_loops = True

    def compiles(self, value: Value) -> bool:
        return compiles(value)

    def host_reason(self, region: Region) -> str:
        return "" if generator(region) is not None else host_reason(region)

    def readable(self, user: Value, index: int, operand: Value) -> bool:
        native = all(map(is_native, (user, *user.inputs)))
        entry = KERNELS.find(user) if native else None
        if entry is None:
            return user.op.reads_expressions or not is_view(operand)
        return entry.readable(user, index, operand)

    def halo(self, user: Value, index: int) -> Halo | None:
        """Return the zeros that a padded convolution reads around its input."""
        return conv.halo(user, index)

    def merged(self, graph: Graph, regions: list[Region]) -> list[Region]:
        """Join reductions of the same rows."""
        return merge_reductions(regions)

    def overwrites(self, region: Region) -> bool:
        """Return True for loops over elements, updates, state, and disjoint tiles of layers."""
        if generator(region) is None:
            return False
        if region.anchor is None or region.anchor.op.updates_first:
            return True
        return isinstance(region.anchor.op, (Conv, Dot, Loop, BoundedLoop))
