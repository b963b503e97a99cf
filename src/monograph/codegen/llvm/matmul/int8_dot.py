"""Products of bytes with signed bytes (weights), summed in 32 bits.

A step takes some contiguous bytes of x, the same for all lanes, and as many weights of each column.
There are three forms, depending on the features of the machine.

Fours: one instruction adds the products of four unsigned and four signed bytes. Signed x is moved
up by 128 to be unsigned, and accumulators start with the correction for that.

Pairs: one instruction multiplies 16-bit numbers and adds neighbours. x is widened as it is loaded,
eight bytes at a time; weights are packed wide.

Singles: plain multiplications in 32 bits, for any other machine.
"""

from __future__ import annotations

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.emit.builder import Builder
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run, choose_tile
from monograph.codegen.llvm.module.features import Features
from monograph.ir import Array, DType, Value, known
from monograph.ir.dtype import UINT, i8, i32, u8

MOVED = 128
LANE_BYTES = 4


def multiplies(value: Value) -> bool:
    """Return True for a dot or convolution of bytes with constant signed weights, in 32 bits."""
    return of_bytes(value) and known(value.inputs[1]) is not None


def of_bytes(value: Value) -> bool:
    """Return True for a dot or convolution of bytes with signed bytes, in 32 bits."""
    x, w = value.inputs
    return value.dtype == i32 and x.dtype in (i8, u8) and w.dtype == i8


class Products:
    """One element at a time."""

    step = 1
    """Bytes of x per step."""
    parts = 1
    """Vectors of weights per step, for each vector of columns."""
    held = 0
    """Registers of a row besides its accumulators."""

    def __init__(self, features: Features, dtype: DType) -> None:
        self.features = features
        self.lanes = features.lanes(32)
        self.signed = dtype.kind != UINT

    @property
    def line(self) -> int:
        """Return the bytes of a step's weights for a vector of columns."""
        return self.parts * self.lanes * LANE_BYTES

    def steps(self, depth: int) -> int:
        """Return the number of steps of a row of `depth` bytes."""
        return -(-depth // self.step)

    def tile(self, rows: int, vectors: int, depth: int, threads: int) -> RegisterTile:
        """Return the rows and vectors of accumulators that fit the registers."""
        registers = self.features.registers
        found = choose_tile(rows, vectors, depth, self.features, threads, registers * 3 // 4)
        while found.rows > 1 and self._registers(found) > registers:
            found = RegisterTile(found.rows - 1, found.vectors)
        return found

    def _registers(self, tile: RegisterTile) -> int:
        """Return the registers of a tile, its rows, its weights and two products."""
        return tile.rows * (tile.vectors + self.held) + tile.vectors + 2

    def pack(self, weights: Array) -> Array:
        """[depth, columns] of whole steps and vectors -> [step, vector of columns, bytes]."""
        return self._packed(weights.astype(np.int32), 1)

    def _packed(self, weights: Array, together: int) -> Array:
        """Return weights in groups that are contiguous in a lane."""
        depth, columns = weights.shape
        shape = (depth // self.step, self.parts, together, columns // self.lanes, self.lanes)
        lanes = np.ascontiguousarray(weights.reshape(shape).transpose(0, 3, 1, 4, 2))
        return lanes.view(np.uint8).reshape(shape[0], shape[3], self.line)

    @property
    def moved(self) -> int:
        """Return the number that is added to every x before it is multiplied."""
        return 0

    def start(self, sums: Array) -> Array:
        """Return the initial accumulators, given the sum of the weights of each column."""
        return (-self.moved * sums.astype(np.int64)).astype(np.int32)

    # Code

    def bind(self, b: Builder) -> None:
        """Set the builder that code is written to."""
        self.b, self.a = b, LlvmArith(b)

    def packed_words(self, rows: list[Reg]) -> list[Reg]:
        """Pack the weights of a step in a run: rows of i32, a vector of words for each part."""
        together = self.step // self.parts
        bits = 8 * LANE_BYTES // together
        words = []
        for part in range(self.parts):
            word, *rest = rows[part * together : (part + 1) * together]
            if rest:
                word = self.a.op("and", word, (1 << bits) - 1)
            for k, row in enumerate(rest, 1):
                low = row if k == len(rest) else self.a.op("and", row, (1 << bits) - 1)
                word = self.a.op("or", word, self.a.op("shl", low, k * bits))
            words.append(word)
        return words

    def loaded(self, pointer: Reg, valid: int, slack: bool) -> Reg:
        """Load the bytes of a step, and none beyond the valid ones.

        slack: the last of them may be beyond the buffer, and have no weight.
        """
        return self._wide(self.b.load("i8", pointer, 1), "i32")

    def _wide(self, x: Reg, element: str) -> Reg:
        return self.a.convert("sext" if self.signed else "zext", x, element)

    def factor(self, loaded: Reg, part: int) -> Reg:
        """Some of the loaded bytes, in every lane."""
        return self.b.splat(loaded, self.lanes)

    def column(self, pointer: Reg, part: int) -> Reg:
        """Load the weights that belong to a factor, for a vector of columns."""
        at = self.b.offset(pointer, part * self.lanes * LANE_BYTES)
        return self.b.load(vector(self.lanes, "i32"), at, LANE_BYTES)

    def add(self, total: Reg, factor: Reg, column: Reg) -> Reg:
        return self.a.op("add", total, self.a.op("mul", factor, column))

    def multiply(
        self,
        sums: list[Reg],
        rows: list[Reg],
        valid: int,
        weights: Reg,
        vectors: int,
        slack: bool = False,
    ) -> list[Reg]:
        """Add the products of one step to a tile, given the addresses of its rows."""
        made = list(sums)
        loaded = [self.loaded(row, valid, slack) for row in rows]
        for part in range(self.parts):
            columns = [
                self.column(self.b.offset(weights, v * self.line), part) for v in range(vectors)
            ]
            for r, bytes_ in enumerate(loaded):
                factor = self.factor(bytes_, part)
                for v, column in enumerate(columns):
                    at = r * vectors + v
                    made[at] = self.add(made[at], factor, column)
        return made


class Pairs(Products):
    """Eight bytes at a time, as four pairs of 16-bit numbers."""

    step = 8
    parts = 4
    held = 1

    def pack(self, weights: Array) -> Array:
        return self._packed(weights.astype(np.int16), 2)

    def loaded(self, pointer: Reg, valid: int, slack: bool) -> Reg:
        b, kind = self.b, vector(self.step, "i8")
        if valid == self.step:
            bytes_ = b.load(kind, pointer, 1, slack)
        else:
            bytes_ = Reg("zeroinitializer", kind)
            for k in range(valid):
                bytes_ = b.insert(bytes_, b.load("i8", b.offset(pointer, k), 1), k)
        wide = self._wide(bytes_, "i16")
        return b.set("<4 x i32>", f"bitcast {wide.type} {wide} to <4 x i32>")

    def factor(self, loaded: Reg, part: int) -> Reg:
        mask = f"<{self.lanes} x i32> splat (i32 {part})"
        kind = vector(self.lanes, "i32")
        text = f"shufflevector {loaded.type} {loaded}, {loaded.type} poison, {mask}"
        return self._halves(self.b.set(kind, text))

    def column(self, pointer: Reg, part: int) -> Reg:
        return self._halves(super().column(pointer, part))

    def _halves(self, x: Reg) -> Reg:
        kind = vector(2 * self.lanes, "i16")
        return self.b.set(kind, f"bitcast {x.type} {x} to {kind}")

    def add(self, total: Reg, factor: Reg, column: Reg) -> Reg:
        both = self.b.call(self.features.dot_i16, total.type, factor, column)
        return self.a.op("add", total, both)


class Fours(Products):
    """Four bytes at a time, in one instruction."""

    step = 4

    def pack(self, weights: Array) -> Array:
        return self._packed(weights.astype(np.int8), 4)

    @property
    def moved(self) -> int:
        return MOVED if self.signed else 0

    def loaded(self, pointer: Reg, valid: int, slack: bool) -> Reg:
        b, a = self.b, self.a
        if valid == self.step:
            four = b.load("i32", pointer, 1, slack)
        else:
            four = b.number(0, "i32")
            for k in range(valid):
                one = a.convert("zext", b.load("i8", b.offset(pointer, k), 1), "i32")
                four = a.op("or", a.op("shl", one, 8 * k), four)
        return four

    def factor(self, loaded: Reg, part: int) -> Reg:
        # Broadcast first: that is one instruction from memory.
        four = super().factor(loaded, part)
        # Whole numbers of 32 bits are written with a sign.
        return self.a.op("xor", four, 0x80808080 - (1 << 32)) if self.signed else four

    def add(self, total: Reg, factor: Reg, column: Reg) -> Reg:
        return self.b.call(self.features.dot_i8, total.type, total, factor, column)


def products(features: Features, dtype: DType) -> Products:
    """The best form for a machine."""
    if features.dot_i8:
        return Fours(features, dtype)
    return (Pairs if features.dot_i16 else Products)(features, dtype)


def packed_panels(p: Products, weights: Array, panels: list[Run]) -> list[Array]:
    """Weights [taps, depth, columns], for each panel: starts, then steps tap after tap."""
    taps, depth, columns = weights.shape
    vectors = -(-columns // p.lanes)
    wide = np.zeros((taps, p.steps(depth) * p.step, vectors * p.lanes), np.int8)
    wide[:, :depth, :columns] = weights
    start = p.start(wide.sum((0, 1), dtype=np.int64)).reshape(vectors, p.lanes)
    steps = p.pack(wide.reshape(-1, vectors * p.lanes))
    made = []
    for run in panels:
        for i in range(run.count):
            place = slice(run.start + i * run.size, run.start + (i + 1) * run.size)
            made += [start[place].reshape(-1).view(np.uint8), steps[:, place].reshape(-1)]
    return made
