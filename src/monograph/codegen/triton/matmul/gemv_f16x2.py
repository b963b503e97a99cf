"""Products of few rows of f16 with weights of 4 bits, two at once on NVIDIA's units.

A program holds tiles [pieces, words, teams, columns]. A thread reads the words of a piece at once,
and the pairs of elements that their codes are multiplied by (see `codes`). A piece
has one scale and one zero point, stored together: the sum of a thread is scaled and added to its
own totals, and threads exchange data only at the end.

Dimensions are in this order, and warps that do not fit along the words are teams with columns of
their own, because Triton then assigns the same positions of all loads to each thread: it
distributes elements by their order in memory, then by the first dimension. Each warp reads its part
of a row itself.

Normalised rows are multiplied unnormalised, and the sums by the root mean square, whose squares are
summed on the way. A norm's own scales g are applied in between, in f16, divided by a power of two
that makes them at most 1: that loses nothing (except below 2^-24 of the largest), cannot overflow,
and is undone with the sums. A product x g is rounded once, to 2^-11 of it, as if the norm stored
its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.codes import (
    Halves,
    Paired,
    WeightCodes,
    addends,
    codes_of,
    twice,
)
from monograph.codegen.triton.matmul.product import (
    FewRows,
    Operands,
    ProductShape,
)
from monograph.codegen.triton.matmul.row_norms import (
    gains_fit,
    norm_gains,
    root_mean_square,
    scaled_gains,
)
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonPacked,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir.dtype import f16, f32, i32
from monograph.ops.scalar import Scalar
from monograph.program.fusion.index_bounds import inside
from monograph.program.fusion.op_classes import is_view
from monograph.program.fusion.region import through_view
from monograph.program.index import Index, flatten
from monograph.program.memory.buffer_assignment import described

MOST_WORDS = 64
"""The most words of a thread at a time: with their factors they must fit its registers."""
MOST_ASKED = 32
"""The most words of a thread that are loaded before the wait, if there are several steps."""
CHAINED = 4
"""Products added in f16: with two, a quarter more work, and a quarter less error."""
PIECE = 4
"""Words that a thread reads at once."""


@dataclass(frozen=True)
class F16x2Tiling:
    """Columns, words of them, warps."""

    n: int
    words: int
    warps: int

    @property
    def teams(self) -> int:
        """The parts that the columns are divided into: one for all warps if they fit the words."""
        return min(max(32 * PIECE * self.warps // self.words, 1), self.n)

    def __str__(self) -> str:
        return f"halves {self.n}x{self.words} w{self.warps}"


CUTS = tuple(F16x2Tiling(*cut) for cut in (
    (8, 256, 2), (8, 256, 4), (16, 128, 2), (4, 1024, 8), (4, 256, 2),
    (32, 128, 4), (8, 1024, 8), (16, 128, 1), (16, 128, 4), (16, 256, 4),
    (4, 512, 4), (8, 512, 4), (8, 128, 1), (32, 256, 8), (4, 256, 4),
    (8, 128, 2), (2, 256, 2), (2, 1024, 8), (4, 128, 1), (1, 128, 1),
))  # fmt: skip
"""Columns (of all parts together), words and warps to try, the most promising first."""


@dataclass
class F16x2Problem(FewRows):
    """A product of few rows with codes of 4 bits."""

    codes: WeightCodes

    @cached_property
    def packed(self) -> Paired:
        """The weights, packed once for all candidates."""
        return self.codes.pack_pairs(CHAINED)

    @cached_property
    def gains(self) -> tuple[TritonPacked, int] | None:
        """A norm's scales as pairs, divided by a power of two; and the power."""
        data = norm_gains(self.norm)
        if data is None:
            return None
        scaled, exponent = scaled_gains(data, self.codes.units * self.codes.unit)
        return TritonPacked(scaled.astype(np.float16).view(np.int32), i32), exponent


def candidates(context: GpuContext, shape: ProductShape) -> list[Candidate]:
    """Return candidates for two products at once; none if that is not possible."""
    anchor = context.anchor
    if context.arch.backend != "cuda" or anchor.dtype != f16 or anchor.inputs[0].dtype != f16:
        return []
    codes = codes_of(anchor.inputs[1])
    if codes is None or codes.matrices > 1 or not codes.pairs:
        return []
    p = F16x2Problem(context, shape, codes)
    if not gains_fit(p.norm):
        return []
    return variants("coded rows", fitting(p), partial(_kernel, p))


def fitting(p: F16x2Problem) -> list[F16x2Tiling]:
    """Return tilings whose words fit registers, those of at most two steps first.

    Loads after the first steps are issued too late.
    """
    columns, longest = power(p.width), power(p.codes.units) * p.codes.lanes
    found = []
    for c in CUTS:
        n, words = min(max(c.n // len(p.starts), 1), columns), min(c.words, longest)
        warps = max(min(c.warps * words // c.words, n * words // (32 * PIECE)), 1)
        held = n * len(p.starts) * words // (32 * warps)
        if held * min(p.shape.m, 4) <= MOST_WORDS:
            found.append(F16x2Tiling(n, words, warps))
    found.sort(key=lambda c: 2 * c.words < longest)
    return list(dict.fromkeys(found))


def _kernel(p: F16x2Problem, c: F16x2Tiling) -> Launch:
    k = p.context.kernel()
    t = tile(k)
    k.trigger()
    work = _Work(p, c, k, t)
    starts = range(0, work.many, c.words)
    held = max(c.n * len(p.starts) * c.words // (32 * c.warps), 1)
    ahead = max(MOST_ASKED // (held * p.shape.m), 1)
    asked = [work.weights(s) for s in starts[:ahead]]
    k.wait()
    rank = len(p.anchor.tensor.static)
    t.axis(rank - 1, work.column, work.mask(work.column, p.width, c.n))
    _fetch(p, t)
    for i, start in enumerate(starts):
        if (later := i + ahead) < len(starts):
            asked.append(work.weights(starts[later]))
        work.add(start, asked[i])
    for m in range(p.shape.m):
        t.axis(rank - 2, str(m))
        t.finish_parts(work.results(m))
    return k.launch((-(-p.width // c.n), p.shape.batch), c.warps, 1)


def _fetch(p: F16x2Problem, t: ResultTile) -> None:
    """Load the epilogue's operands early: a residual arrives before the sums are finished."""
    elements, region = t.elements, p.context.step.region
    elements.given[p.anchor] = Scalar(Reg("", types.register(f32)), f32)  # so that it is a leaf
    order = elements.plan(region.outputs, t.at)
    for m in range(p.shape.m):
        t.axis(len(t.shape) - 2, str(m))
        for item in order:
            if not item.operands and item.element.value is not p.anchor:
                elements.load(item.element.value, item.element.at, t.point)
    del elements.given[p.anchor]


@dataclass(frozen=True)
class F16x2Weights:
    """Words of a part's columns; scales and zero points of their pieces."""

    words: str
    shared: str


@dataclass(frozen=True)
class EarlyLoads:
    """The loads before the wait: weights of every part, and a norm's scales as pairs."""

    parts: tuple[F16x2Weights, ...]
    gains: tuple[str, ...]


class _Work:
    """The sums of a program's rows."""

    def __init__(self, p: F16x2Problem, c: F16x2Tiling, k: KernelWriter, t: ResultTile) -> None:
        self.p, self.c, self.k, self.t, self.w = p, c, k, t, k.w
        codes, w = p.codes, k.w
        self.many = codes.units * codes.lanes
        self.piece = min(PIECE, codes.lanes)
        self.pieces = c.words // self.piece
        self.teams = c.teams
        self.each = c.n // c.teams
        self.rank = len(p.anchor.tensor.static)
        t.batch(k.program_id(1), range(self.rank - 2))
        self.operands = Operands(k, t, p.anchor, p.shape)
        self.words, self.shared = k.pointer(p.packed.words), k.pointer(p.packed.shared)
        self.halves = Halves(w, p.packed.reach, CHAINED, p.context.arch.interpreted)
        self.column = w.let(f"{k.program_id()} * {c.n} + tl.arange(0, {c.n})", "rn")
        # As [pieces, teams, columns], and words of pieces as [pieces, words, teams, columns].
        team = w.let(f"tl.arange(0, {self.teams})[None, :, None] * {self.each}", "rt")
        inner = w.let(f"{team} + tl.arange(0, {self.each})[None, None, :]", "rc")
        self.columns = w.let(f"{k.program_id()} * {c.n} + {inner}", "rc")
        self.inside = self.mask(self.columns, p.width, c.n)
        self.across = w.let(f"tl.arange(0, {self.pieces})[:, None, None]", "rp")
        self.lane = w.let(f"tl.arange(0, {self.piece})[None, :, None, None]", "rl")
        # A row is the same for every team; this makes as many elements of it as there are threads.
        self.again = w.let(f"tl.arange(0, {self.teams})[None, None, :, None] * 0", "ra")
        self.address = self._address()

    def mask(self, text: str, size: int, block: int) -> str | None:
        return self.w.let(f"{text} < {size}", "m") if size % block else None

    def _now(self, start: int) -> tuple[str, str | None]:
        """Return the numbers of pieces from some word on, and their mask."""
        now = self.w.let(f"{start // self.piece} + {self.across}" if start else self.across)
        past = start + self.c.words > self.many
        return now, self.w.let(f"{now} < {self.many // self.piece}", "m") if past else None

    def _load(self, where: str, masks: str, once: bool = False) -> str:
        options = f", mask={masks}, other=0" if masks else ""
        options += ', eviction_policy="evict_first"' if once else ""
        return self.w.let(f"tl.load({where}{options})", "w")

    # Weights

    def weights(self, start: int) -> EarlyLoads:
        """Load words from some on, with all that is known."""
        parts = tuple(self._loaded(start, s) for s in self.p.starts)
        numbers = [self._pair(start, i) for i in range(4)]
        gains: tuple[str, ...] = ()
        if self.p.gains is not None:
            pointer, (_, there) = self.k.pointer(self.p.gains[0]), self._now(start)
            masks = f"{there}[:, None, :, :]" if there else ""
            gains = tuple(self._load(f"{pointer} + {n}", masks) for n in numbers)
        return EarlyLoads(parts, gains)

    def _loaded(self, start: int, part: int) -> F16x2Weights:
        codes = self.p.codes
        now, there = self._now(start)
        column = self.w.let(f"{self.columns} + {part}" if part else self.columns)
        far = ".to(tl.int64)" if codes.n * self.many >= 1 << 31 else ""
        masks = " & ".join(m for m in (self.inside, there) if m)
        where = self.w.let(f"{column}{far} * {self.many} + {now} * {self.piece}")
        words = self._load(
            f"{self.words} + {where}[:, None, :, :] + {self.lane}",
            self.w.let(f"({masks})[:, None, :, :]", "m") if masks else "",
            once=True,
        )
        apart = max(codes.group // (8 * self.piece), 1)
        group = self.w.let(f"{now} // {apart}" if codes.groups > 1 else f"{now} * 0")
        # The contiguity of groups is hidden: a thread would get several, of others' pieces.
        place = f"tl.max_contiguous({column} * {codes.groups} + {group}, [1, 1, 1])"
        shared = self._load(f"{self.shared} + {place}", masks)
        return F16x2Weights(words, shared)

    def _numbers(self, shared: str) -> tuple[str, tuple[str, str]]:
        """Return scales as f32, and addends as pairs, of pieces."""
        packed = self.p.packed
        if packed.zero is None:
            a, b = self.halves.addends(shared)
            added = (self.w.let(f"{a}[:, None, :, :]"), self.w.let(f"{b}[:, None, :, :]"))
            return self.w.let(f"{self.halves.part(shared, 0)}.to(tl.float32)"), added
        low, high = (
            self.w.let(f"tl.full((1, 1, 1, 1), {_signed(twice(x))}, tl.int32)")
            for x in addends(packed.zero, packed.reach)
        )
        return self.w.let(f"{shared}.to(tl.float32)"), (low, high)

    # Rows

    def _pair(self, start: int, i: int) -> str:
        """Return the numbers of the pairs that code i of each half of words belongs to."""
        codes, (now, _) = self.p.codes, self._now(start)
        each = codes.lanes // self.piece
        inner = f"{now} // {each} * {codes.unit // 2} + {now} % {each} * {self.piece}"
        first = self.w.let(inner if each > 1 else f"{now} * {codes.unit // 2}", "kp")
        place = self.w.let(f"{first}[:, None, :, :] + {self.lane} + {self.again}", "kk")
        return self.w.let(f"{place} + {codes.lanes * i}" if i else place, "kk")

    def _address(self) -> Index | None:
        """Return the address of rows that are readable in pairs, without the index; or None."""
        element, pointers = self.operands.source(), self.t.elements.pointers
        while element.value not in pointers:
            if not is_view(element.value):
                return None
            element = through_view(element.value, element.at)
        storage = self.t.elements.storage[element.value]
        where = flatten(element.at, storage.strides)
        extent = math.prod(storage.buffer.padded)
        if not inside(where + storage.offset, extent, described(storage.buffer)):
            return None
        counter = self.operands.counter
        rest = where + Index(0, ((counter, -1),))
        steps = [storage.offset, rest.constant, self.p.codes.k, *(f for _, f in rest.terms)]
        if where.factor(counter) != 1 or counter in rest.counters or any(s % 2 for s in steps):
            return None
        self.source = pointers[element.value]
        return Index(rest.constant // 2, tuple((a, f // 2) for a, f in rest.terms))

    def _x(self, start: int, i: int) -> str:
        """Return the pairs of a row that code i of each half of words is multiplied by."""
        number, codes = self._pair(start, i), self.p.codes
        _, there = self._now(start)
        masks = [f"{there}[:, None, :, :]"] if there else []
        if codes.units * codes.unit > codes.k:
            masks.append(self.w.let(f"{number} < {-(-codes.k // 2)}", "m"))
        text = self.w.let(" & ".join(masks), "m") if masks else None
        if self.address is None:
            return self._packed(number, text)
        rest = self.t.elements.integer(self.address, self.t.point)
        words = self.w.let(f"{self.source}.to(tl.pointer_type(tl.int32))", "xp")
        return self._load(f"{words} + {rest} + {number}", text or "")

    def _packed(self, number: str, mask: str | None) -> str:
        """The same from single elements, for rows that are not so in memory."""
        found = []
        for which in range(2):
            at = self.w.let(f"{number} * 2 + {which}", "kk")
            inside = mask
            if mask and which and self.p.codes.k % 2:
                inside = self.w.let(f"{mask} & ({at} < {self.p.codes.k})", "m")
            shape = f"({self.pieces}, {self.piece}, {self.teams}, 1)"
            found.append(self.operands.left(BlockAxis(at, inside), shape))
        return self.halves.pair(*found)

    def add(self, start: int, asked: EarlyLoads) -> None:
        """Add the products of some words with every row."""
        numbers = [self._numbers(given.shared) for given in asked.parts]
        both = list(zip(asked.parts, numbers, strict=True))
        several = self.p.shape.m > 1
        decoded = [self.halves.decoded(g.words, added) for g, (_, added) in both if several]
        for m in range(self.p.shape.m):
            pairs = self._row(m, start, asked)
            for part, (given, (scale, added)) in enumerate(both):
                sums = (
                    self.halves.summed(decoded[part], pairs)
                    if several
                    else self.halves.products(given.words, added, pairs)
                )
                self._to(f"acc{part}_{m}", f"{scale} * tl.sum({sums}, 1)", start == 0)

    def _row(self, m: int, start: int, asked: EarlyLoads) -> list[str]:
        """Return the pairs that words from some on are multiplied by; their squares are summed."""
        self.t.axis(self.rank - 2, str(m))
        pairs = [self._x(start, i) for i in range(4)]
        if self.p.norm is not None:
            halves = [self.halves.part(x, i) for x in pairs for i in (0, 1)]
            numbers = [self.w.let(f"{x}.to(tl.float32)") for x in halves]
            self._to(f"squares{m}", " + ".join(f"{x} * {x}" for x in numbers), start == 0)
        if not asked.gains:
            return pairs
        return [self.halves.scaled(x, g) for x, g in zip(pairs, asked.gains, strict=True)]

    def _to(self, name: str, text: str, first: bool) -> None:
        self.w.line(f"{name} {'=' if first else '+='} {text}")

    def results(self, m: int) -> dict[int, str]:
        """Return the sums of a row for every part, with all scales applied."""
        exponent = 0 if self.p.gains is None else self.p.gains[1]
        scale = f"{math.ldexp(self.p.packed.reach, exponent)}"
        if self.p.norm is not None:
            squares = f"tl.sum(tl.sum(squares{m}, 1), 0)"
            scale += f" * {self.w.let(root_mean_square(self.p.norm, squares), 'rms')}"
        return {
            s: f"tl.reshape(tl.sum(acc{i}_{m}, 0) * ({scale}), ({self.c.n},))"
            for i, s in enumerate(self.p.starts)
        }


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
