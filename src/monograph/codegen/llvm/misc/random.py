"""Random numbers, to the bit those of the reference: the Mersenne twister that numpy has frozen.

The generator has one state that all numbers of an op come from in order, so one thread draws them;
what follows is shared out. The op's own state says how often it has drawn before, and with that
its key seeds the generator.
"""

from __future__ import annotations

from functools import partial

from monograph.codegen.common.registers import Reg
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.elements import LlvmElements, Point
from monograph.codegen.llvm.emit.map_kernel import elements_of, emit_each
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.codegen.llvm.misc.twister import WORDS, LlvmTwister
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmScratch,
    Sync,
    synchronise,
)
from monograph.ir import Value
from monograph.ir.dtype import f64
from monograph.ops.random import Random, RandomNormal, RandomUniform
from monograph.ops.scalar import Scalar
from monograph.program.fusion.access import Indices
from monograph.program.fusion.index_bounds import inside
from monograph.program.index import Index, flatten, strides_of
from monograph.program.legalise.lower_random import Drawn


def serves(value: Value) -> bool:
    return isinstance(value.op, Drawn)


def drawn(context: KernelContext) -> Kernel:
    """A kernel that draws numbers, and what follows it."""
    region = context.step.region
    anchor = region.anchor
    assert anchor is not None
    assert isinstance(anchor.op, Drawn)
    op = anchor.op.of
    assert isinstance(op, Random)
    count = anchor.tensor.size
    for value in (*region.inputs, *region.outputs):
        context.argument(value)
    words = context.argument(LlvmScratch(4 * WORDS))
    numbers = context.argument(LlvmScratch(max(8 * count, 64)))
    sync = context.argument(Sync())
    b = context.builder(len(context.arguments))
    elements = elements_of(context, b)
    place = elements.storage[anchor.inputs[0]]
    state = b.offset(elements.pointers[anchor.inputs[0]], place.offset * 8)
    memory = b.arguments[f"p{words}"]

    def draw() -> None:
        _Draw(b, elements.scalars, memory, b.arguments[f"p{numbers}"]).all(op, state, count)

    b.when(b.compare("eq", b.arguments["tid"], Reg("0", "i64")), draw)
    synchronise(b, sync, context.threads)
    emit_each(context, elements, partial(_Numbers, anchor, numbers), vectors=False)
    return context.finish(b)


class _Draw:
    """Fills a list of f64 with numbers of a distribution."""

    def __init__(self, b: Builder, scalars: LlvmScalars, words: Reg, numbers: Reg) -> None:
        self.b, self.s = b, scalars
        self.twister = LlvmTwister(b, words)
        self.numbers = numbers

    def all(self, op: Random, state: Reg, count: int) -> None:
        self.twister.seed(state)
        if isinstance(op, RandomUniform):
            self._uniform(op, count)
        else:
            assert isinstance(op, RandomNormal)
            self._normal(op, count)

    def _number(self, value: float) -> Scalar:
        return self.s.constant(value, f64)

    def _store(self, i: Int, x: Scalar) -> None:
        self.b.store(x.reg, self.b.offset(self.numbers, self.b.mul(i, 8)), 8)

    def _unit(self, at: Reg) -> tuple[Scalar, Reg]:
        """A number from 0 to 1 with 53 bits, and the place of the next word."""
        s, b = self.s, self.b
        high, at = self.twister.next(at)
        low, at = self.twister.next(at)
        parts = []
        for word, shift in ((high, 5), (low, 6)):
            shifted = b.set("i32", f"lshr i32 {word}, {shift}")
            parts.append(Scalar(b.set("double", f"uitofp i32 {shifted} to double"), f64))
        whole = s.add(s.mul(parts[0], self._number(2.0**26)), parts[1])
        return s.div(whole, self._number(2.0**53)), at

    def _uniform(self, op: RandomUniform, count: int) -> None:
        def one(i: Int, at: list[Reg]) -> list[Reg]:
            unit, following = self._unit(at[0])
            spread = self._number(op.high - op.low)
            self._store(i, self.s.add(self._number(op.low), self.s.mul(spread, unit)))
            return [following]

        self.b.loop(0, count, 1, one, [self.twister.start])

    def _normal(self, op: RandomNormal, count: int) -> None:
        """Two numbers at a time, by Marsaglia's polar method; the second one comes first."""
        s, b = self.s, self.b

        def scaled(x: Scalar) -> Scalar:
            return s.add(self._number(op.mean), s.mul(self._number(op.scale), x))

        def pair(i: Int, at: list[Reg]) -> list[Reg]:
            x1, x2, square, following = self._point(at[0])
            ratio = s.div(s.mul(self._number(-2.0), s.log(square)), square)
            factor = s.sqrt(ratio)
            self._store(i, scaled(s.mul(factor, x2)))
            more = b.compare("slt", b.i64(b.add(i, 1)), b.i64(count))
            b.when(more, lambda: self._store(b.add(i, 1), scaled(s.mul(factor, x1))))
            return [following]

        b.loop(0, count, 2, pair, [self.twister.start])

    def _point(self, start: Reg) -> tuple[Scalar, Scalar, Scalar, Reg]:
        """A point inside the unit circle, but its centre: tried until there is one."""
        s, b = self.s, self.b
        before, again, done = b.block, b.new_label("again"), b.new_label("inside")
        at = Reg(b.fresh("at"), "i64")
        b.jump(again)
        b.label(again)
        place = len(b.lines)
        axes, here = [], at
        for _ in range(2):
            unit, here = self._unit(here)
            axes.append(s.sub(s.mul(self._number(2.0), unit), self._number(1.0)))
        x1, x2 = axes
        square = s.add(s.mul(x1, x1), s.mul(x2, x2))
        outside = s.less_equal(self._number(1.0), square)
        rejected = s.or_(outside, s.equal(square, self._number(0.0)))
        last = b.block
        b.branch(rejected.reg, again, done)
        b.lines.insert(place, f"  {at} = phi i64 [ {start}, %{before} ], [ {here}, %{last} ]")
        b.label(done)
        return x1, x2, square, here


class _Numbers:
    """The numbers that were drawn, in order."""

    def __init__(self, anchor: Value, numbers: int, elements: LlvmElements, at: Indices) -> None:
        self.e = elements
        self.dtype = anchor.dtype
        self.numbers = numbers
        self.position = flatten(at, strides_of(anchor.tensor.static))
        count = anchor.tensor.size
        self.extent = 0 if inside(self.position, count, "the drawn numbers") else count

    def positions(self) -> list[Index]:
        return [self.position]

    def enter(self, point: Point) -> None:
        """Nothing changes from row to row."""

    def element(self, point: Point) -> Scalar:
        pointer = self.e.b.arguments[f"p{self.numbers}"]
        found = self.e.load_at(pointer, f64, self.position, point, self.extent)
        return self.e.scalars.cast(found, self.dtype)
