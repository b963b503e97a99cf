"""The common base of kernels whose result sizes depend on data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from monograph.codegen.common.registers import Reg
from monograph.codegen.common.types import is_wide
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.map_kernel import bits_of
from monograph.codegen.llvm.emit.scalar import LlvmArith, LlvmScalars
from monograph.codegen.llvm.module.kernel import KernelContext, pointers, share
from monograph.ir import Item, Value
from monograph.ops.scalar import Scalar
from monograph.program.dynamic.bounded import Counted


class Counting:
    """Operands, results and the count of a kernel in its bounded form."""

    def __init__(self, context: KernelContext) -> None:
        region = context.step.region
        self.context, self.anchor = context, context.anchor
        self.threads = context.threads
        self.results = {v.op.index: v for v in region.outputs if isinstance(v.op, Item)}
        context.add(*region.inputs, *region.outputs)

    def begin(self) -> None:
        """Start the function, after all arguments are known."""
        self.b: Builder = self.context.builder()
        self.scalars = LlvmScalars(self.b, self.context.features)
        self.pointers = pointers(self.b, self.context.arguments)

    def at(self, value: Value, index: Sequence[Int]) -> Reg:
        """Return the address of an element of an operand or a result."""
        b, place = self.b, self.context.program.places.storage[value]
        total = b.position(index, place.strides, place.offset)
        return b.offset(self.pointers[value], b.mul(total, value.dtype.itemsize))

    def load(self, value: Value, index: Sequence[Int], lanes: int = 0) -> Scalar:
        return self.scalars.load(value.dtype, self.at(value, index), lanes)

    def move(self, source: Value, index: Sequence[Int], result: int, to: Sequence[Int]) -> None:
        """Copy an element of an operand into a result, if the result has a user."""
        if result in self.results:
            bits = bits_of(source.dtype)
            target = self.at(self.results[result], to)
            self.scalars.store(self.scalars.load(bits, self.at(source, index)), target)

    def give(self, result: int, index: Sequence[Int], number: Reg) -> None:
        """Store an i64 into a result, if the result has a user."""
        if result in self.results:
            self.b.store(number, self.at(self.results[result], index), 8)

    def finish_count(self, count: Reg) -> None:
        """Store the count, the last result. Every thread may: all know it."""
        assert isinstance(self.anchor.op, Counted)
        last = len(self.anchor.type.items) - 1  # type: ignore[union-attr]
        self.b.on_thread(0, lambda: self.give(last, [], count))

    def clear(self, result: int, start: Int, axis: int, shared: bool = True) -> None:
        """Zero the elements beyond the count, along an axis of a result; threads may divide it."""
        if result not in self.results:
            return
        b, value = self.b, self.results[result]
        shape = value.tensor.static
        others = [d for i, d in enumerate(shape) if i != axis]
        bits = bits_of(value.dtype)
        zero = self.scalars.literal(0, bits, 0)
        rows = math.prod(others)

        def row(r: Int, _: list[Reg]) -> None:
            fixed = b.coordinates(r, others)

            def one(i: Int, _: list[Reg]) -> None:
                index = [*fixed[:axis], i, *fixed[axis:]]
                self.scalars.store(zero, self.at(value, index))

            b.loop(start, shape[axis], 1, one)

        low, high = share(b, rows, self.threads) if shared else (0, rows)
        b.loop(low, high, 1, row)

    def walk(
        self,
        low: Int,
        high: Int,
        start: Reg,
        holds: Callable[[Int, int], Reg],
        visit: Callable[[Int, Reg], None] | None,
        lanes: int,
    ) -> Reg:
        """Visit the positions in [low, high) where a condition holds, numbered from `start` on.

        `holds` returns the condition at a position, or at one per lane; without `visit` they are
        only counted. Return the number after the last.
        """
        b, a = self.b, self.scalars.a
        if lanes > 1:
            groups = b.set("i64", f"sdiv i64 {b.sub(high, low)}, {lanes}")
            end = b.add(low, b.mul(groups, lanes))

            def some(i: Int, at: list[Reg]) -> list[Reg]:
                bits = self._bits(holds(i, lanes))
                if visit is None:
                    return [a.op("add", at[0], b.call("llvm.ctpop.i64", "i64", bits))]
                found = a.compare("ne", bits, 0)
                return [a.unless(found, at[0], lambda: self._each_bit(i, bits, at[0], visit))]

            (start,) = b.loop(low, end, lanes, some, [start])
            low = end

        def one(i: Int, at: list[Reg]) -> list[Reg]:
            def take() -> Reg:
                if visit is not None:
                    visit(i, at[0])
                return b.set("i64", f"add i64 {at[0]}, 1")

            return [a.unless(holds(i, 0), at[0], take)]

        return b.i64(b.loop(low, high, 1, one, [start])[0])

    def _bits(self, condition: Reg) -> Reg:
        """A vector of conditions as the bits of a number, the first lane lowest."""
        lanes = condition.lanes
        bits = self.b.set(f"i{lanes}", f"bitcast {condition.type} {condition} to i{lanes}")
        return self.scalars.a.convert("zext", bits, "i64")

    def _each_bit(
        self, first: Int, bits: Reg, start: Reg, visit: Callable[[Int, Reg], None]
    ) -> Reg:
        """Visit the positions of the set bits of a number, and number them."""

        def one(bit: Reg, at: Reg) -> Reg:
            visit(self.b.add(first, bit), at)
            return self.b.set("i64", f"add i64 {at}, 1")

        return each_set_bit(self.scalars.a, bits, ("at", start), one)


def each_set_bit(
    a: LlvmArith, bits: Reg, start: tuple[str, Reg], visit: Callable[[Reg, Reg], Reg]
) -> Reg:
    """Visit the set bits of a number, of which there is at least one, from the lowest on.

    `start` names a carried value; `visit` gets a bit and the value, and returns a new one.
    """
    b, (name, first) = a.b, start
    before, again, done = b.block, b.new_label("again"), b.new_label("done")
    left, carried = Reg(b.fresh("left"), "i64"), Reg(b.fresh(name), first.type)
    b.jump(again)
    b.label(again)
    place = len(b.lines)
    following = visit(b.call("llvm.cttz.i64", "i64", left, Reg("true", "i1")), carried)
    rest = a.op("and", left, a.op("add", left, -1))
    last = b.block
    b.branch(a.compare("ne", rest, 0), again, done)
    b.lines[place:place] = [
        f"  {left} = phi i64 [ {bits}, %{before} ], [ {rest}, %{last} ]",
        f"  {carried} = phi {first.type} [ {first}, %{before} ], [ {following}, %{last} ]",
    ]
    b.label(done)
    return following


def ordered(a: LlvmArith, x: Scalar) -> Reg:
    """Return unsigned numbers that order like elements; NaN is largest, -0.0 equals 0.0."""
    dtype, wide = x.dtype, is_wide(x.dtype)
    kind, sign = ("i64", -(1 << 63)) if wide else ("i32", -(1 << 31))
    if dtype.is_float:
        bits = a.bits(x.reg)
        bits = a.select(a.compare("eq", bits, sign), 0, bits)
        below = a.op("ashr", bits, 63 if wide else 31)
        bits = a.op("xor", bits, a.op("or", below, sign))
        return a.select(a.compare("uno", x.reg, x.reg), -1, bits)
    if dtype.is_signed:
        return a.op("xor", a.convert("sext", x.reg, kind), sign)
    return a.convert("zext", x.reg, kind)
