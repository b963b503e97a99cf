"""Kernels that fail a run: a branch that contradicts its types, and conditions on sizes."""

from __future__ import annotations

import math

from monograph.codegen.triton.emit.tile import tile
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    TritonFault,
    kernel_for,
    single,
)
from monograph.ir import Value, known
from monograph.ops.control import Fail
from monograph.ops.require import Require
from monograph.program.fusion.op_classes import is_view

BLOCK = 512


def readable(user: Value, index: int, operand: Value) -> bool:
    """Return True for the value that is passed on; sizes are not read through views."""
    return index == 0 or not is_view(operand)


@kernel_for(Fail, Require, readable=readable, runs_empty=True)
def candidates(context: GpuContext) -> list[Candidate]:
    return single("each", lambda: _kernel(context))


def _kernel(context: GpuContext) -> Launch:
    """Report the fault, and return the value, or zeros for a branch's results.

    The grid has a program even if there is no element.
    """
    anchor = context.step.region.anchor
    assert anchor is not None
    k = context.kernel()
    t = tile(k)
    pid, size = k.program_id(), math.prod(t.shape)
    k.wait()
    if isinstance(anchor.op, Fail):
        first = k.w.let(f"{pid} == 0", "m")
        k.report(TritonFault(anchor.op.reason, shows_data=False), first, f"{pid}")
    else:
        _compare(k, anchor)
    if size:
        flat = k.w.let(f"{pid} * {BLOCK} + tl.arange(0, {BLOCK})", "i")
        mask = k.w.let(f"{flat} < {size}", "m") if size % BLOCK else None
        t.batch(flat, range(len(t.shape)), mask)
        if isinstance(anchor.op, Fail):
            t.finish_scalar(t.elements.scalars.constant(0, anchor.dtype))
        else:
            t.finish_scalar(t.elements.element(anchor.inputs[0], t.at, t.point))
    k.trigger()
    return k.launch((max(-(-size // BLOCK), 1),))


def _compare(k: KernelWriter, anchor: Value) -> None:
    """Report a size that differs from the expected one."""
    assert isinstance(anchor.op, Require)
    _, expected, given = anchor.inputs
    sizes = known(expected)
    fault = TritonFault(anchor.op.rule, "" if sizes is None else str(sizes.tolist()))
    if expected.tensor.shape != given.tensor.shape:
        wrong = k.w.let(f"{k.program_id()} == 0", "m")
        k.report(fault, wrong, f"({wrong}).to(tl.int64) * {given.tensor.size}")
        return
    count = given.tensor.size
    if not count:
        return
    number = k.w.let(f"tl.arange(0, {1 << (count - 1).bit_length()})", "j")
    found = []
    for value in (expected, given):
        # a vector, or a scalar
        step = (k.context.program.places.storage[value].strides or (0,))[0]
        where = f"{k.pointer(value)} + {number} * {step}"
        found.append(k.w.let(f"tl.load({where}, mask={number} < {count}, other=0)", "n"))
    k.report(fault, k.w.let(f"{found[0]} != {found[1]}", "m"), found[1])
