"""A product and the product of one column after it, in one kernel.

Programs hold tiles of the first product, finish them in registers and multiply by the column. The
last program adds up a row's sum over all tiles (see `split_k`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.product import Operands, Parts, ProductShape, join_parts, sizes
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, variants
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Value
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Element, aligned
from monograph.program.index import Index

ROWS = ((4, 4), (4, 2), (128, 16), (8, 4), (64, 16), (2, 4), (32, 8), (8, 8), (16, 4), (1, 4))
"""Columns of a program and its warps, for one row. If one program holds all columns of the first
product, none waits for others.
"""
MOST = 1 << 15
"""The most products that a program holds at once, for one row."""
MOST_PARTS = {True: 256, False: 16}
"""The most programs that a row's sum may come from, for one row or several: the last adds up."""


T = TypeVar("T")


class MatvecTiling(Protocol):
    """The tiling of the first product."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...


Multiply = Callable[[Operands, ProductShape, int, int, int, str], None]
"""Writes one step of a sum of tiles m, n, k: acc += x . y, at some indices of k."""


@dataclass
class _Chain:
    """The kernel during generation: both products, and the tile of each."""

    context: GpuContext
    first: Value
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        region = self.context.step.region
        self.second = self.context.anchor
        self.rank = self.first.tensor.rank
        self.k = self.context.kernel()
        elements = self.k.elements()
        self.tile = ResultTile(self.k, self.first.tensor.static, elements)
        self.result = ResultTile(self.k, region.root.tensor.static, elements)
        self.shape = sizes(self.first)
        for t in (self.tile, self.result):
            t.batch(self.k.program_id(1), range(self.rank - 2))
        self.result.axis(self.rank - 1, "0")

    def products(self, sums: str) -> str:
        """Return the finished elements of the first product times the column's; 0 outside."""
        t, e = self.tile, self.tile.elements
        wide = accumulator(self.first.dtype)
        given = Scalar(Reg(self.k.w.let(sums), types.register(wide)), wide)
        e.given[self.first] = e.scalars.cast(given, self.first.dtype)
        row, column = self.second.inputs
        made = e.emit(e.plan((row,), t.at), t.point)[Element(row, t.at)]
        batch = aligned(t.at[:-2], column.tensor.static[:-2])
        factor = e.element(column, (*batch, t.at[-1], Index()), t.point)
        total = accumulator(self.second.dtype)
        text = self.k.w.let(
            f"{e.scalars.cast(made, total).reg} * {e.scalars.cast(factor, total).reg}"
        )
        mask = t.point[t.counter(self.rank - 1)].mask
        return self.k.w.let(f"tl.where({mask}, {text}, 0.0)") if mask else text

    def finish(self, rows: int, columns: int, row: str, mask: str | None) -> None:
        """Add up `acc` of the programs of some rows, and finish the second product."""
        size = self.shape.batch * self.shape.m
        if columns == 1:
            self.result.finish("acc")
            return
        at = f"{self.k.program_id(1)} * {self.shape.m} + {row}"
        join_parts(
            self.k,
            Parts(
                columns,
                self.shape.batch * rows,
                size,
                accumulator(self.second.dtype),
                single=self.shape.m == 1,
            ),
            f"{self.k.program_id(1)} * {rows} + {self.k.program_id()}",
            lambda part: f"{part} * {size} + {at}",
            mask,
            self.result.finish,
        )


def candidates(
    context: GpuContext, first: Value, tilings: Sequence[MatvecTiling], multiply: Multiply
) -> list[Candidate]:
    """Return candidates for both; `tilings` are the tilings of the first product, best first."""
    shape = sizes(first)
    if shape.m > 1:
        kept = _of_few_parts(shape, list(tilings), lambda c: c.n)
        return variants("chained", kept, lambda c: _tiles(_Chain(context, first), c, multiply))
    depth = min(1024, power(shape.k))
    rows = _of_few_parts(shape, [r for r in ROWS if r[0] * depth <= MOST], lambda r: r[0])
    return [
        Candidate(
            f"chained rows {n}x{depth} w{w}",
            lambda n=n, w=w: (_row(_Chain(context, first), n, depth, w),),  # type: ignore[misc]
        )
        for n, w in rows
    ]


def _of_few_parts(shape: ProductShape, ways: list[T], columns: Callable[[T], int]) -> list[T]:
    """Return the tilings whose programs hold enough columns; if none, those with the most."""
    most = max(map(columns, ways))
    least = -(-shape.n // MOST_PARTS[shape.m == 1])
    return [way for way in ways if columns(way) >= min(least, most)]


def _tiles(chain: _Chain, c: MatvecTiling, multiply: Multiply) -> Launch:
    k, w, t, shape, rank = chain.k, chain.k.w, chain.tile, chain.shape, chain.rank
    rows, columns = -(-shape.m // c.m), -(-shape.n // c.n)
    row = w.let(f"{k.program_id()} * {c.m} + tl.arange(0, {c.m})", "rm")
    column = w.let(f"{k.program_id(2)} * {c.n} + tl.arange(0, {c.n})", "rn")
    inside = w.let(f"{row} < {shape.m}", "m") if shape.m % c.m else None
    across = w.let(f"{column}[None, :] < {shape.n}", "m") if shape.n % c.n else None
    down = w.let(f"{row}[:, None] < {shape.m}", "m") if inside else None
    t.axis(rank - 2, w.let(f"{row}[:, None]"), down)
    t.axis(rank - 1, w.let(f"{column}[None, :]"), across)
    chain.result.axis(rank - 2, row, inside)
    operands = Operands(k, t, chain.first, shape)
    operands.pack_tiles()
    w.line(f"acc = tl.zeros(({c.m}, {c.n}), {register_type(accumulator(chain.first.dtype))})")
    k.wait()
    steps = w.let(f"tl.arange(0, {c.k})", "rk")
    with w.block(f"for k0 in range(0, {-(-shape.k // c.k) * c.k}, {c.k})"):
        multiply(operands, shape, c.m, c.n, c.k, steps)
    k.trigger()
    w.line(f"acc = tl.sum({chain.products('acc')}, 1)")
    chain.finish(rows, columns, row, inside)
    return k.launch((rows, shape.batch, columns), c.warps, c.stages)


def _row(chain: _Chain, n: int, depth: int, warps: int) -> Launch:
    """Compute one row: every program holds some columns of the weights."""
    k, w, t, shape, rank = chain.k, chain.k.w, chain.tile, chain.shape, chain.rank
    k.trigger()
    columns = -(-shape.n // n)
    column = w.let(f"{k.program_id(2)} * {n} + tl.arange(0, {n})", "rn")
    masked = shape.n % n != 0
    down = BlockAxis(
        w.let(f"{column}[:, None]"),
        w.let(f"{column}[:, None] < {shape.n}", "m") if masked else None,
    )
    t.axis(rank - 2, "0")
    t.axis(rank - 1, down.text, down.mask)
    chain.result.axis(rank - 2, "0")
    operands = Operands(k, t, chain.first, shape)
    operands.pack()
    wide, scalars = accumulator(chain.first.dtype), t.elements.scalars
    w.line(f"acc = tl.zeros(({n}, {depth}), {register_type(wide)})")
    steps = w.let(f"tl.arange(0, {depth})", "rk")
    left, right = (v.dtype for v in chain.first.inputs)
    for start in range(0, shape.k, depth):
        now = w.let(f"{start} + {steps}" if start else steps, "kk")
        beyond = start + depth > shape.k
        axis = BlockAxis(
            w.let(f"{now}[None, :]"), w.let(f"{now}[None, :] < {shape.k}", "m") if beyond else None
        )
        if operands.packed is not None:
            y = operands.rows(axis, down, once=True)
            k.wait()
        else:
            k.wait()
            y = operands.right(axis, f"({n}, {depth})")
        x = operands.left(axis, f"(1, {depth})")
        a, b = (scalars.cast(scalars.decoded(v, d), wide).reg for v, d in ((x, left), (y, right)))
        w.line(f"acc += {a} * {b}")
    t.axis(rank - 1, column, w.let(f"{column} < {shape.n}", "m") if masked else None)
    w.line(f"acc = tl.sum({chain.products('tl.sum(acc, 1)')}, 0)")
    chain.finish(1, columns, "0", None)
    return k.launch((1, shape.batch, columns), warps, 1)
