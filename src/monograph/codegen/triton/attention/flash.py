"""Flash attention: scores, softmax and values in one pass over keys, without storing scores.

The heads that share keys are rows of one tile, so that keys are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from monograph.codegen.common import types
from monograph.codegen.common.registers import Reg
from monograph.codegen.triton.emit.elements import BlockAxis
from monograph.codegen.triton.emit.scalar import memory_type
from monograph.codegen.triton.emit.tile import ResultTile, accumulator, register, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.dot import multiply
from monograph.codegen.triton.module.kernel import GpuContext, KernelWriter, TritonScratch
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Value
from monograph.ir.dtype import BOOL, f64
from monograph.ir.sizes import hint_of
from monograph.ops.attention import LENGTHS, MASK, SINKS, Attention, usual_scale
from monograph.ops.scalar import Scalar
from monograph.program.fusion.region import Indices, aligned
from monograph.program.index import Index, kept_counter


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of an attention."""

    batch: int
    groups: int
    repeats: int
    """The query heads for each key head."""
    queries: int
    keys: int
    size: int
    width: int

    @property
    def rows(self) -> int:
        return self.repeats * self.queries

    @property
    def hint(self) -> AttentionSizes:
        """The sizes by which tilings are chosen: open ones as in the compiling run."""
        return AttentionSizes(*(hint_of(getattr(self, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class FlashTiling:
    """Rows and keys of a tile, warps, and the number of programs that divide the keys."""

    m: int
    t: int
    warps: int
    stages: int
    split: int = 1

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.t} w{self.warps} s{self.stages}{split}"


def heads_of(operands: Sequence[Value]) -> AttentionSizes:
    (batch, heads, queries, size), (_, groups, keys, _), (*_, width) = (
        v.tensor.static for v in operands[:3]
    )
    return AttentionSizes(batch, groups, heads // max(groups, 1), queries, keys, size, width)


class Flash:
    """Writes the pass over the keys for a tile of rows."""

    def __init__(
        self,
        context: GpuContext,
        op: Attention,
        operands: Sequence[Value],
        c: FlashTiling,
        parts: TritonScratch | None,
    ) -> None:
        self.context, self.op, self.c, self.parts = context, op, c, parts
        self.operands = operands[:3]
        self.dtype = operands[0].dtype
        self.h = h = heads_of(operands)
        self.k: KernelWriter = context.kernel()
        self.t: ResultTile = tile(self.k)
        self.w = self.k.w
        self.wide = accumulator(self.dtype)
        self.kind = "tl.float64" if self.wide == f64 else "tl.float32"
        self.given: Mapping[str, Value] = dict(zip(op.extra, operands[3:], strict=True))
        self.size, self.width = max(16, power(h.size)), max(16, power(h.width))

    def begin(self) -> None:
        """Compute the rows of this program."""
        h, c, w, k = self.h, self.c, self.w, self.k
        both = k.program_id(1)
        self.batch = w.let(f"{both} // {h.groups}", "b")
        self.group = w.let(f"{both} % {h.groups}", "g")
        self.row = w.let(f"{k.program_id()} * {c.m} + tl.arange(0, {c.m})", "rm")
        self.masked = w.let(f"{self.row} < {h.rows}", "m")
        self.head = w.let(f"{self.group} * {h.repeats} + {self.row} // {h.queries}", "h")
        self.query = w.let(f"{self.row} % {h.queries}", "s")

    def launch(self) -> Launch:
        k = self.k
        self.begin()
        k.wait()
        self.read_length()
        q = self.operand(0, self.h.size, self.size, self.row_axes())
        self.walk(q)
        k.trigger()
        if self.parts is None:
            self._store()
        else:
            self.store_part()
        return self.launched()

    def walk(self, q: str) -> None:
        """Loop over the keys, for queries in their memory form."""
        self.start()
        span = self.span()
        with self.w.block(f"for t0 in range(0, {span}, {self.c.t})"):
            self._step(q)

    def launched(self) -> Launch:
        h, c = self.h, self.c
        grid = (-(-h.rows // c.m), h.batch * h.groups, c.split)
        return self.k.launch(grid, c.warps, c.stages)

    def row_axes(self) -> tuple[BlockAxis, BlockAxis, BlockAxis]:
        """Return batch, head and query of each row, down a tile."""
        w = self.w
        mask = w.let(f"{self.masked}[:, None]", "m")
        return (
            BlockAxis(self.batch),
            BlockAxis(w.let(f"{self.head}[:, None]"), mask),
            BlockAxis(w.let(f"{self.query}[:, None]"), mask),
        )

    def operand(
        self, index: int, size: int, padded: int, axes: tuple[BlockAxis, BlockAxis, BlockAxis]
    ) -> str:
        """Load a tile of q, k or v: rows down, elements of a head across."""
        w = self.w
        across = w.let(f"tl.arange(0, {padded})[None, :]", "e")
        last = BlockAxis(across, w.let(f"{across} < {size}", "m") if padded != size else None)
        value = self.operands[index]
        at, point = [], {}
        for i, (axis, extent) in enumerate(zip((*axes, last), value.tensor.static, strict=True)):
            counter = kept_counter(f"a{index}{i}", extent)
            at.append(Index(0, ((counter, 1),)))
            point[counter] = axis
        return self.t.elements.through_views(value, tuple(at), point)

    def read_length(self) -> None:
        """Compute the number of valid keys."""
        lengths = self.given.get(LENGTHS)
        self.length = str(self.h.keys)
        if lengths is not None:
            counter = kept_counter("n", lengths.tensor.static[0])
            at = (Index(0, ((counter, 1),)),)
            loaded = self.t.elements.element(lengths, at, {counter: BlockAxis(self.batch)})
            self.length = self.w.let(f"tl.minimum({loaded.reg}, {self.h.keys}).to(tl.int32)", "n")

    def span(self) -> str:
        """Return the range of keys of this program, without those that none of its rows sees.

        Programs that divide the keys get equal numbers of valid keys, in whole blocks.
        """
        h, c, w = self.h, self.c, self.w
        low, high = "0", self.length
        if self.op.causal:
            if c.split == 1 and h.repeats == 1:
                last = w.let(f"tl.minimum({self.k.program_id()} * {c.m} + {c.m - 1}, {h.rows - 1})")
                seen = f"{last} + 1 + {self.length} - {h.queries}"
                high = w.let(f"tl.minimum({seen}, {self.length})", "n")
            if self.op.window:
                first = f"{self.length} - {h.queries + self.op.window - 1}"
                low = w.let(f"tl.maximum({first}, 0) // {c.t} * {c.t}", "n")
        share = f"({high} - {low})"
        if c.split > 1:
            share = w.let(f"({share} + {c.split * c.t - 1}) // {c.split * c.t} * {c.t}", "n")
        own = f" + {self.k.program_id(2)} * {share}" if c.split > 1 else ""
        self.low, self.share = low, share
        self.first = w.let(f"{low}{own}", "f")
        end = f"tl.minimum({self.first} + {share}, {high})" if c.split > 1 else high
        self.end = w.let(f"{end} + 0", "n")
        if self.context.arch.interpreted:  # the interpreter has no loops whose end is data
            return str(-(-h.keys // (c.split * c.t)) * c.t)
        return w.let(f"{self.end} - {self.first}", "n")

    def start(self) -> None:
        c, w = self.c, self.w
        sinks = self.given.get(SINKS)
        if sinks is None or self.parts is not None:
            w.line(f"top = tl.full(({c.m},), float('-inf'), {self.kind})")
            w.line(f"total = tl.zeros(({c.m},), {self.kind})")
        else:
            # For a single head it is one number, where a view leaves no counter of the heads.
            w.line(f"top = tl.broadcast_to({self.sink(self.head, self.masked)}, ({c.m},))")
            w.line(f"total = tl.full(({c.m},), 1, {self.kind})")
        w.line(f"acc = tl.zeros(({c.m}, {self.width}), {self.kind})")

    def sink(self, head: str, mask: str) -> str:
        sinks = self.given[SINKS]
        counter = kept_counter("h", sinks.tensor.static[0])
        at = (Index(0, ((counter, 1),)),)
        loaded = self.t.elements.element(sinks, at, {counter: BlockAxis(head, mask)})
        return str(self.t.elements.scalars.cast(loaded, self.wide).reg)

    def _step(self, q: str) -> None:
        """Read one block of keys, and add its contribution to the result."""
        key = self.w.let(f"{self.first} + t0 + tl.arange(0, {self.c.t})", "key")
        inside = self.w.let(f"{key} < {self.end}", "m")
        keys, values = self.read_block(key, inside)
        self.attend(q, key, inside, keys, values)

    def read_block(self, key: str, inside: str) -> tuple[str, str]:
        """Load keys and values of a block."""
        w, h = self.w, self.h
        axes = (
            BlockAxis(self.batch),
            BlockAxis(self.group),
            BlockAxis(w.let(f"{key}[:, None]"), w.let(f"{inside}[:, None]", "m")),
        )
        keys = self.operand(1, h.size, self.size, axes)
        return keys, self.operand(2, h.width, self.width, axes)

    def attend(self, q: str, key: str, inside: str, keys: str, values: str) -> None:
        """Compute scores of one block of keys, and their contribution to the result."""
        c, w = self.c, self.w
        dtype = self.dtype
        zeros = f"tl.zeros(({c.m}, {c.t}), {self.kind})"
        turned = w.let(f"tl.trans(tl.broadcast_to({keys}, ({c.t}, {self.size})))", "kt")
        left = w.let(f"tl.broadcast_to({q}, ({c.m}, {self.size}))", "q")
        product = multiply(
            self.context, self.t.elements, (left, dtype), (turned, dtype), dtype, zeros
        )
        scores = self._scores(w.let(product, "x"), key, inside)
        w.line(f"now = tl.maximum(top, tl.max({scores}, 1))")
        w.line('safe = tl.where(now == float("-inf"), 0, now)')
        weight = self.exp(w.let(f"{scores} - safe[:, None]"))
        fade = self.exp(w.let("top - safe"))
        w.line(f"total = total * {fade} + tl.sum({weight}, 1)")
        w.line(f"acc = acc * {fade}[:, None]")
        shares = self._narrowed(weight)
        own = w.let(f"tl.broadcast_to({values}, ({c.t}, {self.width}))", "v")
        pair = (shares, dtype), (own, dtype)
        w.line(f"acc = {multiply(self.context, self.t.elements, *pair, dtype)}")
        w.line("top = now")

    def exp(self, text: str) -> str:
        """e^x in the accumulator's type: fast if the result is rounded to 16 bits."""
        element = types.register(self.wide)
        dtype = self.wide if self.dtype.itemsize >= 4 else self.dtype
        return str(self.t.elements.scalars.exp(Scalar(Reg(text, element), dtype)).reg)

    def _narrowed(self, weight: str) -> str:
        dtype = self.dtype
        return self.w.let(f"{weight}.to({memory_type(dtype)})") if dtype.itemsize < 4 else weight

    def _scores(self, scores: str, key: str, inside: str) -> str:
        """Return scaled, capped and masked scores; -inf for keys that a row does not see."""
        op, w = self.op, self.w
        scale = usual_scale(self.h.size) if op.scale is None else op.scale
        made = w.let(f"{scores} * {float(scale)!r}")
        if op.softcap > 0:
            scalars = self.t.elements.scalars
            inner = register(w, f"{made} * {1 / op.softcap!r}", self.wide)
            made = w.let(f"{scalars.tanh(inner).reg} * {op.softcap!r}")
        across = w.let(f"{key}[None, :]")
        seen = [w.let(f"{inside}[None, :]", "m")]
        if op.causal:
            place = w.let(f"{self.query}[:, None] + {self.length} - {self.h.queries}")
            seen.append(w.let(f"{across} <= {place}", "m"))
            if op.window:
                seen.append(w.let(f"{across} > {place} - {op.window}", "m"))
        mask = self.given.get(MASK)
        if mask is not None:
            loaded = self._mask(mask, across, seen[0])
            if mask.dtype.kind == BOOL:
                seen.append(loaded)
            else:
                made = w.let(f"{made} + {loaded}")
        return w.let(f'tl.where({" & ".join(seen)}, {made}, float("-inf"))', "x")

    def _mask(self, mask: Value, across: str, inside: str) -> str:
        batch, head, query = self.row_axes()
        axes = (batch, head, query, BlockAxis(across, inside))
        counters = [kept_counter(f"m{i}", d) for i, d in enumerate(self._whole())]
        at: Indices = tuple(Index(0, ((c, 1),)) for c in counters)
        own = aligned(at, mask.tensor.static)
        point = dict(zip(counters, axes, strict=True))
        scalar = self.t.elements.element(mask, own, point)
        if mask.dtype.kind == BOOL:
            return str(scalar.reg)
        return str(self.t.elements.scalars.cast(scalar, self.wide).reg)

    def _whole(self) -> tuple[int, int, int, int]:
        h = self.h
        return h.batch, h.groups * h.repeats, h.queries, h.keys

    def divisor(self, total: str) -> str:
        """Return the divisor of sums; for a fully masked query 1, or 0 if it must give NaN."""
        if self.op.masked_nan and self.h.keys:
            return total
        return self.w.let(f"tl.where({total} == 0, 1, {total})")

    def _store(self) -> None:
        w = self.w
        safe = self.divisor("total")
        across = w.let(f"tl.arange(0, {self.width})[None, :]", "e")
        beyond = w.let(f"{across} < {self.h.width}", "m") if self.width != self.h.width else None
        for d, axis in enumerate((*self.row_axes(), BlockAxis(across, beyond))):
            self.t.point[self.t.counter(d)] = axis
        self.t.finish(f"acc / {safe}[:, None]")

    def store_part(self) -> None:
        """Store the partial sums, their weight and their maximum, for `_join`."""
        w, h = self.w, self.h
        assert self.parts is not None
        pointer = self.k.pointer(self.parts)
        count = h.batch * h.groups * h.rows
        row = w.let(
            f"({self.k.program_id(2)} * {h.batch * h.groups} + {self.k.program_id(1)}) * {h.rows}"
            f" + {self.row}"
        )
        across = w.let(f"tl.arange(0, {self.width})[None, :]", "e")
        mask = w.let(f"{self.masked}[:, None] & ({across} < {h.width})", "m")
        w.line(f"tl.store({pointer} + {row}[:, None] * {h.width} + {across}, acc, mask={mask})")
        rest = count * self.c.split * h.width
        w.line(f"tl.store({pointer} + {rest} + {row}, top, mask={self.masked})")
        more = rest + count * self.c.split
        w.line(f"tl.store({pointer} + {more} + {row}, total, mask={self.masked})")
