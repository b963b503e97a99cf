"""Scale, cap and mask of attention scores, and the addresses of attention's operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder, Int
from monograph.codegen.llvm.emit.scalar import LlvmScalars
from monograph.ir import DType, Value
from monograph.ir.dtype import BOOL
from monograph.ir.sizes import divides, is_one, is_open, proven
from monograph.ops.attention import LENGTHS, MASK, SINKS, Attention, usual_scale
from monograph.ops.scalar import Scalar
from monograph.program.memory.buffer_assignment import Storage
from monograph.program.memory.strided import strided


@dataclass(frozen=True)
class View:
    """An operand in memory: a pointer, its shape, and strides in bytes."""

    pointer: Reg
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(
        b: Builder, value: Value, storage: Mapping[Value, Storage], pointers: Mapping[Value, Reg]
    ) -> View:
        found = strided(value, storage)
        assert found is not None
        size = value.dtype.itemsize
        start = b.offset(pointers[found.source], found.offset * size)
        shape = value.tensor.static
        # An index along a dimension of 1 may be that of the shape it is broadcast to.
        strides = zip(found.strides, shape, strict=True)
        return View(
            start, value.dtype, shape, tuple(0 if is_one(d) else s * size for s, d in strides)
        )

    def offset(self, b: Builder, *at: Int) -> Reg:
        """Return the address of an index along the first dimensions."""
        total: Int = 0
        for number, stride in zip(at, self.strides, strict=False):
            total = b.add(total, b.mul(number, stride))
        return b.offset(self.pointer, total)

    def bytes(self, b: Builder, row: Int, column: Int) -> Int:
        """Return the byte offset of an index along the last two dimensions."""
        return b.add(b.mul(row, self.strides[-2]), self.last(b, column))

    def last(self, b: Builder, column: Int) -> Int:
        return b.mul(column, self.strides[-1])


class ScoreMask:
    """Finishes scores: scale, cap, mask, and the range of valid keys."""

    def __init__(
        self,
        scalars: LlvmScalars,
        op: Attention,
        dtype: DType,
        operands: Sequence[View],
        over_heads: bool,
    ) -> None:
        self.scalars, self.op, self.dtype = scalars, op, dtype
        self.b, self.a = scalars.b, scalars.a
        self.given = dict(zip(op.extra, operands[3:], strict=True))
        size = operands[0].shape[-1]
        self.scale = usual_scale(size) if op.scale is None else op.scale
        self.over_heads = over_heads
        self.bounded = op.causal or LENGTHS in self.given

    def length(self, batch: Int, keys: int) -> Int:
        """Return the number of valid keys of a batch row."""
        lengths = self.given.get(LENGTHS)
        if lengths is None:
            return keys
        found = self.scalars.load(lengths.dtype, lengths.offset(self.b, batch)).reg
        return self.a.convert("sext", found, "i64")

    def bounds(self, query: Int, length: Int, keys: int, queries: int) -> tuple[Int, Int]:
        """The keys [low, high) that a query may see."""
        b = self.b
        high = b.minimum(length, keys)
        if not self.op.causal:
            return 0, high
        place = b.add(query, b.sub(length, queries))
        low = b.add(place, 1 - self.op.window) if self.op.window else 0
        return low, b.minimum(high, b.add(place, 1))

    def sink(self, head: Int) -> Reg | None:
        """Return the additional score of a head, which belongs to no key."""
        sinks = self.given.get(SINKS)
        if sinks is None:
            return None
        found: Reg = self.scalars.load(sinks.dtype, sinks.offset(self.b, head)).reg
        return found

    def finished(
        self, x: Reg, place: tuple[Int, Int, Int], t: Int, bounds: tuple[Int, Int], keys: int
    ) -> Reg:
        """Return a vector of scores from key t on, -inf for invalid keys."""
        a = self.a
        x = a.mul(x, self.scale)
        if self.op.softcap > 0:
            capped = Scalar(a.mul(x, 1 / self.op.softcap), self.dtype)
            x = a.mul(self.scalars.tanh(capped).reg, self.op.softcap)
        mask = self.given.get(MASK)
        if mask is not None:
            m = self._mask(mask, place, t, x.lanes, keys)
            x = a.select(m, x, -math.inf) if mask.dtype.kind == BOOL else a.add(x, m)
        if not self.bounded and divides(x.lanes, keys):
            return x
        low, high = bounds
        key = self._keys(t, x.lanes)
        x = a.select(a.compare("slt", key, self._spread(high, x.lanes)), x, -math.inf)
        if self.op.window:
            x = a.select(a.compare("sge", key, self._spread(low, x.lanes)), x, -math.inf)
        return x

    def _keys(self, t: Int, lanes: int) -> Reg:
        """Return the key indices of the lanes."""
        steps = ", ".join(f"i32 {k}" for k in range(lanes))
        return self.a.op("add", self._spread(t, lanes), Reg(f"<{steps}>", vector(lanes, "i32")))

    def _spread(self, number: Int, lanes: int) -> Reg:
        if type(number) is int:
            return self.b.number(number, "i32", lanes)
        return self.b.splat(self.b.set("i32", f"trunc i64 {number} to i32"), lanes)

    def _mask(self, mask: View, place: tuple[Int, Int, Int], t: Int, lanes: int, keys: int) -> Reg:
        """Return a vector of the mask; nothing beyond its last key is read."""
        b = self.b
        rank = len(mask.shape)
        places = (*place, 0)[4 - rank : 3] if rank else ()
        at = [0 if is_one(d) else i for i, d in zip(places, mask.shape[:-1], strict=True)]
        row = mask.offset(b, *at)
        if not rank or is_one(mask.shape[-1]):
            return b.splat(self.scalars.load(mask.dtype, row).reg, lanes)
        whole = keys // lanes * lanes
        if proven(whole, "==", keys):
            return self._mask_part(mask, row, t, lanes)
        inside = b.compare("slt", b.i64(t), b.i64(whole))
        before, last, done = b.new_label("whole"), b.new_label("last"), b.new_label("mask")
        b.branch(inside, before, last)
        b.label(before)
        vectors = self._mask_part(mask, row, t, lanes)
        before = b.block
        b.jump(done)
        b.label(last)
        if is_open(keys):
            # Lanes beyond the last key are not used: they read that key.
            ends = [b.minimum(b.add(whole, k), b.sub(keys, 1)) for k in range(lanes - 1)]
        else:
            ends = list(range(whole, keys))
        single = [self._mask_part(mask, row, end, 0) for end in ends]
        gathered = b.number(0, single[0].type, lanes)
        for k, one in enumerate(single):
            gathered = b.insert(gathered, one, k)
        last = b.block
        b.jump(done)
        b.label(done)
        text = f"phi {vectors.type} [ {vectors}, %{before} ], [ {gathered}, %{last} ]"
        return b.set(vectors.type, text)

    def _mask_part(self, mask: View, row: Reg, t: Int, lanes: int) -> Reg:
        found: Reg = self.scalars.load(
            mask.dtype, self.b.offset(row, mask.last(self.b, t)), lanes
        ).reg
        return found
