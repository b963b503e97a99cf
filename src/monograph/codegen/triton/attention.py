"""Attention in one pass over the keys: scores, softmax and values, never stored between.

The heads that share keys are rows of one tile, so that keys are read once for all of them. Few
rows and many keys (a step of decoding) are split among programs by keys; a second kernel joins
what they found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from monograph.codegen.llvm import types
from monograph.codegen.llvm.builder import Reg
from monograph.codegen.triton.dot import BUSY, multiply
from monograph.codegen.triton.elements import Axis
from monograph.codegen.triton.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    Launch,
    Scratch,
    Work,
)
from monograph.codegen.triton.library_attention import attentions
from monograph.codegen.triton.scalar import memory_type
from monograph.codegen.triton.tile import Tile, accumulator, tile
from monograph.ir import DType, Value
from monograph.ir.dtype import BOOL, f32, f64
from monograph.ops.attention import LENGTHS, MASK, SINKS, Attention
from monograph.ops.scalar import Scalar
from monograph.program.access import Indices, aligned
from monograph.program.index import Counter, Index


@dataclass(frozen=True)
class Heads:
    """The sizes of an attention."""

    batch: int
    groups: int
    repeats: int
    """Heads of queries for each head of keys."""
    queries: int
    keys: int
    size: int
    width: int

    @property
    def rows(self) -> int:
        return self.repeats * self.queries


@dataclass(frozen=True)
class Config:
    """Rows and keys of a tile, warps, and among how many programs the keys are split."""

    m: int
    t: int
    warps: int
    stages: int
    split: int = 1

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.m}x{self.t} w{self.warps} s{self.stages}{split}"


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Attention)


def readable(user: Value, index: int, operand: Value) -> bool:
    return True


def heads_of(anchor: Value) -> Heads:
    (batch, heads, queries, size), (_, groups, keys, _), (*_, width) = (
        v.tensor.static for v in anchor.inputs[:3]
    )
    return Heads(batch, groups, heads // groups, queries, keys, size, width)


def candidates(context: GpuContext) -> list[Candidate]:
    anchor = context.step.region.anchor
    assert anchor is not None
    h = heads_of(anchor)
    found = [
        Candidate(f"flash {c}", lambda c=c: _flash(context, h, c))  # type: ignore[misc]
        for c in _configs(h, anchor.dtype)
    ]
    # Early enough for a fast search; never the default, which must not need a library.
    return [*found[:2], *attentions(context), *found[2:]]


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _configs(h: Heads, dtype: DType) -> list[Config]:
    wide = dtype.itemsize >= 4
    rows = [m for m in (64, 32, 16, 128) if m <= max(16, _power(h.rows)) and not (wide and m > 64)]
    keys = [t for t in ((32, 16) if wide else (64, 32, 128)) if t <= max(16, _power(h.keys))]
    found = []
    for m in rows:
        for t in keys or [16]:
            programs = h.batch * h.groups * -(-h.rows // m)
            splits = [s for s in (1, 2, 4, 8, 16, 32) if s == 1 or h.keys // s >= 2 * t]
            best = min(splits, key=lambda s: (abs(math.log2(max(programs * s, 1) / BUSY)), s))
            for split in dict.fromkeys((1 if programs >= BUSY // 4 else best, best, 1)):
                warps = 8 if m * t >= 128 * 128 else 4 if m * t >= 32 * 32 else 2
                found.append(Config(m, t, warps, 2, split))
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda c: _guess(h, c))


def _guess(h: Heads, c: Config) -> float:
    """A rough time, only to order what is tried."""
    programs = h.batch * h.groups * -(-h.rows // c.m) * c.split
    steps = -(-h.keys // (c.t * c.split))
    per = 0.5 + c.m * c.t * (h.size + h.width) * 2 / 4e6
    return -(-programs // BUSY) * (1 + steps * per) + (2 if c.split > 1 else 0)


def _flash(context: GpuContext, h: Heads, c: Config) -> tuple[Work, ...]:
    if c.split == 1:
        return (_Kernel(context, h, c, None).launch(),)
    count = h.batch * h.groups * h.rows * c.split
    parts = Scratch(count * (h.width + 2) * 4, f32)
    return (_Kernel(context, h, c, parts).launch(), _join(context, h, c, parts))


class _Kernel:
    """Writes the pass over the keys for a tile of rows."""

    def __init__(self, context: GpuContext, h: Heads, c: Config, parts: Scratch | None) -> None:
        anchor = context.step.region.anchor
        assert anchor is not None
        assert isinstance(anchor.op, Attention)
        self.context, self.anchor, self.op, self.h, self.c = context, anchor, anchor.op, h, c
        self.parts = parts
        self.k: KernelWriter = context.kernel()
        self.t: Tile = tile(self.k)
        self.w = self.k.w
        self.wide = accumulator(anchor.dtype)
        self.kind = "tl.float64" if self.wide == f64 else "tl.float32"
        self.given = dict(zip(self.op.extra, anchor.inputs[3:], strict=True))
        self.size, self.width = max(16, _power(h.size)), max(16, _power(h.width))

    def launch(self) -> Launch:
        h, c, w, k = self.h, self.c, self.w, self.k
        both = k.program_id(1)
        self.batch = w.let(f"{both} // {h.groups}", "b")
        self.group = w.let(f"{both} % {h.groups}", "g")
        self.row = w.let(f"{k.program_id()} * {c.m} + tl.arange(0, {c.m})", "rm")
        self.masked = w.let(f"{self.row} < {h.rows}", "m")
        self.head = w.let(f"{self.group} * {h.repeats} + {self.row} // {h.queries}", "h")
        self.query = w.let(f"{self.row} % {h.queries}", "s")
        k.wait()
        self._length()
        q = self._operand(0, h.size, self.size, self.row_axes())
        self._start()
        start, stop = self._span()
        with w.block(f"for t0 in range({start}, {stop}, {c.t})"):
            self._step(q)
        k.trigger()
        if self.parts is None:
            self._store()
        else:
            self._store_part()
        return k.launch((-(-h.rows // c.m), h.batch * h.groups, c.split), c.warps, c.stages)

    def row_axes(self) -> tuple[Axis, Axis, Axis]:
        """Batch, head and query of each row, down a tile."""
        w = self.w
        mask = w.let(f"{self.masked}[:, None]", "m")
        return (
            Axis(self.batch),
            Axis(w.let(f"{self.head}[:, None]"), mask),
            Axis(w.let(f"{self.query}[:, None]"), mask),
        )

    def _operand(self, index: int, size: int, padded: int, axes: tuple[Axis, Axis, Axis]) -> str:
        """A tile of q, k or v as it is in memory: rows down, elements of a head across."""
        w = self.w
        across = w.let(f"tl.arange(0, {padded})[None, :]", "e")
        last = Axis(across, w.let(f"{across} < {size}", "m") if padded != size else None)
        value = self.anchor.inputs[index]
        at, point = [], {}
        for i, (axis, extent) in enumerate(zip((*axes, last), value.tensor.static, strict=True)):
            counter = Counter(f"a{index}{i}", max(extent, 2))
            at.append(Index(0, ((counter, 1),)))
            point[counter] = axis
        return self.t.elements.through_views(value, tuple(at), point)

    def _length(self) -> None:
        """How many keys count."""
        lengths = self.given.get(LENGTHS)
        self.length = str(self.h.keys)
        if lengths is not None:
            counter = Counter("n", max(lengths.tensor.static[0], 2))
            at = (Index(0, ((counter, 1),)),)
            loaded = self.t.elements.element(lengths, at, {counter: Axis(self.batch)})
            self.length = self.w.let(f"{loaded.reg}.to(tl.int32)", "n")

    def _span(self) -> tuple[str, str]:
        """The keys that this program looks at; whole blocks that no row sees are left out."""
        h, c, w = self.h, self.c, self.w
        if self.context.arch.interpreted or c.split > 1:
            part = -(-h.keys // (c.split * c.t)) * c.t
            first = f"{self.k.program_id(2)} * {part}" if c.split > 1 else "0"
            self.first = w.let(first, "f")
            return "0", str(part)
        self.first = "0"
        stop = self.length
        if self.op.causal:
            last = w.let(f"tl.minimum({self.k.program_id()} * {c.m} + {c.m - 1}, {h.rows - 1})")
            query = last if h.repeats == 1 else str(h.queries - 1)
            seen = f"{query} + 1 + {self.length} - {h.queries}"
            stop = w.let(f"tl.minimum({seen}, {self.length})", "n")
        return "0", stop

    def _start(self) -> None:
        c, w = self.c, self.w
        sinks = self.given.get(SINKS)
        if sinks is None or self.parts is not None:
            w.line(f"top = tl.full(({c.m},), float('-inf'), {self.kind})")
            w.line(f"total = tl.zeros(({c.m},), {self.kind})")
        else:
            w.line(f"top = {self.sink(self.head, self.masked)}")
            w.line(f"total = tl.full(({c.m},), 1, {self.kind})")
        w.line(f"acc = tl.zeros(({c.m}, {self.width}), {self.kind})")

    def sink(self, head: str, mask: str) -> str:
        sinks = self.given[SINKS]
        counter = Counter("h", max(sinks.tensor.static[0], 2))
        at = (Index(0, ((counter, 1),)),)
        loaded = self.t.elements.element(sinks, at, {counter: Axis(head, mask)})
        return str(self.t.elements.scalars.cast(loaded, self.wide).reg)

    def _step(self, q: str) -> None:
        """Scores of one block of keys, and what they add to the result."""
        h, c, w = self.h, self.c, self.w
        dtype = self.anchor.dtype
        key = w.let(f"{self.first} + t0 + tl.arange(0, {c.t})", "key")
        inside = w.let(f"({key} < {self.length}) & ({key} < {h.keys})", "m")
        axes = (
            Axis(self.batch),
            Axis(self.group),
            Axis(w.let(f"{key}[:, None]"), w.let(f"{inside}[:, None]", "m")),
        )
        keys = self._operand(1, h.size, self.size, axes)
        values = self._operand(2, h.width, self.width, axes)
        zeros = f"tl.zeros(({c.m}, {c.t}), {self.kind})"
        turned = w.let(f"tl.trans(tl.broadcast_to({keys}, ({c.t}, {self.size})))", "kt")
        left = w.let(f"tl.broadcast_to({q}, ({c.m}, {self.size}))", "q")
        product = multiply(
            self.context, self.t.elements, (left, dtype), (turned, dtype), dtype, zeros
        )
        scores = self._scores(w.let(product, "x"), key, inside)
        w.line(f"now = tl.maximum(top, tl.max({scores}, 1))")
        w.line('safe = tl.where(now == float("-inf"), 0, now)')
        weight = self._exp(w.let(f"{scores} - safe[:, None]"))
        fade = self._exp(w.let("top - safe"))
        w.line(f"total = total * {fade} + tl.sum({weight}, 1)")
        w.line(f"acc = acc * {fade}[:, None]")
        shares = self._narrowed(weight)
        own = w.let(f"tl.broadcast_to({values}, ({c.t}, {self.width}))", "v")
        pair = (shares, dtype), (own, dtype)
        w.line(f"acc = {multiply(self.context, self.t.elements, *pair, dtype)}")
        w.line("top = now")

    def _exp(self, text: str) -> str:
        """e^x in the accumulator's type: quick where the result is rounded to 16 bits."""
        element = types.register(self.wide)
        dtype = self.wide if self.anchor.dtype.itemsize >= 4 else self.anchor.dtype
        return str(self.t.elements.scalars.exp(Scalar(Reg(text, element), dtype)).reg)

    def _narrowed(self, weight: str) -> str:
        dtype = self.anchor.dtype
        return self.w.let(f"{weight}.to({memory_type(dtype)})") if dtype.itemsize < 4 else weight

    def _scores(self, scores: str, key: str, inside: str) -> str:
        """Scaled, capped and masked scores; -inf for keys that a row does not see."""
        op, w = self.op, self.w
        scale = 1 / math.sqrt(self.h.size) if op.scale is None else op.scale
        made = w.let(f"{scores} * {float(scale)!r}")
        if op.softcap > 0:
            scalars = self.t.elements.scalars
            element = types.register(self.wide)
            inner = Scalar(Reg(w.let(f"{made} * {1 / op.softcap!r}"), element), self.wide)
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
        axes = (batch, head, query, Axis(across, inside))
        counters = [Counter(f"m{i}", max(d, 2)) for i, d in enumerate(self._whole())]
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

    def _store(self) -> None:
        w = self.w
        safe = w.let("tl.where(total == 0, 1, total)")
        across = w.let(f"tl.arange(0, {self.width})[None, :]", "e")
        beyond = w.let(f"{across} < {self.h.width}", "m") if self.width != self.h.width else None
        for d, axis in enumerate((*self.row_axes(), Axis(across, beyond))):
            self.t.point[self.t.counter(d)] = axis
        self.t.finish(f"acc / {safe}[:, None]")

    def _store_part(self) -> None:
        """The sums so far, their weight and their top, for `_join`."""
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


def _join(context: GpuContext, h: Heads, c: Config, parts: Scratch) -> Launch:
    """Puts together what programs found for their share of the keys: a program for each row."""
    kernel = _Kernel(context, h, c, parts)
    k, w, t = kernel.k, kernel.w, kernel.t
    pointer = k.pointer(parts)
    count = h.batch * h.groups * h.rows
    row = k.program_id()
    split = _power(c.split)
    part = w.let(f"tl.arange(0, {split})", "pp")
    mask = w.let(f"{part} < {c.split}", "m") if split != c.split else None
    k.wait()
    rest = count * c.split * h.width
    where = w.let(f"{part} * {count} + {row}")
    masked = f", mask={mask}, other=float('-inf')" if mask else ""
    top = w.let(f"tl.load({pointer} + {rest} + {where}{masked})", "top")
    none = f", mask={mask}, other=0" if mask else ""
    total = w.let(f"tl.load({pointer} + {rest + count * c.split} + {where}{none})", "total")
    most = w.let(f"tl.max({top}, 0)", "most")
    head = w.let(
        f"(({row} // {h.rows}) % {h.groups}) * {h.repeats} + ({row} % {h.rows}) // {h.queries}", "h"
    )
    sink = kernel.sink(head, "True") if SINKS in kernel.given else None
    if sink:
        most = w.let(f"tl.maximum({most}, {sink})", "most")
    safe = w.let(f'tl.where({most} == float("-inf"), 0, {most})')
    share = kernel._exp(w.let(f"{top} - {safe}"))
    weight = w.let(f"tl.sum({share} * {total}, 0)")
    if sink:
        weight = w.let(f"{weight} + {kernel._exp(w.let(f'{sink} - {safe}'))}")
    across = w.let(f"tl.arange(0, {kernel.width})", "e")
    beyond = w.let(f"{across} < {h.width}", "m") if kernel.width != h.width else None
    masks = [
        m for m in (f"{mask}[:, None]" if mask else "", f"{beyond}[None, :]" if beyond else "") if m
    ]
    inside = f", mask={' & '.join(masks)}, other=0" if masks else ""
    found = w.let(
        f"tl.load({pointer} + {where}[:, None] * {h.width} + {across}[None, :]{inside})", "x"
    )
    result = w.let(f"tl.sum({found} * {share}[:, None], 0) / tl.where({weight} == 0, 1, {weight})")
    k.trigger()
    t.axis(0, w.let(f"{row} // {h.groups * h.rows}"))
    t.axis(1, head)
    t.axis(2, w.let(f"{row} % {h.queries}"))
    t.axis(3, across, beyond)
    t.finish(result)
    return k.launch((count,), 4 if kernel.width * c.split >= 2048 else 1)
