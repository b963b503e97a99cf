"""Products of few rows with weights of few bits, decoded in registers.

A program holds tiles [columns, words] and, of each row, as many vectors of that length as a word
has codes. Codes q of 4 bits become numbers v without a conversion: as the upper bits of a fraction
they are 1 + q / 16. With q = a v - b, a zero point z, S = sum(v x) and X = sum(x) over a group that
shares a scale s, the wanted result is

s sum((q - z) x) = s (a S - (b + z) X).

That is computed in f32; on NVIDIA's units two products at once in f16 are another candidate
(`gemv_f16x2`). All threads hold words and elements of the same positions if a tile has four words
for each thread in a row: then no data is exchanged before the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.codes import WeightCodes, codes_of
from monograph.codegen.triton.matmul.product import (
    FewRows,
    Operands,
    ProductShape,
)
from monograph.codegen.triton.matmul.row_norms import root_mean_square
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonPacked,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import DType
from monograph.ir.dtype import f32, f64, i4

MOST_SUMS = 96
"""The most sums of a thread, of words times rows: they must fit its registers."""
WORDS = 4
"""Words that a thread reads at once."""


@dataclass(frozen=True)
class CodedTiling:
    """Columns, words of them, warps."""

    n: int
    words: int
    warps: int

    def __str__(self) -> str:
        return f"{self.n}x{self.words} w{self.warps}"


CUTS = ((8, 2), (4, 2), (8, 1), (4, 4), (4, 8), (16, 2), (8, 4), (16, 1), (2, 2), (2, 4), (1, 1))
"""Columns and warps to try, the most promising first."""


@dataclass
class CodedProblem(FewRows):
    """A product of few rows with coded weights."""

    codes: WeightCodes

    @cached_property
    def packed(self) -> tuple[TritonPacked, TritonPacked, TritonPacked | None]:
        """The weights, packed once for all candidates."""
        return self.codes.pack()


def candidates(context: GpuContext, shape: ProductShape) -> list[Candidate]:
    """Return candidates for few rows and coded weights; none if the weights have no such form."""
    anchor = context.anchor
    codes = codes_of(anchor.inputs[1])
    if codes is None or anchor.dtype == f64 or anchor.dtype != anchor.inputs[0].dtype:
        return []
    p = CodedProblem(context, shape, codes)
    return variants("coded rows", _fitting(p), partial(_kernel, p))


def _fitting(p: CodedProblem) -> list[CodedTiling]:
    """Return tilings whose sums fit registers, with four words per thread if possible."""
    each = p.shape.m * len(p.starts)
    columns, longest = power(p.width), power(p.codes.units) * p.codes.lanes
    found = []
    for n, warps in CUTS:
        words = min(WORDS * 32 * warps, longest)
        threads = max(words // WORDS, 1)
        if warps > 1 and threads <= 16 * warps:
            continue
        if each * min(n, columns) * words <= MOST_SUMS * 32 * warps:
            found.append(CodedTiling(min(n, columns), words, warps))
    return list(dict.fromkeys(found)) or [CodedTiling(1, p.codes.lanes, 4)]


def _kernel(p: CodedProblem, c: CodedTiling) -> Launch:
    k = p.context.kernel()
    t = tile(k)
    k.trigger()
    work = _Coded(p, c, k, t)
    for start in range(0, p.codes.units * p.codes.lanes, c.words):
        work.step(start)
    rank = len(p.anchor.tensor.static)
    t.axis(rank - 1, work.column, work.mask(work.column, p.width, c.n))
    for m in range(p.shape.m):
        t.axis(rank - 2, str(m))
        t.finish_parts(work.results(m))
    return k.launch((-(-p.width // c.n), p.shape.batch), c.warps, 1)


class CodedWeights(NamedTuple):
    """Words of some columns, with their scales and zero points as numbers."""

    words: str
    scale: str
    zero: str | None


class Now(NamedTuple):
    """The words of a step, their mask, and whether it is the first step."""

    word: str
    there: str | None
    first: bool


class _Coded:
    """The sums of a program's rows."""

    def __init__(self, p: CodedProblem, c: CodedTiling, k: KernelWriter, t: ResultTile) -> None:
        self.p, self.c, self.k, self.t, self.w = p, c, k, t, k.w
        codes = p.codes
        self.units = c.words // codes.lanes
        self.many = codes.units * codes.lanes
        self.rank = len(p.anchor.tensor.static)
        t.batch(k.program_id(1), range(self.rank - 2))
        self.operands = Operands(k, t, p.anchor, p.shape)
        words, scale, zero = p.packed
        self.words, self.scale = k.pointer(words), k.pointer(scale)
        self.zero = None if zero is None else k.pointer(zero)
        w = k.w
        self.column = w.let(f"{k.program_id()} * {c.n} + tl.arange(0, {c.n})", "rn")
        self.down = w.let(f"{self.column}[:, None]")
        self.inside = self.mask(self.down, p.width, c.n)
        self.across = w.let(f"tl.arange(0, {c.words})[None, :]", "rw")
        self.one_group = codes.groups == 1
        self.matrix = self.operands.first_column() if codes.matrices > 1 else None

    def _packed_column(self, column: str, start: int) -> str:
        """Return the number of a column among those of all matrices."""
        parts = [column, str(start) if start else "", self.matrix or ""]
        return self.w.let(" + ".join(p for p in parts if p))

    def mask(self, text: str, size: int, block: int) -> str | None:
        return self.w.let(f"{text} < {size}", "m") if size % block else None

    # Weights

    def step(self, start: int) -> None:
        """Add the products of some words of every row; weights are loaded before the wait."""
        now = self._now(start)
        found = [self._weights(now, start, s) for s in self.p.starts]
        self.k.wait()
        for m in range(self.p.shape.m):
            self.t.axis(self.rank - 2, str(m))
            self._plain(m, found, now)

    def _now(self, start: int) -> Now:
        word = self.w.let(f"{start} + {self.across}" if start else self.across)
        last = start + self.c.words > self.many
        return Now(word, self.w.let(f"{word} < {self.many}", "m") if last else None, start == 0)

    def _load(self, pointer: str, where: str, *masks: str | None, once: bool = False) -> str:
        used = " & ".join(m for m in masks if m)
        options = f", mask={used}, other=0" if used else ""
        options += ', eviction_policy="evict_first"' if once else ""
        return self.w.let(f"tl.load({pointer} + {where}{options})", "w")

    def _weights(self, now: Now, at: int, start: int) -> CodedWeights:
        """Load words of a part's columns from some word on, with scales and zero points."""
        codes = self.p.codes
        column = self._packed_column(self.down, start)
        size = codes.matrices * codes.n * self.many
        far = ".to(tl.int64)" if size >= 1 << 31 else ""
        where = f"({column}){far} * {self.many} + {now.word}"
        words = self._load(self.words, where, self.inside, now.there, once=True)
        if self.one_group:
            return CodedWeights(words, "", None)
        first = at // codes.lanes
        unit = self.w.let(f"{first} + tl.arange(0, {self.units})[None, :]", "ru")
        there = self.w.let(f"{unit} < {codes.units}", "m") if now.there else None
        units = codes.group // codes.unit
        group = self.w.let(f"{unit} // {units}") if units > 1 else unit
        place = f"({column}) * {codes.groups} + {group}"
        scale = self._load(self.scale, place, self.inside, there)
        zero = None if self.zero is None else self._load(self.zero, place, self.inside, there)
        return CodedWeights(words, *self._numbers(scale, zero))

    def _numbers(self, scale: str, zero: str | None) -> tuple[str, str | None]:
        """Scales and zero points as f32."""
        _, scales, zeros = self.p.packed
        known_one = self._decoded(scale, scales.dtype)
        if zero is None or zeros is None:
            return known_one, None
        return known_one, self._decoded(zero, zeros.dtype)

    def _decoded(self, text: str, dtype: DType) -> str:
        scalars = self.t.elements.scalars
        return str(scalars.cast(scalars.decoded(text, dtype), f32).reg)

    # Rows

    def _x(self, now: Now, i: int) -> tuple[str, str | None]:
        """Return the elements of a row that code i of words is multiplied by, and their scales."""
        codes = self.p.codes
        unit = f"({now.word}) // {codes.lanes} * {codes.unit}"
        number = self.w.let(f"{unit} + {codes.lanes * i} + ({now.word}) % {codes.lanes}", "kk")
        padded = codes.units * codes.unit > codes.k
        masks = [now.there, self.w.let(f"{number} < {codes.k}", "m") if padded else None]
        text = " & ".join(x for x in masks if x)
        axis = BlockAxis(number, self.w.let(text, "m") if text else None)
        shape, kind = f"(1, {self.c.words})", self.p.anchor.inputs[0].dtype
        x = self._decoded(self.operands.left(axis, shape), kind)
        given = self.operands.scales(axis, shape)
        return x, None if given is None else self._decoded(given, kind)

    def _row(self, m: int, now: Now, i: int) -> str:
        """Return elements of a row, scaled but not normalised; their squares are summed."""
        x, scale = self._x(now, i)
        if self.p.norm is not None:
            self._add(f"squares{m}", f"{x} * {x}", now.first and i == 0)
        return x if scale is None else self.w.let(f"{x} * {scale}")

    def _add(self, name: str, text: str, first: bool) -> None:
        self.w.line(f"{name} {'=' if first else '+='} {text}")

    def _plain(self, m: int, found: list[CodedWeights], now: Now) -> None:
        row = [self._row(m, now, i) for i in range(self.p.codes.together)]
        total = self.w.let(" + ".join(row), "xs")
        for part, given in enumerate(found):
            sums = ""
            for i, x in enumerate(row):
                text = f"{x} * {self._number(given.words, i)}"
                sums = self.w.let(f"{sums} + {text}" if sums else text, "s")
            self._collect(part, m, sums, total, given, now)

    def _number(self, words: str, i: int) -> str:
        """Return the v of code i of words."""
        dtype = self.p.codes.dtype
        if self.p.codes.nibbles:
            shift = 19 - 4 * i
            moved = f"({words} << {shift})" if shift >= 0 else f"({words} >> {-shift})"
            bits = self.w.let(f"({moved} & 0x780000) | 0x3F800000", "q")
            return self.w.let(f"{bits}.to(tl.float32, bitcast=True)", "q")
        byte = self.w.let(f"({words} >> {dtype.bits * i}) & {(1 << dtype.bits) - 1}", "q")
        if not dtype.is_integer:
            return self._decoded(f"{byte}.to(tl.int8)", dtype)
        # 2^23 + q, in the bits of a fraction; a signed code is 128 less than with its sign flipped.
        turned, less = (" ^ 0x80", 128) if dtype.is_signed else ("", 0)
        bits = self.w.let(f"(({byte}{turned}) | 0x4B000000).to(tl.float32, bitcast=True)", "q")
        return self.w.let(f"{bits} - {8388608 + less}.0", "q")

    @property
    def _relation(self) -> tuple[float, float]:
        """Return a and b of q = a v - b."""
        return (16.0, 16.0) if self.p.codes.nibbles else (1.0, 0.0)

    def _less(self, zero: str | None) -> str | None:
        """Return (b + z) / a, the factor of the row sum to subtract; None for 0."""
        a, b = self._relation
        if zero is not None:
            return self.w.let(f"({b} + {zero}) * {1 / a}")
        # Codes without a zero point that are stored with an offset.
        b += 8 if self.p.codes.dtype == i4 else 0
        return f"{b / a}" if b else None

    def _collect(
        self, part: int, m: int, sums: str, total: str, given: CodedWeights, now: Now
    ) -> None:
        """Add the products of words, scaled if groups have their own scales."""
        if self.one_group:
            self._add(f"acc{part}_{m}", sums, now.first)
            if part == 0:
                self._add(f"all{m}", total, now.first)
            return
        lanes = self.p.codes.lanes
        shape = f"({self.c.n}, {self.units}, {lanes})"
        inner = self.w.let(f"tl.sum(tl.reshape({sums}, {shape}), 2)", "s")
        less = self._less(given.zero)
        if less is not None:
            whole = f"tl.sum(tl.reshape({total}, (1, {self.units}, {lanes})), 2)"
            inner = self.w.let(f"{inner} - {less} * {self.w.let(whole, 'xs')}", "s")
        self._add(f"acc{part}_{m}", f"{given.scale} * {inner}", now.first)

    # Results

    def results(self, m: int) -> dict[int, str]:
        """Return a row's sums for every part: normalised, and scaled if columns have one scale."""
        a, _ = self._relation
        scale = f" * {a}" if a != 1 else ""
        if self.p.norm is not None:
            squares = f"tl.sum(squares{m}, 1)"
            scale += f" * {self.w.let(root_mean_square(self.p.norm, squares), 'rms')}"
        found = {}
        for i, start in enumerate(self.p.starts):
            sums = f"tl.sum(acc{i}_{m}, 1)"
            if self.one_group:
                sums = self._column_scaled(sums, m, start)
            found[start] = f"{sums}{scale}"
        return found

    def _column_scaled(self, sums: str, m: int, start: int) -> str:
        """Scale sums of whole columns by the scale and the zero point of each."""
        column = self._packed_column(self.column, start)
        inside = self.mask(self.column, self.p.width, self.c.n)
        zero = None if self.zero is None else self._load(self.zero, column, inside)
        scale, zero = self._numbers(self._load(self.scale, column, inside), zero)
        less = self._less(zero)
        if less is not None:
            sums = f"({sums} - {less} * {self.w.let(f'tl.sum(all{m}, 1)', 'xs')})"
        return f"{sums} * {scale}"
