"""A heap of numbers in memory, and two ways to put them in order."""

from __future__ import annotations

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder, Int

RANKED = 4
"""Numbers that are compared with each vector."""


class Heap:
    """Distinct unsigned numbers of one type, contiguous from a pointer on."""

    def __init__(self, b: Builder, pointer: Reg, kind: str, nbytes: int) -> None:
        self.b = b
        self.pointer = pointer
        self.kind = kind
        self.nbytes = nbytes

    def load(self, i: Int) -> Reg:
        at = self.b.offset(self.pointer, self.b.mul(i, self.nbytes))
        return self.b.load(self.kind, at, self.nbytes)

    def store(self, i: Int, number: Reg) -> None:
        at = self.b.offset(self.pointer, self.b.mul(i, self.nbytes))
        self.b.store(number, at, self.nbytes)

    def order(self, count: Int) -> None:
        """Makes a heap of `count` numbers in any order."""
        half = self.b.div(count, 2)

        def sink(j: Int, _: list[Reg]) -> None:
            root = self.b.sub(self.b.sub(half, 1), j)
            self.sink(self.load(root), root, count)

        self.b.loop(0, half, 1, sink)

    def sort(self, count: int) -> None:
        """Puts a heap of `count` numbers in order, the largest first."""

        def move(j: Int, _: list[Reg]) -> None:
            last = self.b.sub(count - 1, j)
            number = self.load(last)
            self.store(last, self.load(0))
            self.sink(number, 0, last)

        self.b.loop(0, count - 1, 1, move)

    def rank(self, count: int, to: Heap, lanes: int) -> None:
        """Write `count` numbers to other memory in order, the largest first.

        The place of a number is how many are larger: no branch depends on data. Vectors are read up
        to the next multiple of their lanes.
        """
        b, kind = self.b, vector(lanes, self.kind)
        padded = -(-count // lanes) * lanes
        for i in range(count, padded):
            self.store(i, Reg("0", self.kind))

        def some(i: Int, together: int) -> None:
            own = [self.load(b.add(i, t)) for t in range(together)]
            spread = [b.splat(x, lanes) for x in own]

            def look(v: Int, counts: list[Reg]) -> list[Reg]:
                others = b.load(kind, b.offset(self.pointer, b.mul(v, self.nbytes)), self.nbytes)
                made = []
                for x, total in zip(spread, counts, strict=True):
                    larger = b.compare("ugt", others, x)
                    minus = b.set(kind, f"sext {larger.type} {larger} to {kind}")
                    made.append(b.set(kind, f"sub {kind} {total}, {minus}"))
                return made

            counts = b.loop(0, padded, lanes, look, [Reg("zeroinitializer", kind)] * together)
            for x, total in zip(own, counts, strict=True):
                place = b.call(f"llvm.vector.reduce.add.v{lanes}{self.kind}", self.kind, total)
                to.store(place, x)

        whole = count // RANKED * RANKED
        b.loop(0, whole, RANKED, lambda i, _: some(i, RANKED))
        b.loop(whole, count, 1, lambda i, _: some(i, 1))

    def sink(self, number: Reg, root: Int, count: Int) -> None:
        """Insert a number at a root, or below all smaller numbers there."""
        b = self.b
        before, look, choose, down, done = (
            b.block,
            *(b.new_label(stem) for stem in ("look", "choose", "down", "done")),
        )
        at, below = Reg(b.fresh("at"), "i64"), Reg(b.fresh("below"), "i64")
        b.jump(look)
        b.label(look)
        b.line(f"{at} = phi i64 [ {root}, %{before} ], [ {below}, %{down} ]")
        left = b.i64(b.add(b.mul(at, 2), 1))
        b.branch(b.compare("slt", left, b.i64(count)), choose, done)
        b.label(choose)
        # Without a right child the last number is the left one, and counts as both.
        right = b.i64(b.minimum(b.add(left, 1), b.sub(count, 1)))
        one, other = self.load(left), self.load(right)
        smaller = b.compare("ult", other, one)
        b.line(f"{below} = select i1 {smaller}, i64 {right}, i64 {left}")
        least = b.set(self.kind, f"select i1 {smaller}, {self.kind} {other}, {self.kind} {one}")
        b.branch(b.compare("ult", least, number), down, done)
        b.label(down)
        self.store(at, least)
        b.jump(look)
        b.label(done)
        self.store(at, number)
