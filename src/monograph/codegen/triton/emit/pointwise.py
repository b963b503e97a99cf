"""Loops over elements: fused pointwise work, copies, views."""

from __future__ import annotations

import math
from collections.abc import Sequence

from monograph.codegen.triton.emit.elements import BlockAxis, TritonElements
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, Launch
from monograph.ir import Value
from monograph.program.fusion.access import Element, Indices, counters
from monograph.program.fusion.region import merge
from monograph.program.index import Counter, Index, flatten

BLOCKS = ((128, 4), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))
"""(elements of a program, warps) to try."""


def pointwise(context: GpuContext) -> list[Candidate]:
    """Kernels that compute every element of a region's outputs, which share a shape."""
    size = math.prod(context.step.region.outputs[0].tensor.static)
    fitting = [b for b in BLOCKS if b[0] <= max(128, size)]
    default = max(fitting, key=lambda b: (size // b[0] >= 264, -abs(b[0] - 512)))
    ordered = [default, *(b for b in fitting if b != default)]
    return [
        Candidate(f"flat {block} w{warps}", lambda b=block, w=warps: (_flat(context, b, w),))  # type: ignore[misc]
        for block, warps in ordered
    ]


def _flat(context: GpuContext, block: int, warps: int) -> Launch:
    region = context.step.region
    k = context.kernel()
    elements = k.elements()
    shape = region.outputs[0].tensor.static
    size = math.prod(shape)
    plain = counters(shape)
    at = merge(shape, plain, _positions(elements, region.outputs, plain))
    order = elements.plan(region.outputs, at)
    pid = k.program_id()
    flat = k.w.let(f"{pid} * {block} + tl.arange(0, {block})", "i")
    mask = k.w.let(f"{flat} < {size}", "m") if size % block else None
    k.wait()
    point = spread(k.w.let, flat, mask, at)
    made = elements.emit(order, point)
    k.trigger()
    for value in region.outputs:
        elements.store(value, at, made[Element(value, at)], point)
    return k.launch((-(-size // block),), warps)


def spread(let: object, flat: str, mask: str | None, at: Indices) -> dict[Counter, BlockAxis]:
    """Return the counters of a loop nest from the row-major number of an element."""
    assert callable(let)
    found = {c for index in at for c in index.counters}
    nest = sorted(found, key=lambda c: (len(c.name), c.name))
    point = {}
    step = math.prod(c.extent for c in nest)
    for number, c in enumerate(nest):
        step //= c.extent
        text = flat if step == 1 else let(f"({flat}) // {step}", "q")
        if number:
            text = let(f"({text}) % {c.extent}", "r")
        point[c] = BlockAxis(text, mask)
    return point


def _positions(elements: TritonElements, outputs: Sequence[Value], at: Indices) -> list[Index]:
    """Every position in memory that the loop reads or writes."""
    found = [
        flatten(r.element.at, elements.storage[r.element.value].strides)
        for r in elements.plan(outputs, at)
        if not r.operands and r.element.value in elements.storage
    ]
    return found + [flatten(at, elements.storage[v].strides) for v in outputs]
