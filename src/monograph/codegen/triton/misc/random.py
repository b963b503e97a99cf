"""Random numbers: those of the reference, from the Mersenne twister that numpy has frozen.

All words of an op come from one generator in order, so one program makes them; what follows is a
kernel on as many as there are numbers. The op's own state says how often it has drawn before, and
with that its key seeds the generator: the state lies at a fixed address, and every run counts it
up once, whoever launches it.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.triton.emit.indexed_load import joined, register
from monograph.codegen.triton.emit.map_kernel import each
from monograph.codegen.triton.emit.tile import ResultTile
from monograph.codegen.triton.emit.writer import literal
from monograph.codegen.triton.misc.twister import LANES, WORDS, TritonTwister
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    TritonScratch,
    Work,
    single,
)
from monograph.ir import Value
from monograph.ir.dtype import f64, i32
from monograph.ops.random import Random, RandomNormal, RandomUniform
from monograph.program.fusion.op_classes import is_view
from monograph.program.legalise.lower_random import Drawn

_TRIES = WORDS // 4
"""Points in a square that a list of words makes."""
Making = Callable[[KernelWriter, TritonTwister], None]
"""Writes what is made of a seeded generator."""
Number = Callable[[KernelWriter, str, "str | None"], str]
"""Writes how numbers at some places, within a mask, are found."""


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Drawn)


def readable(user: Value, index: int, operand: Value) -> bool:
    return not is_view(operand)


def candidates(context: GpuContext) -> list[Candidate]:
    """One way: a measurement would count the state up."""
    return single("twister", lambda: _drawn(context))


def _drawn(context: GpuContext) -> tuple[Work, ...]:
    anchor = context.step.region.anchor
    assert anchor is not None
    assert isinstance(anchor.op, Drawn)
    op, count = anchor.op.of, anchor.tensor.size
    assert isinstance(op, Random)
    if isinstance(op, RandomUniform):
        lists = -(-2 * count // WORDS)
        words = TritonScratch(4 * WORDS * (lists + 1), i32)
        first = _made(context, words, lambda k, t: _in_order(k, t, lists))
        return first, _finished(context, lambda k, at, mask: _uniform(k, op, words, at, mask))
    assert isinstance(op, RandomNormal)
    words, numbers = TritonScratch(4 * WORDS * 2, i32), TritonScratch(8 * count, f64)
    first = _made(context, words, lambda k, t: _inside_circle(k, t, numbers, count))
    return first, _finished(context, lambda k, at, mask: _normal(k, op, numbers, at, mask))


def _made(context: GpuContext, words: TritonScratch, body: Making) -> Launch:
    """The kernel that has the generator."""
    anchor = context.step.region.anchor
    assert anchor is not None
    k = context.kernel()
    state = k.pointer(anchor.inputs[0])
    twister = TritonTwister(k, k.pointer(words))
    k.wait()
    twister.seed(state)
    body(k, twister)
    k.trigger()
    return k.launch((1,), LANES // 32)


def _in_order(k: KernelWriter, twister: TritonTwister, lists: int) -> None:
    """All words that numbers are made of, behind those of the seed."""
    with k.w.block(f"for number in range({lists})"):
        k.w.line(f"old = number * {WORDS}")
        k.w.line(f"new = old + {WORDS}")
        twister.twist("old", "new")


def _inside_circle(
    k: KernelWriter, twister: TritonTwister, numbers: TritonScratch, count: int
) -> None:
    """Normally distributed numbers in order, two from each point in the unit circle.

    That is Marsaglia's polar method: points are tried until there are enough. Of the two numbers
    of a point the second one comes first.
    """
    w, where = k.w, k.pointer(numbers)
    w.line("found = tl.full((), 0, tl.int32)")
    w.line("old = tl.full((), 0, tl.int32)")
    lane = w.let(f"tl.arange(0, {LANES})", "lane")
    with w.block(f"while found < {-(-count // 2)}"):
        w.line(f"new = {WORDS} - old")
        twister.twist("old", "new")
        tried = w.let(f"{lane} < {_TRIES}", "m")
        x1, x2 = (
            w.let(f"2.0 * {twister.unit(f'new + {lane} * 4 + {at}', tried)} - 1.0", "x")
            for at in (0, 2)
        )
        square = w.let(f"{x1} * {x1} + {x2} * {x2}", "square")
        inside = w.let(f"{tried} & ({square} < 1.0) & ({square} != 0.0)", "inside")
        safe = w.let(f"tl.where({inside}, {square}, 0.5)", "square")
        factor = w.let(f"tl.sqrt(-2.0 * functions.log({safe}) / {safe})", "factor")
        ones = w.let(f"{inside}.to(tl.int32)", "ones")
        place = w.let(f"(found + tl.cumsum({ones}, 0) - {ones}) * 2", "place")
        for x, at in ((x2, place), (x1, w.let(f"{place} + 1", "place"))):
            mask = w.let(f"{inside} & ({at} < {count})", "m")
            w.line(f"tl.store({where} + {at}, {factor} * {x}, mask={mask})")
        w.line(f"found = found + tl.sum({ones}, 0)")
        w.line("old = new")
        twister.barrier()


def _finished(context: GpuContext, number: Number) -> Launch:
    """The kernel that makes each number, and what follows it."""

    def body(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
        anchor = context.step.region.anchor
        assert anchor is not None
        texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
        flat = joined(k.w, texts, t.shape) if texts else k.w.let("tl.program_id(0) * 0", "n")
        made = register(k.w, number(k, flat, mask if texts else None), f64)
        return t.elements.scalars.encoded(t.elements.scalars.cast(made, anchor.dtype))

    (launch,) = each(context, body)[0].make()
    assert isinstance(launch, Launch)
    return launch


def _uniform(
    k: KernelWriter, op: RandomUniform, words: TritonScratch, at: str, mask: str | None
) -> str:
    unit = TritonTwister(k, k.pointer(words)).unit(f"{WORDS} + ({at}) * 2", mask)
    return f"{_f64(op.low)} + {_f64(op.high - op.low)} * {unit}"


def _normal(
    k: KernelWriter, op: RandomNormal, numbers: TritonScratch, at: str, mask: str | None
) -> str:
    inside = f", mask={mask}, other=0.0" if mask else ""
    number = k.w.let(f"tl.load({k.pointer(numbers)} + {at}{inside})", "x")
    return f"{_f64(op.mean)} + {_f64(op.scale)} * {number}"


def _f64(value: float) -> str:
    return literal(value, "double")
