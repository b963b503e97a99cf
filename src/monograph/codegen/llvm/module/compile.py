"""A program as one native function: kernels in order, barriers between dependent ones.

The kernels between two barriers are a stage. Its parts are claimed by the threads that are there
(see `parts`), unless the threads of some kernel wait for each other: then all run everything.

Code that is compiled for profiling has time stamps around steps. Every thread records when it
begins a step and when it has finished it, before it waits for others. The clock is the system's
monotonic one: it needs no calibration, agrees between cores, and is the one that Python reads, so
that host steps share its time line. Reading it costs about 20 ns.
"""

from __future__ import annotations

from dataclasses import replace

from monograph.codegen.llvm.module.assembler import Assembler, Module
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    LlvmScratch,
)
from monograph.codegen.llvm.module.memory import ConstantLayout
from monograph.codegen.llvm.module.select import generator
from monograph.codegen.llvm.module.stamps import Stamps
from monograph.errors import InternalError
from monograph.ir import TensorType
from monograph.ops.attention import Attention
from monograph.ops.conv import Conv
from monograph.ops.conv_transpose import ConvTranspose
from monograph.ops.linear import Dot
from monograph.ops.pool import Pool
from monograph.program.memory.memory_planner import Lifetime, plan
from monograph.program.program import Program, Step, lifetimes


def compile_program(
    program: Program,
    features: Features,
    threads: int,
    winograd: bool = True,
    *,
    timed: bool = False,
    apart: bool = False,
    checked: bool = False,
) -> Module:
    """Return the text of a program's native functions, and the constants they read.

    timed: every thread records the begin and end of each step. apart: every step is a function of
    its own, so that its results can be read. checked: every memory access is checked against its
    buffer.
    """
    constants = ConstantLayout(SLACK)
    kernels = [
        _laid_out(_kernel(program, step, features, threads, winograd, checked), constants)
        for step in program.steps
    ]
    scratch: dict[tuple[int, int], int] = {}
    lives = lifetimes(program.steps, program.places)
    for step, kernel in zip(program.steps, kernels, strict=True):
        for position, argument in enumerate(kernel.arguments if kernel else ()):
            if isinstance(argument, LlvmScratch):
                key = -1 - len(scratch)
                scratch[step.index, position] = key
                lives.append(Lifetime(key, argument.nbytes, step.index, step.index))
    memory = plan(lives)
    # After the slack at the arena's end.
    stamps = Stamps(memory.size + SLACK, threads, len(program.steps)) if timed else None
    assembler = Assembler(
        program, features, threads, memory.offsets, scratch, constants, stamps, apart, checked
    )
    return assembler.module(kernels, memory.size if stamps is None else stamps.stop)


def _kernel(
    program: Program, step: Step, features: Features, threads: int, winograd: bool, checked: bool
) -> Kernel | None:
    make = generator(step.region)
    if make is None:
        return None
    context = KernelContext(program, step, features, threads, winograd, checked)
    if _makes_nothing(step):
        return _no_work(context)
    try:
        return make(context)
    except InternalError as error:
        raise error.at(step.origin or None, f"step {step.index}, {step.region.kind}") from None


def kernel_text(
    program: Program, step: Step, features: Features, threads: int, winograd: bool = True
) -> str | None:
    """Return the LLVM text of a step's kernel; None for a step on the host."""
    kernel = _kernel(program, step, features, threads, winograd, False)
    return None if kernel is None else kernel.text


def _no_work(context: KernelContext) -> Kernel:
    """Return a kernel without work; later steps wait for it: its results may have a halo."""
    context.add(*context.step.region.outputs)
    return context.finish(context.builder())


def _makes_nothing(step: Step) -> bool:
    """Return True if all results of a step are empty, and it checks none of its data."""
    anchor = step.region.anchor
    if anchor is not None and not isinstance(anchor.op, _UNCHECKED):
        return False
    types = [v.type for v in step.region.outputs]
    return all(isinstance(t, TensorType) and t.is_static and t.size == 0 for t in types)


_UNCHECKED = (Attention, Conv, ConvTranspose, Dot, Pool)
"""Ops whose kernels tile their results, and take any data."""


def _laid_out(kernel: Kernel | None, constants: ConstantLayout) -> Kernel | None:
    """Return a kernel without its packed constants: these are as large as the model's weights."""
    if kernel is None or not any(isinstance(a, LlvmPacked) for a in kernel.arguments):
        return kernel
    arguments = tuple(
        constants.add(a.array) if isinstance(a, LlvmPacked) else a for a in kernel.arguments
    )
    return replace(kernel, arguments=arguments)
