"""Products of 2 to 64 rows on the matrix units: weights are read once for all rows.

A program holds some columns of the weights and all rows, padded to what the units take. It
multiplies in steps that the compiler loads ahead of time. The weights of the first step are loaded
before the wait for earlier kernels (dependent launch), and multiplied last.

The larger operand may be the left one: units of a newer device take 64 numbers at once on that
side and as few as 8 on the other.

Rows may be normalised on the way: they are multiplied unnormalised, and the sums by the root mean
square. The squares come from the units too, as the product of the rows with themselves, unless that
is more work than to add them up. A norm's own scales are applied as `gemv_f16x2` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.tile import ResultTile, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.codes import codes_of
from monograph.codegen.triton.matmul.matrix_weights import (
    CodedTiles,
    Columns,
    MatrixWeights,
    PlainWeights,
)
from monograph.codegen.triton.matmul.product import (
    FewRows,
    Operands,
    Parts,
    join_parts,
    on_matrix_units,
    packed_rows,
    shared_rows,
    sizes,
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
from monograph.codegen.triton.module.launch import Arch, Launch
from monograph.ir import known
from monograph.ir.dtype import bf16, f16, f32

SQUARED = 32
"""The most rows whose squares come from the matrix units."""
MOST_SUMS = 64
"""The most sums of a thread: they must fit its registers."""


@dataclass(frozen=True)
class MatrixTiling:
    """Columns of a part and elements of them that a program holds at a time, warps, stages."""

    n: int
    k: int
    warps: int
    stages: int
    left: bool = False
    """True if the weights are the left operand."""
    split: int = 1

    def __str__(self) -> str:
        side = " left" * self.left
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.n}x{self.k} w{self.warps} s{self.stages}{side}{split}"


PLAIN = tuple(MatrixTiling(*cut) for cut in (
    (64, 128, 4, 4, True), (64, 64, 4, 6, True), (32, 128, 4, 4), (32, 128, 2, 4),
    (64, 128, 4, 3), (128, 64, 4, 4, True), (32, 256, 4, 3), (64, 256, 4, 3, True),
    (128, 128, 8, 3, True), (64, 256, 8, 3), (16, 256, 4, 4), (16, 512, 4, 3),
))  # fmt: skip
"""Tilings of numbers to try, the most promising first: measured on layers of a decoder."""
CODED = tuple(MatrixTiling(*cut) for cut in (
    (32, 0, 4, 6), (64, 0, 4, 4, True), (64, 0, 4, 4), (32, 0, 2, 6), (128, 0, 8, 4, True),
    (32, 0, 4, 4), (64, 0, 4, 3, True), (64, 0, 8, 5), (16, 0, 4, 8),
))  # fmt: skip
"""Tilings of codes: the elements of a step are those of a unit."""
SHARED = {"sm_80": 160, "sm_86": 96, "sm_89": 96, "sm_120": 96}
"""Shared memory of a multiprocessor in KiB, where it is less than newer devices have."""
SPLITS = (4, 8, 2)
"""Parts of a sum to try, if one program multiplies few columns."""


@dataclass
class MatrixProblem(FewRows):
    """A product of a few rows, with constant weights."""

    @cached_property
    def weights(self) -> MatrixWeights:
        """The weights, packed once for all candidates."""
        weights = self.anchor.inputs[1]
        if known(weights) is not None:
            return PlainWeights(packed_rows(weights), self.shape.k)
        codes = codes_of(weights)
        assert codes is not None
        return CodedTiles(codes, self.anchor.dtype, self.context.arch)

    @property
    def rows(self) -> int:
        """The rows of a tile."""
        return max(16, power(self.shape.m))

    @cached_property
    def gains(self) -> tuple[TritonPacked, int] | None:
        """A norm's scales, at most 1, and the exponent of what they were divided by."""
        data = norm_gains(self.norm)
        if data is None:
            return None
        longest = 2 * max(power(self.shape.k), 1024)
        scaled, exponent = scaled_gains(data, longest)
        return TritonPacked(scaled.astype(self.anchor.dtype.numpy), self.anchor.dtype), exponent


def candidates(context: GpuContext) -> list[Candidate]:
    """Return the candidates for these rows; none if the kernels do not take the product."""
    if not on_matrix_units(context.anchor):
        return []
    p = MatrixProblem(context, shared_rows(context.anchor))
    if not gains_fit(p.norm):
        return []
    return variants("matrix rows", _tilings(p), partial(_kernel, p))


def _tilings(p: MatrixProblem) -> list[MatrixTiling]:
    """Return tilings that fit registers and shared memory."""
    coded = p.weights if isinstance(p.weights, CodedTiles) else None
    columns, parts = max(16, power(p.width)), len(p.starts)
    found = []
    for c in CODED if coded else PLAIN:
        depth = coded.depth if coded else min(c.k, max(16, power(p.shape.k)))
        step = (c.n * parts * p.weights.bits + p.rows * 16) * depth // 8
        stages = _stages(p.context.arch, c.stages, step)
        if c.n > max(columns, 64 * c.left) or c.n * parts * p.rows > MOST_SUMS * 32 * c.warps:
            continue
        if stages:
            found.append(MatrixTiling(c.n, depth, c.warps, stages, c.left))
    found = list(dict.fromkeys(found)) or [MatrixTiling(16, coded.depth if coded else 16, 4, 2)]
    split = _split(p, found)
    return [*found[:2], *split[:3], *found[2:4], *split[3:], *found[4:]]


def _split(p: MatrixProblem, tilings: list[MatrixTiling]) -> list[MatrixTiling]:
    """Return tilings whose sums are split among programs: not if rows are normalised."""
    if p.norm is not None or p.starts != (0,):
        return []
    found = []
    for c in [c for c in tilings if c.n >= 32 and c.k >= 128][:2]:
        steps = -(-p.shape.k // c.k)
        found += [
            MatrixTiling(c.n, c.k, c.warps, c.stages, c.left, s)
            for s in SPLITS
            if steps % s == 0 and steps >= 2 * s
        ]
    return found


def _stages(arch: Arch, wanted: int, step: int) -> int:
    """Return the steps that shared memory holds, 0 for less than two.

    Two programs of more than two stages should fit a multiprocessor.
    """
    if arch.backend != "cuda" and not arch.interpreted:
        return 2 if step <= 60 << 10 else 0  # one of them is in registers
    most = SHARED.get(arch.name, 220) << 10
    stages = max(min(wanted, most // 2 // step), 2)
    return stages if stages * step <= most else 0


def _kernel(p: MatrixProblem, c: MatrixTiling) -> Launch:
    k = p.context.kernel()
    t = tile(k)
    k.trigger()
    return _Sums(p, c, k, t).launch()


class _Sums:
    """The sums of a program: of each part, and of the squares of rows."""

    def __init__(self, p: MatrixProblem, c: MatrixTiling, k: KernelWriter, t: ResultTile) -> None:
        self.p, self.c, self.k, self.t, self.w = p, c, k, t, k.w
        self.rank = len(p.anchor.tensor.static)
        self.operands = Operands(k, t, p.anchor, p.shape)
        self.shared = p.shape != sizes(p.anchor)
        """True if the rows of a batch are multiplied together."""
        if not self.shared:
            t.batch(k.program_id(1), range(self.rank - 2))
        w = k.w
        self.row = w.let(f"tl.arange(0, {p.rows})", "rm")
        self.column = w.let(f"{k.program_id()} * {c.n} + tl.arange(0, {c.n})", "rn")
        down = w.let(f"{self.column}[:, None]")
        self.columns = Columns(down, self._mask(down, p.width, c.n), c.n)
        self._rows_down()
        self.squared = p.norm is not None and p.rows <= SQUARED

    def _mask(self, text: str, size: int, block: int) -> str | None:
        return self.w.let(f"{text} < {size}", "m") if size % block else None

    def _rows_down(self) -> None:
        self._set_rows(self.w.let(f"{self.row}[:, None]"))

    def _set_rows(self, number: str) -> None:
        mask = self._mask(number, self.p.shape.m, self.p.rows)
        self.rows = BlockAxis(number, mask)
        if self.shared:
            self.t.batch(number, range(self.rank - 1), mask)
        else:
            self.t.axis(self.rank - 2, number, mask)

    def launch(self) -> Launch:
        p, c, k, w = self.p, self.c, self.k, self.w
        steps = -(-p.shape.k // c.k)
        each = -(-steps // c.split)
        first = w.let(f"{k.program_id(2)} * {each}", "first") if c.split > 1 else "0"
        early = self._load(first)
        k.wait()
        self._begin()
        if each > 1:
            last = f"{first} + {each}" if c.split > 1 else str(steps)
            with w.block(f"for step in range({first} + 1, {last})"):
                self._multiply("step", self._load("step"))
        self._multiply(first, early)
        self._finish()
        grid = (-(-p.width // c.n), p.shape.batch, c.split)
        return k.launch(grid, c.warps, c.stages)

    def _begin(self) -> None:
        p, c = self.p, self.c
        shape = f"({c.n}, {p.rows})" if c.left else f"({p.rows}, {c.n})"
        for part in range(len(p.starts)):
            self.w.line(f"acc{part} = tl.zeros({shape}, tl.float32)")
        if p.norm is not None:
            size = f"({p.rows}, {p.rows})" if self.squared else f"({p.rows},)"
            self.w.line(f"squares = tl.zeros({size}, tl.float32)")

    def _load(self, step: str) -> list[list[str]]:
        p = self.p
        return [p.weights.load(self.operands, step, self.c.k, self.columns, s) for s in p.starts]

    def _multiply(self, step: str, loaded: list[list[str]]) -> None:
        """Add the products of a step."""
        p, w = self.p, self.w
        width = p.weights.width(self.c.k)
        for chunk in range(p.weights.chunks):
            first = (
                f"({step}) * {self.c.k} + {chunk * width}" if chunk else f"({step}) * {self.c.k}"
            )
            number = w.let(f"{first} + tl.arange(0, {width})[None, :]", "kk")
            mask = w.let(f"{number} < {p.shape.k}", "m") if p.shape.k % self.c.k else None
            x = self.operands.left(BlockAxis(number, mask), f"({p.rows}, {width})")
            self._square(x)
            if p.gains is not None:
                x = self._gained(x, number)
            for part, given in enumerate(loaded):
                y = p.weights.tile(self.operands, given, chunk)
                a, b = (y, x) if self.c.left else (x, y)
                self._add(f"acc{part}", a, b)

    def _add(self, total: str, a: str, b: str) -> None:
        """Add the product of a tile with another, transposed."""
        if self.p.anchor.dtype == bf16 and self.p.context.arch.interpreted:
            # The interpreter would multiply the codes of bf16.
            a, b = f"{a}.to(tl.float32)", f"{b}.to(tl.float32)"
        self.w.line(f"{total} = tl.dot({a}, tl.trans({b}), {total}, out_dtype=tl.float32)")

    def _square(self, x: str) -> None:
        if self.squared:
            self._add("squares", x, x)
        elif self.p.norm is not None:
            self.w.line(f"squares += tl.sum({x}.to(tl.float32) * {x}.to(tl.float32), 1)")

    def _gained(self, x: str, number: str) -> str:
        """Return rows times the scales of their norm."""
        assert self.p.gains is not None
        kind = "tl.float16" if self.p.anchor.dtype == f16 else "tl.bfloat16"
        g = self.w.let(f"tl.load({self.k.pointer(self.p.gains[0])} + {number})", "g")
        return self.w.let(f"({x}.to(tl.float32) * {g}.to(tl.float32)).to({kind})", "x")

    # Results

    def _factor(self) -> str:
        """Return the factor of each row's sums, as text behind them."""
        p, w = self.p, self.w
        if p.norm is None:
            return ""
        if self.squared:
            own = w.let(f"{self.row}[:, None] == {self.row}[None, :]", "m")
            squares = w.let(f"tl.sum(tl.where({own}, squares, 0.0), {int(not self.c.left)})")
        else:
            squares = "squares"
        scale = "" if p.gains is None else f" * {2.0 ** p.gains[1]!r}"
        made = w.let(f"({root_mean_square(p.norm, squares)}){scale}", "rms")
        return f" * {made}[None, :]" if self.c.left else f" * {made}[:, None]"

    def _finish(self) -> None:
        """Scale the sums and store what follows from them."""
        p, c, w, t = self.p, self.c, self.w, self.t
        factor = self._factor()
        if c.left:
            self._set_rows(w.let(f"{self.row}[None, :]"))
            columns = self.columns
        else:
            text = w.let(f"{self.column}[None, :]")
            columns = Columns(text, self._mask(text, p.width, c.n), c.n)
        t.axis(self.rank - 1, columns.text, columns.mask)
        if c.split > 1:
            w.line("acc = acc0")
            self._join(columns)
            return
        t.finish_parts(
            {
                s: p.weights.finished(self.operands, f"acc{i}{factor}", columns, s)
                for i, s in enumerate(p.starts)
            }
        )

    def _join(self, columns: Columns) -> None:
        """Let the last program of some columns add up the parts of all."""
        p, c, k = self.p, self.c, self.k
        tiles, size = -(-p.width // c.n), p.shape.batch * p.shape.m * p.shape.n
        rows = self.rows
        first = f"{k.program_id(1)} * {p.shape.m * p.shape.n} + {rows.text} * {p.shape.n}"
        masks = " & ".join(m for m in (rows.mask, columns.mask) if m)
        join_parts(
            k,
            Parts(c.split, p.shape.batch * tiles, size, f32),
            f"{k.program_id(1)} * {tiles} + {k.program_id()}",
            lambda part: f"{part} * {size} + {first} + {columns.text}",
            k.w.let(masks, "m") if masks else None,
            lambda total: self.t.finish(p.weights.finished(self.operands, total, columns, 0)),
        )
