"""MaxUnpool: zeros, then elements at positions that are data."""

from __future__ import annotations

import math

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.image.grid_sample import ElementReader
from monograph.codegen.llvm.image.windows import blocks, each_pixel, strided_view
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmFault,
    Sync,
    kernel_for,
    report,
    synchronise,
)
from monograph.ir import Value
from monograph.ops.pool import MaxUnpool
from monograph.program.index import strides_of


def serves(value: Value) -> bool:
    """Return True if this kernel computes a value."""
    if not isinstance(value.op, MaxUnpool):
        return False
    x, indices = value.inputs
    return x.tensor.static == indices.tensor.static and 0 not in pooled(value)


def pooled(value: Value) -> tuple[int, ...]:
    """Return the shape that the indices refer to."""
    assert isinstance(value.op, MaxUnpool)
    return tuple(max(0, int(d)) for d in value.op.pooled_shape(value.inputs[0].tensor.static))


@kernel_for(MaxUnpool, when=serves, readable=strided_view)
def unpool(context: KernelContext) -> Kernel:
    """Generate a kernel for unpooling and its epilogue."""
    region, anchor = context.step.region, context.anchor
    context.add(*region.inputs, *region.outputs)
    counted = pooled(anchor)
    total = math.prod(counted)
    fault = context.argument(LlvmFault("index out of range", f"0..{total - 1}"))
    sync = context.argument(Sync())
    b = context.builder()
    scalars = LlvmScalars(b, context.features)
    reader = ElementReader(context, b, scalars)
    epilogue = Epilogue(context, b)
    shape = anchor.tensor.static
    zero = scalars.literal(0, anchor.dtype, 0).reg
    each_pixel(
        b,
        context.threads,
        shape[0],
        shape[1:],
        blocks(1, 1, 1),
        lambda n, _, place, run: epilogue.store([n, *place], zero, 1),
    )
    synchronise(b, sync, context.threads)
    given = anchor.inputs[0].tensor.static

    def move(i: Int, _: list[Reg]) -> None:
        dims = zip(strides_of(given), given, strict=True)
        at = [b.mod(b.div(i, s), d) for s, d in dims]
        index = reader.load(anchor.inputs[1], at).reg
        wrong = b.compare("uge", index, Reg(str(total), "i64"))
        report(b, fault, wrong, index)
        safe = b.set("i64", f"select i1 {wrong}, i64 0, i64 {index}")
        counters = zip(strides_of(counted), counted, strict=True)
        to = [b.mod(b.div(safe, s), d) for s, d in counters]
        inside = Reg("true", "i1")
        for number, size in zip(to, shape, strict=True):
            fits = b.compare("slt", b.i64(number), b.i64(size))
            inside = scalars.a.op("and", inside, fits)
        x = reader.load(anchor.inputs[0], at).reg
        b.when(inside, lambda: epilogue.store(to, x, 1))

    def move_all() -> None:
        b.loop(0, math.prod(given), 1, move)

    # One thread, in order: of several elements for one position the last stays.
    b.when(b.compare("eq", b.arguments["tid"], Reg("0", "i64")), move_all)
    return context.finish(b)
