"""Arithmetic on registers as LLVM instructions, single numbers and vectors alike."""

from __future__ import annotations

from collections.abc import Callable

from monograph.codegen.common.arith import Arith, Operand
from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder


class LlvmArith(Arith):
    """Writes instructions whose operands and results have one number of lanes."""

    def __init__(self, b: Builder) -> None:
        super().__init__(b)
        self.b: Builder = b

    def op(self, name: str, x: Reg, y: Operand) -> Reg:
        """An instruction of two operands of one type."""
        return self.b.set(x.type, f"{name} {x.type} {x}, {self.operand(y, x)}")

    def select(self, condition: Reg, x: Operand, y: Operand) -> Reg:
        """x where the condition holds, else y; one of them is a register."""
        like = x if isinstance(x, Reg) else y
        assert isinstance(like, Reg)
        a, b = self.operand(x, like), self.operand(y, like)
        text = f"select {condition.type} {condition}, {a.type} {a}, {b.type} {b}"
        return self.b.set(like.type, text)

    def convert(self, how: str, x: Reg, element: str) -> Reg:
        """Convert a register (sext, fptrunc, ...); return it unchanged if it has that type."""
        if x.element == element:
            return x
        to = vector(x.lanes, element)
        return self.b.set(to, f"{how} {x.type} {x} to {to}")

    def neg(self, x: Reg) -> Reg:
        return self.b.set(x.type, f"fneg {x.type} {x}")

    def any(self, condition: Reg) -> Reg:
        """Return True if a condition holds in any lane."""
        if not condition.lanes:
            return condition
        return self.b.call(f"llvm.vector.reduce.or.v{condition.lanes}i1", "i1", condition)

    def each_lane(self, function: Callable[..., Reg], *operands: Reg) -> Reg:
        """A function of single numbers, applied lane by lane; it keeps the type."""
        first = operands[0]
        if not first.lanes:
            return function(*operands)
        result = Reg("poison", first.type)
        for lane in range(first.lanes):
            one = function(*(self.b.extract(x, lane) for x in operands))
            result = self.b.insert(result, one, lane)
        return result

    def unless(self, rare: Reg, usual: Reg, otherwise: Callable[[], Reg]) -> Reg:
        """Return a value, or its replacement on the path for a rare condition."""
        b = self.b
        before, path, done = b.block, b.new_label("rare"), b.new_label("usual")
        b.branch(rare, path, done)
        b.label(path)
        other = otherwise()
        last = b.block
        b.jump(done)
        b.label(done)
        return b.set(usual.type, f"phi {usual.type} [ {usual}, %{before} ], [ {other}, %{last} ]")
