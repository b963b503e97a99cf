"""A tile of Winograd's convolution computed directly, for data that is not finite.

The transforms subtract what they add elsewhere, so one infinity, NaN or very large number makes a
whole tile invalid, even results that do not depend on it. Such a tile is recognised by its results
and computed again, out of line: finite data costs only a few instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.module.barrier import FAULT_BYTES
from monograph.codegen.llvm.module.bounds_checks import (
    GUARD,
    SIZES,
    SPANS_MARK,
    Extent,
    Instrumented,
)
from monograph.codegen.llvm.module.kernel import NAME
from monograph.ir import Array
from monograph.ir.sizes import any_open, is_open

SIZE, TAPS = 4, 3
"""Results of a tile along an axis, and weights."""
CORNERS = (0, SIZE - 1, SIZE * (SIZE - 1), SIZE * SIZE - 1)
"""Results that are not all finite if any of a tile's 36 products is not: each product is in one."""
_FUNCTION = f"{NAME}.tile"


def plain_weights(weights: Array, row: int) -> Array:
    """Return the weights as [tap][channel][results, padded with zeros to `row`]."""
    results, channels = weights.shape[:2]
    form = np.zeros((TAPS * TAPS, channels, row), np.float32)
    form[..., :results] = weights.transpose(2, 3, 1, 0).reshape(TAPS * TAPS, channels, results)
    return form


@dataclass(frozen=True)
class PlainTile:
    """A function that computes one vector of results for each of the 16 pixels of a tile."""

    down: int
    across: int
    channel: int
    """The bytes from one pixel of the input to the next, and from one channel."""
    channels: int
    row: int
    """The bytes from the weights of one channel to those of the next."""
    lanes: int

    def reserve(self, b: Builder) -> Reg:
        """Reserve room for the results; the builder must be in the function's first block."""
        kind = vector(self.lanes, "float")
        return b.set("ptr", f"alloca [{SIZE * SIZE} x {kind}], align 64")

    def mend(
        self, b: Builder, made: Sequence[Reg], room: Reg, operands: Callable[[], tuple[Reg, Reg]]
    ) -> list[Reg]:
        """Compute the results of a tile again if they are not all finite."""
        a = LlvmArith(b)
        first, second, third, fourth = (made[k] for k in CORNERS)
        total = a.add(a.add(first, second), a.add(third, fourth))
        # An infinity or a NaN minus itself is NaN.
        odd = b.compare("uno", a.sub(total, total), b.number(0, "float", self.lanes))
        bits = b.set(f"i{self.lanes}", f"bitcast {odd.type} {odd} to i{self.lanes}")
        found = b.compare("ne", bits, Reg("0", bits.type))
        before, again, done = b.block, b.new_label("again"), b.new_label("done")
        b.branch(found, again, done)
        b.label(again)
        x, w = operands()
        guard = f", ptr %{GUARD}" if b.checked else ""
        if self._is_open:
            b.passes_sizes = True
            guard += f", ptr {SIZES}"
        call = f"call void @{_FUNCTION}(ptr {x}, ptr {w}, ptr {room}{guard})"
        ends = [n for e in self.extents for n in (e.low, e.high)]
        b.spans |= {str(n): n for n in ends if is_open(n)}
        spans = " ".join(f"{e.low}:{e.high}" for e in self.extents)
        b.line(f"{call} {SPANS_MARK}{spans}" if b.checked else call)
        size = self.lanes * 4
        plain = [b.load(m.type, b.offset(room, k * size), 4) for k, m in enumerate(made)]
        last = b.block
        b.jump(done)
        b.label(done)
        return [
            b.set(m.type, f"phi {m.type} [ {m}, %{before} ], [ {p}, %{last} ]")
            for m, p in zip(made, plain, strict=True)
        ]

    @property
    def _is_open(self) -> bool:
        """True if distances between pixels are known only in a run."""
        return any_open((self.down, self.across, self.channel))

    @property
    def extents(self) -> tuple[Extent, Extent, Extent]:
        """Return the bytes that the function accesses from x, w and out."""
        reach = (SIZE + TAPS - 2) * (self.down + self.across) + (self.channels - 1) * self.channel
        w = (TAPS * TAPS * self.channels - 1) * self.row + self.lanes * 4
        given = Extent(reach + 4, "a tile of the input")
        return (
            given,
            Extent(w, "weights"),
            Extent(SIZE * SIZE * self.lanes * 4, "a tile of results"),
        )

    def text(self, checked: bool) -> str:
        """Return `void tile(ptr x, ptr w, ptr out)`, with few instructions because it is rare."""
        names = ("x", "w", "out", GUARD) if checked else ("x", "w", "out")
        given = (*names, SIZES[1:]) if self._is_open else names
        b = Builder(_FUNCTION, [(name, "ptr") for name in given], "internal void")
        kind = vector(self.lanes, "float")

        def result(number: Int, _: list[Reg]) -> None:
            r, j = b.div(number, SIZE), b.mod(number, SIZE)
            corner = b.add(b.mul(r, self.down), b.mul(j, self.across))

            def tap(k: Int, carried: list[Reg]) -> list[Reg]:
                below, right = b.div(k, TAPS), b.mod(k, TAPS)
                place = b.add(b.mul(below, self.down), b.mul(right, self.across))
                x = b.offset(b.arguments["x"], b.add(corner, place))
                w = b.offset(b.arguments["w"], b.mul(k, self.channels * self.row))

                def channel(c: Int, carried: list[Reg]) -> list[Reg]:
                    given = b.load("float", b.offset(x, b.mul(c, self.channel)), 4)
                    weight = b.load(kind, b.offset(w, b.mul(c, self.row)), 4)
                    factor = b.splat(given, self.lanes)
                    return [b.intrinsic("fmuladd", factor, weight, carried[0])]

                return b.loop(0, self.channels, 1, channel, carried)

            zero = b.number(0, "float", self.lanes)
            (total,) = b.loop(0, TAPS * TAPS, 1, tap, [zero])
            b.store(total, b.offset(b.arguments["out"], b.mul(number, self.lanes * 4)), 4)

        b.loop(0, SIZE * SIZE, 1, result)
        b.ret()
        if checked:
            extents = (*self.extents, Extent(FAULT_BYTES))
            found = {f"%{name}": e for name, e in zip(names, extents, strict=True)}
            b.lines = Instrumented(b.lines, found).text()
        if self._is_open:
            b.load_sizes(Reg(SIZES, "ptr"))
        return "\n".join([b.text("noinline cold nounwind"), ""])
