"""Products of few rows: weights are read once, at memory bandwidth.

Every program holds some columns of the weights and multiplies each row by them. The next kernel may
start at once, and the first weights are loaded before the wait for earlier kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul import gemv_coded, gemv_f16x2
from monograph.codegen.triton.matmul.product import (
    FewRows,
    Operands,
    ProductShape,
    packed_rows,
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
from monograph.ir import Value, known
from monograph.program.fusion.op_classes import is_leaf

MOST_SUMS = 128
"""The most partial sums of a thread: they must fit its registers."""

HALVES = 7
"""Candidates of two products at once that are tried before more of one at once."""


@dataclass(frozen=True)
class GemvTiling:
    """Columns and elements of them that a program holds at a time, and its warps."""

    n: int
    k: int
    warps: int

    def __str__(self) -> str:
        return f"{self.n}x{self.k} w{self.warps}"


CUTS = tuple(GemvTiling(*cut) for cut in (
    (2, 1024, 4), (4, 1024, 4), (4, 2048, 4), (2, 2048, 4), (1, 2048, 4),
    (2, 2048, 2), (8, 1024, 4), (4, 2048, 8), (2, 2048, 1), (1, 1024, 4),
    (4, 512, 2), (2, 512, 2), (16, 512, 4), (1, 512, 4), (8, 512, 4),
))  # fmt: skip
"""Tilings to try, the most promising first: measured on chains of layers of a decoder."""


@dataclass
class GemvProblem(FewRows):
    """A product of few rows, with weights as numbers."""

    @cached_property
    def packed(self) -> TritonPacked | None:
        """Constant weights, packed once for all candidates."""
        weights = self.anchor.inputs[1]
        return None if known(weights) is None else packed_rows(weights)


def candidates(context: GpuContext, shape: ProductShape) -> list[Candidate]:
    """Return the candidates for few rows, the default first."""
    p = GemvProblem(context, shape)
    coded = _coded(p)
    rows = variants("rows", row_cuts(p), partial(_rows, p))
    if coded:
        return [*coded, rows[0]]  # it decodes one by one, and needs no packing of its own
    return rows


def _coded(p: GemvProblem) -> list[Candidate]:
    """Return candidates for weights of few bits: exact f32 first, then mostly faster ones."""
    plain = gemv_coded.candidates(p.context, p.shape)
    halves = gemv_f16x2.candidates(p.context, p.shape)
    return [*plain[:1], *halves[:HALVES], *plain[1:3], *halves[HALVES:], *plain[3:]]


def row_cuts(p: GemvProblem) -> list[GemvTiling]:
    most, width = power(p.shape.k), power(p.width)
    each = p.shape.m * len(p.starts)
    fitting = [
        GemvTiling(c.n, min(c.k, most), c.warps)
        for c in CUTS
        if c.n <= width and each * c.n * min(c.k, most) <= MOST_SUMS * 32 * c.warps
    ]
    return list(dict.fromkeys(fitting)) or [GemvTiling(1, min(most, 512), 4)]


def mask(k: KernelWriter, text: str, size: int, block: int) -> str | None:
    return k.w.let(f"{text} < {size}", "m") if size % block else None


def _begin(p: GemvProblem) -> tuple[KernelWriter, ResultTile, Operands]:
    k = p.context.kernel()
    t = tile(k)
    k.trigger()
    operands = Operands(k, t, p.anchor, p.shape)
    operands.pack(p.packed)
    return k, t, operands


# Rows, one after the other


def _rows(p: GemvProblem, c: GemvTiling) -> Launch:
    k, t, operands = _begin(p)
    w, rank = k.w, len(p.anchor.tensor.static)
    column = w.let(f"{k.program_id()} * {c.n} + tl.arange(0, {c.n})", "rn")
    down = BlockAxis(w.let(f"{column}[:, None]"), mask(k, f"{column}[:, None]", p.width, c.n))
    t.batch(k.program_id(1), range(rank - 2))
    steps = w.let(f"tl.arange(0, {c.k})", "rk")
    rows = _Rows(p, c, operands, down)
    for start in range(0, p.shape.k, c.k):
        now = w.let(f"{start} + {steps}" if start else steps, "kk")
        masked = start + c.k > p.shape.k
        inside = w.let(f"{now}[None, :] < {p.shape.k}", "m") if masked else None
        rows.step(BlockAxis(w.let(f"{now}[None, :]"), inside), start == 0)
    t.axis(rank - 1, column, mask(k, column, p.width, c.n))
    for m in range(p.shape.m):
        t.axis(rank - 2, str(m))
        t.finish_parts(rows.results(m))
    return k.launch((-(-p.width // c.n), p.shape.batch), c.warps, 1)


@dataclass
class _Rows:
    """The sums of a program's rows, and of their squares."""

    p: GemvProblem
    c: GemvTiling
    operands: Operands
    down: BlockAxis

    def step(self, axis: BlockAxis, first: bool) -> None:
        """Add the products of some elements of every row."""
        p, k, w = self.p, self.operands.k, self.operands.k.w
        t, rank = self.operands.t, len(p.anchor.tensor.static)
        if not _made_of_constants(p.anchor.inputs[1]):
            k.wait()
        scalars, wide = t.elements.scalars, accumulator(p.anchor.dtype)
        columns = [self._columns(axis, start) for start in p.starts]
        k.wait()
        right = p.anchor.inputs[1].dtype
        factors = [scalars.cast(scalars.decoded(y, right), wide).reg for y in columns]
        for m in range(p.shape.m):
            t.axis(rank - 2, str(m))
            shape = f"(1, {self.c.k})"
            x = self.operands.left(axis, shape)
            a = scalars.cast(scalars.decoded(x, p.anchor.inputs[0].dtype), wide).reg
            if p.norm is not None:
                self._add(f"squares{m}", f"{a} * {a}", first)
            if (g := self.operands.scales(axis, shape)) is not None:
                scale = scalars.decoded(g, p.anchor.inputs[0].dtype).reg
                a = w.set("float", f"{a} * {scale}")
            for part, b in enumerate(factors):
                self._add(f"acc{part}_{m}", f"{a} * {b}", first)

    def _columns(self, axis: BlockAxis, start: int) -> str:
        """Load the weights of a part's columns."""
        if self.operands.packed is not None:
            return self.operands.rows(axis, self.down, True, start)
        t, rank = self.operands.t, len(self.p.anchor.tensor.static)
        text = f"{self.down.text} + {start}" if start else self.down.text
        t.axis(rank - 1, self.operands.k.w.let(text), self.down.mask)
        return self.operands.right(axis, f"({self.c.n}, {self.c.k})")

    def _add(self, name: str, text: str, first: bool) -> None:
        self.operands.k.w.line(f"{name} {'=' if first else '+='} {text}")

    def results(self, m: int) -> dict[int, str]:
        """Return the sums of a row for every part, normalised."""
        w, scale = self.operands.k.w, ""
        if self.p.norm is not None:
            scale = f" * {w.let(root_mean_square(self.p.norm, f'tl.sum(squares{m}, 1)'), 'rms')}"
        return {s: f"tl.sum(acc{i}_{m}, 1){scale}" for i, s in enumerate(self.p.starts)}


def _made_of_constants(value: Value) -> bool:
    """Return True if a value depends on constants only."""
    stack, seen = [value], {value}
    while stack:
        v = stack.pop()
        if is_leaf(v) and known(v) is None:
            return False
        for i in v.inputs:
            if i not in seen:
                seen.add(i)
                stack.append(i)
    return True
