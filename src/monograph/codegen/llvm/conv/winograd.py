"""Winograd's convolution F(4x4, 3x3), channels last: a quarter of the multiplications.

The result consists of tiles of 4x4 pixels. Each is computed from 6x6 pixels of the input: these are
transformed, each of the 36 elements of a tile is multiplied with its own matrix of channels, and
the products are transformed back. Threads process chunks of tiles whose transforms stay in cache.
The number of tiles may be open: then the size of a chunk is computed in a run, up to the room for
transforms.

Sums are reassociated: the error is a few times that of a direct convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from monograph.codegen.common.registers import Reg, vector
from monograph.codegen.llvm.conv.tiling import direct_cycles
from monograph.codegen.llvm.conv.winograd_direct import PlainTile, plain_weights
from monograph.codegen.llvm.emit.builder import Int
from monograph.codegen.llvm.emit.elements import Epilogue
from monograph.codegen.llvm.emit.scalar import LlvmArith
from monograph.codegen.llvm.image.windows import ChannelBlocks, blocks, image
from monograph.codegen.llvm.matmul.tiles import RegisterTile, Run, choose_tile, split, tile_cycles
from monograph.codegen.llvm.module.features import Features
from monograph.codegen.llvm.module.kernel import (
    Kernel,
    KernelContext,
    LlvmPacked,
    LlvmScratch,
    pointers,
    share,
)
from monograph.ir import Array, Value, is_finite, known
from monograph.ir.dtype import f32
from monograph.ir.sizes import hint_of, is_open
from monograph.ops.conv import Conv
from monograph.ops.window import CHANNELS_LAST

SIZE, TAKES, PLANES = 4, 6, 36
"""Outputs of a tile along an axis, inputs along an axis, elements of a transformed tile."""
CHUNK_BYTES = 640_000
"""Bytes of transformed tiles that a thread holds at once: half of a second-level cache."""
UNROLL = 2
INPUT_CYCLES, OUTPUT_CYCLES = 60.0, 120.0
"""Measured cycles of the transforms of one vector of a tile; the output includes an epilogue."""
BYTES_PER_CYCLE = 10.0
"""The bandwidth of reading the weights, once for every chunk."""
SKEW = 64
"""Bytes between planes, so that they do not share cache sets."""

_G = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
"""The transform of three weights along an axis, for the points 0, 1, -1, 2, -2 and infinity."""


@dataclass(frozen=True)
class WinogradTiling:
    """The division of an image into tiles and chunks."""

    down: int
    across: int
    """The number of tiles along the spatial axes."""
    total: int
    chunk: int
    """The number of tiles that are transformed and multiplied together; the most if it is open."""
    chunks: int
    """The number of chunks, if they are as large as that."""
    tile: RegisterTile
    """The register tile of the products."""


def make_plan(value: Value, features: Features, threads: int) -> WinogradTiling:
    """Divide the tiles into chunks, an equal number for every thread.

    Of an open number of tiles, chunks are as large as their memory allows, in whole register tiles.
    """
    batch, height, width, _ = value.tensor.static
    down, across = -(-height // SIZE), -(-width // SIZE)
    total = batch * down * across
    if not is_open(total):
        return _divided(value, features, threads, (down, across, total))
    most = _most_tiles(value, features)
    tile = _product_tile(value, features, most)
    chunk = max(most // tile.rows, 1) * tile.rows
    return WinogradTiling(down, across, total, chunk, -(-total // chunk), tile)


def _hinted_plan(value: Value, features: Features, threads: int) -> WinogradTiling:
    """Return the plan for the sizes of the compiling run."""
    batch, height, width, _ = map(hint_of, value.tensor.static)
    down, across = -(-height // SIZE), -(-width // SIZE)
    return _divided(value, features, threads, (down, across, max(batch * down * across, 1)))


def _divided(
    value: Value, features: Features, threads: int, tiles: tuple[int, int, int]
) -> WinogradTiling:
    """Return the plan for a number of tiles: down, across and in all."""
    down, across, total = tiles
    chunks = -(-total // _most_tiles(value, features))
    chunks = -(-chunks // threads) * threads
    chunk = -(-total // chunks)
    tile = _product_tile(value, features, chunk)
    return WinogradTiling(down, across, total, chunk, -(-total // chunk), tile)


def _product_tile(value: Value, features: Features, tiles: int) -> RegisterTile:
    """Return the register tile of the products of so many tiles with a plane of weights."""
    results, channels = value.inputs[1].tensor.static[:2]
    return choose_tile(tiles, -(-results // features.lanes(32)), channels, features, 1)


def _most_tiles(value: Value, features: Features) -> int:
    """Return the number of tiles whose transforms stay in cache."""
    lanes = features.lanes(32)
    results, channels = value.inputs[1].tensor.static[:2]
    row = 4 * PLANES * (_whole(channels, lanes) + _whole(results, lanes))
    return max(1, CHUNK_BYTES // row)


def halo_end(value: Value) -> tuple[int, int]:
    """Return the rows and columns of zeros that whole tiles read beyond the padding, or more."""
    _, height, width, _ = value.tensor.static
    rows, columns = (SIZE - 1 if is_open(n) else -n % SIZE for n in (height, width))
    return rows, columns


def serves(value: Value) -> bool:
    """Return True if this kernel can compute a value."""
    op = value.op
    if not isinstance(op, Conv) or op.layout != CHANNELS_LAST or op.auto or op.groups != 1:
        return False
    x, w = value.inputs
    if not x.dtype == w.dtype == value.dtype == f32 or known(w) is None:
        return False
    plain = op.strides == op.dilations == (1, 1)
    return plain and w.tensor.static[2:] == (3, 3) and not _is_empty(value)


def _is_empty(value: Value) -> bool:
    """Return True if no run has a result with elements; open sizes are not asked."""
    return any(not is_open(n) and n == 0 for n in value.tensor.static)


def pays(value: Value, features: Features, threads: int) -> bool:
    """Return True if this kernel is estimated to be faster than the direct one."""
    if not is_finite(value.inputs[1]):
        return False  # transformed, one such weight would invalidate all nine
    plan = _hinted_plan(value, features, threads)
    lanes = features.lanes(32)
    inputs = -(-value.inputs[0].tensor.static[-1] // lanes)
    outputs = -(-value.tensor.static[-1] // lanes)
    depth = value.inputs[0].tensor.static[-1]
    products = PLANES * tile_cycles(plan.chunk, outputs, depth, plan.tile, 1)
    transforms = plan.chunk * (inputs * INPUT_CYCLES + outputs * OUTPUT_CYCLES)
    weights = 4 * depth * value.tensor.static[-1] / BYTES_PER_CYCLE
    own = plan.chunks * (products + transforms + PLANES * weights)
    return own < direct_cycles(value, features) + threads * 9 * weights


def winograd(context: KernelContext) -> Kernel:
    """Generate a kernel for a 3x3 convolution and its epilogue."""
    return _Winograd(context).emit()


def _whole(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes


class _Winograd:
    def __init__(self, context: KernelContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, Conv)
        self.context, self.anchor, self.op = context, anchor, anchor.op
        weights = known(anchor.inputs[1])
        assert weights is not None
        self.weights: Array = weights
        self.results, self.channels = weights.shape[:2]
        self.x = image(context, anchor.inputs[0], CHANNELS_LAST)
        self.plan = make_plan(anchor, context.features, context.threads)
        self.lanes = context.features.lanes(32)
        self.vectors = -(-self.results // self.lanes)
        self.panels = split(self.vectors, self.plan.tile.vectors)
        # Transformed tiles: [plane][tile][channel]; strides in bytes.
        self.v_row = _whole(self.channels, self.lanes) * 4
        self.m_row = self.vectors * self.lanes * 4
        self.v_plane = self.plan.chunk * self.v_row + SKEW
        self.m_plane = self.plan.chunk * self.m_row + SKEW
        down, across = self.x.spatial
        strides = (4 * down, 4 * across, 4 * self.x.channel)
        self.plain = PlainTile(*strides, self.channels, self.m_row, self.lanes)
        self.per_thread = _whole(PLANES * (self.v_plane + self.m_plane), 4096) + 4096

    def emit(self) -> Kernel:
        context, region = self.context, self.context.step.region
        context.add(*region.inputs_besides(1), *region.outputs)
        packed = context.argument(LlvmPacked(self._pack()))
        plain = context.argument(LlvmPacked(plain_weights(self.weights, self.m_row // 4)))
        scratch = context.argument(LlvmScratch(self.per_thread * context.threads))
        b = self.b = context.builder()
        self.a = LlvmArith(b)
        self.pointer = pointers(b, context.arguments)[self.x.source]
        self.w = b.arguments[f"p{packed}"]
        self.plain_w, self.room = b.arguments[f"p{plain}"], self.plain.reserve(b)
        own = b.mul(b.arguments["tid"], self.per_thread) if context.threads > 1 else 0
        self.v = b.offset(b.arguments[f"p{scratch}"], own)
        self.m = b.offset(self.v, PLANES * self.v_plane)
        self.epilogue = Epilogue(context, b)
        self.epilogue.reserve(SIZE * SIZE, self.lanes)
        chunk, chunks = self._chunks()
        b.loop(*share(b, chunks, context.threads), 1, partial(self._chunk, chunk))
        kernel = context.finish(b)
        return replace(kernel, text=kernel.text + self.plain.text(context.checked))

    def _chunks(self) -> tuple[Int, Int]:
        """Return the tiles of a chunk, and the number of chunks."""
        plan, b, threads = self.plan, self.b, self.context.threads
        if not is_open(plan.total):
            return plan.chunk, plan.chunks
        # Every thread gets as many chunks; a chunk is a number of whole register tiles.
        rounds = b.maximum(-(-plan.total // (plan.chunk * threads)), 1)
        parts = b.i64(b.mul(rounds, threads))
        each = b.quotient(b.add(plan.total, b.sub(parts, 1)), parts)
        rows = plan.tile.rows
        chunk = b.maximum(b.mul(b.div(b.add(each, rows - 1), rows), rows), rows)
        return chunk, b.quotient(b.add(plan.total, b.sub(chunk, 1)), b.i64(chunk))

    def _pack(self) -> Array:
        """Pack the transformed weights as [plane][panel][channel][lanes], padded with zeros."""
        planes = np.einsum("ak,oikl,bl->abio", _G, self.weights.astype(np.float64), _G)
        wide = np.zeros((PLANES, self.channels, self.vectors * self.lanes), np.float32)
        wide[..., : self.results] = planes.reshape(PLANES, self.channels, self.results)
        pieces = []
        for plane in wide:
            for run in self.panels:
                width = run.size * self.lanes
                for i in range(run.count):
                    start = run.start * self.lanes + i * width
                    pieces.append(plane[:, start : start + width].reshape(-1))
        return np.concatenate(pieces)

    def _chunk(self, chunk: Int, i: Int, _: list[Reg]) -> None:
        b, plan = self.b, self.plan
        first = b.mul(i, chunk)
        tiles = b.minimum(b.sub(plan.total, first), chunk)
        b.loop(0, tiles, 1, partial(self._take, first))
        b.loop(0, PLANES, 1, partial(self._multiply, tiles))
        b.loop(0, tiles, 1, partial(self._give, first))

    def _place(self, first: Int, t: Int) -> tuple[Int, Int, Int]:
        """Return the image and the first pixel of a tile."""
        b, plan = self.b, self.plan
        number = b.add(first, t)
        line = b.div(number, plan.across)
        row, n = b.mod(line, plan.down), b.div(line, plan.down)
        return n, b.mul(row, SIZE), b.mul(b.mod(number, plan.across), SIZE)

    def _input(self, place: tuple[Int, Int, Int]) -> Reg:
        """Return the address of the first pixel that a tile reads."""
        b, (n, h, w) = self.b, place
        top, left = self.op.pads_begin
        at = self.x.position(b, n, 0, [b.add(h, -top), b.add(w, -left)])
        return b.offset(self.pointer, b.mul(at, 4))

    # Into the transform

    def _take(self, first: Int, t: Int, _: list[Reg]) -> None:
        """Transform the input of a tile."""
        b = self.b
        x = self._input(self._place(first, t))
        v = b.offset(self.v, b.mul(t, self.v_row))
        lanes = self.lanes if self.x.channel == 1 else 1
        for block in blocks(self.channels, lanes, 1):
            b.loop(0, block.count, 1, partial(self._take_block, x, v, block))

    def _take_block(self, x: Reg, v: Reg, block: ChannelBlocks, i: Int, _: list[Reg]) -> None:
        b = self.b
        c = b.add(b.mul(i, block.width), block.start)
        x, v = b.offset(x, b.mul(c, 4 * self.x.channel)), b.offset(v, b.mul(c, 4))
        kind = vector(block.lanes if block.lanes > 1 else 0, "float")
        down, across = self.x.spatial
        columns = []
        for j in range(TAKES):
            places = [(r * down + j * across) * 4 for r in range(TAKES)]
            columns.append(self._into([b.load(kind, b.offset(x, p), 4) for p in places]))
        for r in range(TAKES):
            row = self._into([columns[j][r] for j in range(TAKES)])
            for j, made in enumerate(row):
                b.store(made, b.offset(v, (r * TAKES + j) * self.v_plane), 4)

    def _into(self, d: list[Reg]) -> list[Reg]:
        """Transform six inputs along an axis."""
        a = self.a
        even, odd = a.fma(d[2], -4.0, d[4]), a.fma(d[1], -4.0, d[3])
        near, far = a.sub(d[4], d[2]), a.sub(d[3], d[1])
        return [
            a.fma(d[0], 4.0, a.fma(d[2], -5.0, d[4])),
            a.add(even, odd),
            a.sub(even, odd),
            a.fma(far, 2.0, near),
            a.fma(far, -2.0, near),
            a.fma(d[1], 4.0, a.fma(d[3], -5.0, d[5])),
        ]

    # Products

    def _multiply(self, tiles: Int, plane: Int, _: list[Reg]) -> None:
        """Multiply one plane: tiles by channels times channels by results."""
        b, rows = self.b, self.plan.tile.rows
        v = b.offset(self.v, b.mul(plane, self.v_plane))
        m = b.offset(self.m, b.mul(plane, self.m_plane))
        w = b.offset(self.w, b.mul(plane, self.channels * self.m_row))
        if is_open(self.plan.total):
            # The last register tile multiplies what an earlier chunk left there, for no result.
            runs = [(Run(0, rows, 1), b.div(b.add(tiles, rows - 1), rows))]
        else:
            runs = [(run, run.count) for run in split(self.plan.chunk, rows)]
        for panel in self.panels:
            b.loop(0, panel.count, 1, partial(self._panel, v, m, w, panel, runs))

    def _panel(
        self,
        v: Reg,
        m: Reg,
        w: Reg,
        panel: Run,
        runs: Sequence[tuple[Run, Int]],
        i: Int,
        _: list[Reg],
    ) -> None:
        b = self.b
        number = b.mul(b.add(b.mul(i, panel.size), panel.start), self.lanes * 4)
        w, m = b.offset(w, b.mul(number, self.channels)), b.offset(m, number)
        for run, count in runs:
            b.loop(0, count, 1, partial(self._rows, v, m, w, panel, run))

    def _rows(self, v: Reg, m: Reg, w: Reg, panel: Run, run: Run, j: Int, _: list[Reg]) -> None:
        """Compute a register tile of products."""
        b, width = self.b, panel.size * self.lanes * 4
        row = b.add(b.mul(j, run.size), run.start)
        unroll = UNROLL if self.channels % UNROLL == 0 else 1
        kind = vector(self.lanes, "float")

        def some(_: Int, carried: list[Reg]) -> list[Reg]:
            *sums, vk, wk = carried
            for u in range(unroll):
                places = [u * width + k * self.lanes * 4 for k in range(panel.size)]
                weights = [b.load(kind, b.offset(wk, p), 4) for p in places]
                for r in range(run.size):
                    given = b.load("float", b.offset(vk, r * self.v_row + u * 4), 4)
                    factor = b.splat(given, self.lanes)
                    for k, weight in enumerate(weights):
                        at = r * panel.size + k
                        sums[at] = b.intrinsic("fmuladd", factor, weight, sums[at])
            return [*sums, b.offset(vk, unroll * 4), b.offset(wk, unroll * width)]

        zero = b.number(0, "float", self.lanes)
        start = [*[zero] * (run.size * panel.size), b.offset(v, b.mul(row, self.v_row)), w]
        made = b.loop(0, self.channels, unroll, some, start)
        out = b.offset(m, b.mul(row, self.m_row))
        for r in range(run.size):
            for k in range(panel.size):
                where = r * self.m_row + k * self.lanes * 4
                b.store(made[r * panel.size + k], b.offset(out, where), 4)

    # Out of the transform

    def _give(self, first: Int, t: Int, _: list[Reg]) -> None:
        """Transform the results of a tile back, apply the epilogue and store them."""
        b = self.b
        place = self._place(first, t)
        m = b.offset(self.m, b.mul(t, self.m_row))
        full, rest = divmod(self.results, self.lanes)

        def vectors(i: Int, _: list[Reg]) -> None:
            self._give_block(m, place, b.mul(i, self.lanes), self.lanes)

        b.loop(0, full, 1, vectors)
        if rest:
            self._give_block(m, place, full * self.lanes, rest)

    def _give_block(self, m: Reg, place: tuple[Int, Int, Int], c: Int, lanes: int) -> None:
        b = self.b
        n, h, w = place
        m = b.offset(m, b.mul(c, 4))
        kind = vector(self.lanes, "float")
        columns = []
        for j in range(TAKES):
            places = [(r * TAKES + j) * self.m_plane for r in range(TAKES)]
            columns.append(self._out_of([b.load(kind, b.offset(m, p), 4) for p in places]))
        made = []
        for r in range(SIZE):
            made += self._out_of([columns[j][r] for j in range(TAKES)])
        made = self.plain.mend(
            b, made, self.room, lambda: (self._input(place), b.offset(self.plain_w, b.mul(c, 4)))
        )

        def store(r: Int, j: int, total: Reg) -> None:
            self._store([n, b.add(h, r), b.add(w, j), c], r, j, total, lanes)

        self.epilogue.store_rows(made, SIZE, store)

    def _out_of(self, m: list[Reg]) -> list[Reg]:
        """Return four results along an axis from six products."""
        a = self.a
        ones, twos = a.add(m[1], m[2]), a.add(m[3], m[4])
        one, two = a.sub(m[1], m[2]), a.sub(m[3], m[4])
        return [
            a.add(a.add(m[0], ones), twos),
            a.fma(two, 2.0, one),
            a.fma(twos, 4.0, ones),
            a.add(a.fma(two, 8.0, one), m[5]),
        ]

    def _store(self, at: list[Int], r: Int, j: int, made: Reg, lanes: int) -> None:
        """Store a pixel, unless it is outside of the image."""
        b = self.b
        _, height, width, _ = self.anchor.tensor.static
        guards = []
        for inside, number, size in ((r, at[1], height), (j, at[2], width)):
            known = not is_open(size) and isinstance(inside, int) and inside < size % SIZE
            if is_open(size) or (size % SIZE and not known):
                guards.append(b.compare("slt", b.i64(number), b.i64(size)))
        if not guards:
            self.epilogue.store(at, made, lanes)
            return
        both = guards[0] if len(guards) == 1 else self.a.op("and", guards[0], guards[1])
        b.when(both, lambda: self.epilogue.store(at, made, lanes))
