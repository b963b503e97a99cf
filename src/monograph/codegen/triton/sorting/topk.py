"""Top-k by ranks: the number of elements that precede each.

For a short row, the kernel counts all elements for each one. A long row is distributed to chunks,
which are sorted by such counts; an element's rank in the row is the sum of its positions in all
chunks, each found by binary search. Most elements need no search: at least k elements are known to
be larger.

Elements are compared by a unique key: the value as an integer of the same order, and below it the
index, of equal values the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from monograph.codegen.common.registry import any_view
from monograph.codegen.common.types import is_wide
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.tile import coordinates, read, write
from monograph.codegen.triton.emit.writer import Writer
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    Work,
    kernel_for,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Item, Value
from monograph.ir.dtype import i64
from monograph.ops.scalar import Scalar
from monograph.ops.sort import TopK

COUNTS = ((16, 256), (64, 64))
"""(elements that one program ranks, those it compares with at once)."""
COUNTED = 1536
"""The longest row for which one count suffices."""
CHUNKS, MOST_CHUNKS = (256, 512, 1024), 50
"""Elements of a chunk, and the preferred most chunks of a row."""
SEARCHED = 32
"""Elements whose positions in the chunks one program finds."""
SEARCHED_IN = 32
"""Chunks that are searched at once."""
SCANNED, SCANNED_IN, DEPTH = 16, 64, 16
"""The same for a scan of the chunks, and the elements of each that it reads per step."""
LOWEST = -(1 << 63)


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, TopK) and anchor.inputs[0].tensor.size < 1 << 31


@kernel_for(TopK, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    """Return one count for short rows, chunks for long ones."""
    p = _Problem(context)
    if not p.op.k or not p.rows:
        return [Candidate("nothing", lambda: ())]
    counted = [Candidate(f"count {n}x{m}", partial(_counted, context, n, m)) for n, m in COUNTS]
    if p.size <= CHUNKS[0]:
        return counted
    first = next((c for c in CHUNKS if p.size <= MOST_CHUNKS * c), CHUNKS[-1])
    chunked = [
        Candidate(f"{how} {c} {n}x{m}", partial(_chunked, context, c, n, m, how == "scan"))
        for c in (first, *(c for c in CHUNKS if c != first))
        for n, m in COUNTS
        for how in ("scan", "search")
        if c < p.size
    ]
    return [*counted, *chunked] if p.size <= COUNTED else chunked


@dataclass(frozen=True)
class _Key:
    """Keys as one number; or as two, if values take 64 bits alone."""

    value: str
    place: str | None = None

    def before(self, other: _Key) -> str:
        """Return where these elements precede others."""
        if self.place is None:
            return f"({self.value} > {other.value})"
        tie = f"({self.value} == {other.value}) & ({self.place} < {other.place})"
        return f"(({self.value} > {other.value}) | ({tie}))"

    def spread(self, how: str) -> _Key:
        """Along a further axis."""
        return _Key(f"{self.value}{how}", None if self.place is None else f"{self.place}{how}")


class _Problem:
    """The rows, and the wanted elements."""

    def __init__(self, context: GpuContext) -> None:
        anchor = context.anchor
        assert isinstance(anchor.op, TopK)
        self.op, self.x = anchor.op, anchor.inputs[0]
        self.outputs = context.step.region.outputs
        shape, axis = self.x.tensor.static, self.op.axis
        self.size = shape[axis]
        self.rest = tuple(d for i, d in enumerate(shape) if i != axis)
        self.rows = math.prod(self.rest)
        self.wide = is_wide(self.x.dtype)

    def at(self, w: Writer, row: str, number: str) -> list[str]:
        """The coordinates of an element of a row."""
        found = coordinates(w, row, self.rest)
        return [*found[: self.op.axis], number, *found[self.op.axis :]]


def _key(w: Writer, e: TritonElements, p: _Problem, row: str, place: str) -> _Key:
    """Return keys of elements at indices of a row; indices beyond its end come last."""
    inside = w.let(f"{place} < {p.size}", "m")
    x = read(e, p.x, p.at(w, row, place), inside)
    value = ordered(w, e, x)
    if not p.op.largest:
        value = w.let(f"~{value}", "bits")
    lowest = LOWEST if p.wide else -(1 << 31)
    value = w.let(f"tl.where({inside}, {value}, {lowest}).to(tl.int64)", "key")
    if p.wide:
        return _Key(value, w.let(f"{place} + tl.zeros_like({place})", "n"))
    return _Key(w.let(f"({value} << 32) + ({(1 << 32) - 1} - ({place}).to(tl.int64))", "key"))


def ordered(w: Writer, e: TritonElements, x: Scalar) -> str:
    """Signed numbers that order as elements do; NaN is the largest, -0.0 equals 0.0."""
    wide = is_wide(x.dtype)
    if x.dtype.is_float:
        bits, most = ("tl.int64", (1 << 63) - 1) if wide else ("tl.int32", (1 << 31) - 1)
        zero = w.let(f"tl.where({x.reg} == 0, 0.0, {x.reg})", "x")
        raw = w.let(f"{zero}.to({bits}, bitcast=True)", "bits")
        signed = w.let(f"{raw} ^ (({raw} >> {63 if wide else 31}) & {most})", "bits")
        return w.let(f"tl.where({x.reg} != {x.reg}, {most}, {signed})", "bits")
    made = str(e.scalars.cast(x, i64).reg)
    if x.dtype.kind != "uint":
        return made
    return w.let(f"{made} ^ ({LOWEST})" if wide else f"{made} - {1 << 31}", "bits")


def _position(w: Writer, key: _Key) -> str:
    """Return the index of an element in its row."""
    if key.place is not None:
        return key.place
    return w.let(f"({(1 << 32) - 1} - ({key.value} & {(1 << 32) - 1})).to(tl.int32)", "n")


def _write_chosen(
    w: Writer, e: TritonElements, p: _Problem, row: str, place: str, rank: str, mask: str
) -> None:
    """Store the elements that are among the first k."""
    chosen = w.let(f"({rank} < {p.op.k}) & ({mask})", "m")
    at = p.at(w, row, rank)
    for output in p.outputs:
        assert isinstance(output.op, Item)
        if output.op.index:
            made = e.scalars.decoded(w.let(f"({place}).to(tl.int64)"), i64)
        else:
            made = read(e, p.x, p.at(w, row, place), chosen)
        write(e, output, at, made, chosen)


def _ranks(
    k: KernelWriter,
    e: TritonElements,
    p: _Problem,
    row: str,
    own: _Key,
    shape: tuple[int, int],
    others: int,
    at: str,
) -> str:
    """Return the number of elements that precede one; `at` turns a number into an index."""
    w = k.w
    w.line(f"count = tl.zeros(({shape[0]}, {shape[1]}), tl.int32)")
    with w.block(f"for start in range(0, {others}, {shape[1]})"):
        number = w.let(f"start + tl.arange(0, {shape[1]})", "i")
        other = _key(w, e, p, row, w.let(at.format(number), "n"))
        before = other.spread("[None, :]").before(own.spread("[:, None]"))
        w.assign("count", f"count + {before}.to(tl.int32)")
    return w.let("tl.sum(count, 1)", "rank")


def _counted(context: GpuContext, count: int, abreast: int) -> tuple[Work, ...]:
    """Compare a whole row with some of it."""
    p, k = _Problem(context), context.kernel()
    w, e = k.w, k.elements()
    parts = -(-p.size // count)
    pid = k.program_id()
    row = w.let(f"{pid} // {parts}", "row")
    place = w.let(f"({pid} % {parts}) * {count} + tl.arange(0, {count})", "i")
    k.wait()
    own = _key(w, e, p, row, place)
    rank = _ranks(k, e, p, row, own, (count, abreast), p.size, "{}")
    k.trigger()
    _write_chosen(w, e, p, row, place, rank, f"{place} < {p.size}")
    return (k.launch((p.rows * parts,)),)


class _Chunks:
    """A row in chunks: element i goes to chunk i % count, which separates neighbours."""

    def __init__(self, p: _Problem, size: int) -> None:
        self.size = size
        self.count = -(-p.size // size)
        # A row with a period must not fill one chunk with equal elements.
        while math.gcd(self.count, 10) > 1:
            self.count += 1
        total = p.rows * self.count * size
        self.keys = [TritonScratch(total * 8, i64) for _ in range(2 if p.wide else 1)]

    def load(self, k: KernelWriter, at: str, mask: str | None = None) -> _Key:
        masked = f", mask={mask}, other={LOWEST}" if mask else ""
        loads = [k.w.let(f"tl.load({k.pointer(s)} + {at}{masked})", "key") for s in self.keys]
        return _Key(*loads)

    def store(self, k: KernelWriter, at: str, key: _Key) -> None:
        parts = [key.value, *([key.place] if key.place is not None else [])]
        for scratch, part in zip(self.keys, parts, strict=True):
            k.w.line(f"tl.store({k.pointer(scratch)} + {at}, ({part}).to(tl.int64))")


def _chunked(
    context: GpuContext, size: int, count: int, abreast: int, scanned: bool
) -> tuple[Work, ...]:
    p = _Problem(context)
    chunks = _Chunks(p, size)
    return _in_order(context, p, chunks, count, abreast), _merged(context, p, chunks, scanned)


def _in_order(
    context: GpuContext, p: _Problem, chunks: _Chunks, count: int, abreast: int
) -> Launch:
    """Sort the keys of every chunk."""
    k = context.kernel()
    w, e = k.w, k.elements()
    parts = chunks.size // count
    pid = k.program_id()
    chunk = w.let(f"{pid} // {parts}", "chunk")
    row = w.let(f"{chunk} // {chunks.count}", "row")
    number = w.let(f"({pid} % {parts}) * {count} + tl.arange(0, {count})", "i")
    at = f"({{}}) * {chunks.count} + {chunk} % {chunks.count}"
    k.wait()
    own = _key(w, e, p, row, w.let(at.format(number), "n"))
    rank = _ranks(k, e, p, row, own, (count, abreast), chunks.size, at)
    k.trigger()
    chunks.store(k, w.let(f"{chunk} * {chunks.size} + {rank}", "i"), own)
    return k.launch((p.rows * chunks.count * parts,))


def _merged(context: GpuContext, p: _Problem, chunks: _Chunks, scanned: bool) -> Launch:
    """Find the rank in the row of each chunk's first elements."""
    k = context.kernel()
    w, e = k.w, k.elements()
    kept = min(p.op.k, chunks.size)
    own = SCANNED if scanned else SEARCHED
    parts = -(-kept // own)
    pid = k.program_id()
    chunk = w.let(f"{pid} // {parts}", "chunk")
    row = w.let(f"{chunk} // {chunks.count}", "row")
    first = w.let(f"({pid} % {parts}) * {own}", "i")
    number = w.let(f"{first} + tl.arange(0, {own})", "i")
    start = w.let(f"{row} * {chunks.count * chunks.size}", "i")
    k.wait()
    mine = w.let(f"{chunk} * {chunks.size}", "i")
    keys = chunks.load(k, w.let(f"{mine} + {number}", "i"))
    best = chunks.load(k, w.let(f"{mine} + {first}", "i")).value
    wanted = w.let(f"{best} >= {_threshold(k, p, chunks, start)}", "m")
    place = _position(w, keys)
    if scanned:
        least = chunks.load(k, w.let(f"{mine} + {first} + {own - 1}", "i")).value
        rank = _scanned(k, chunks, start, keys, least, wanted)
        _write_chosen(w, e, p, row, place, rank, f"({place} < {p.size}) & {wanted}")
    else:
        with w.block(f"if {wanted}"):
            rank = _searched(k, chunks, start, keys)
            _write_chosen(w, e, p, row, place, rank, f"{place} < {p.size}")
    k.trigger()
    return k.launch((p.rows * chunks.count * parts,))


def _scanned(
    k: KernelWriter, chunks: _Chunks, start: str, own: _Key, least: str, wanted: str
) -> str:
    """Return the number of preceding elements, by a parallel scan of all chunks.

    They are sorted, so the scan ends at the first positions without a larger element.
    """
    w = k.w
    room = max(chunks.count, 2)
    abreast = min(SCANNED_IN, 1 << (room - 1).bit_length())
    w.line(f"rank = tl.zeros(({SCANNED},), tl.int32)")
    w.line("depth = tl.full((), 0, tl.int32)")
    w.line(f"more = {wanted}")
    number = w.let(f"tl.arange(0, {abreast * DEPTH})", "i")
    chunk, place = w.let(f"{number} // {DEPTH}", "i"), w.let(f"{number} % {DEPTH}", "i")
    with w.block("while more"):
        w.line(f"last = tl.full((), {LOWEST}, tl.int64)")
        with w.block(f"for group in range(0, {chunks.count}, {abreast})"):
            which = w.let(f"group + {chunk}", "i")
            mask = w.let(f"{which} < {chunks.count}", "m")
            at = w.let(f"{start} + {which} * {chunks.size} + depth + {place}", "i")
            keys = chunks.load(k, at, mask)
            before = keys.spread("[None, :]").before(own.spread("[:, None]"))
            inside = f"{before} & {mask}[None, :]"
            w.assign("rank", f"rank + tl.sum(({inside}).to(tl.int32), 1)")
            ends = f"tl.where({place} == {DEPTH - 1}, {keys.value}, {LOWEST})"
            w.assign("last", f"tl.maximum(last, tl.max({ends}, 0))")
        w.assign("depth", f"depth + {DEPTH}")
        w.assign("more", f"(last >= {least}) & (depth < {chunks.size})")
    return "rank"


def _threshold(k: KernelWriter, p: _Problem, chunks: _Chunks, start: str) -> str:
    """Return a value (or key) that at least k elements reach.

    At least k elements are before a certain position of the chunks; this is the least at that
    position.
    """
    w = k.w
    each = -(-p.op.k // chunks.count)
    width = 1 << (chunks.count - 1).bit_length()
    number = w.let(f"tl.arange(0, {width})", "i")
    mask = w.let(f"{number} < {chunks.count}", "m")
    at = w.let(f"{start} + {number} * {chunks.size} + {each - 1}", "i")
    keys = w.let(
        f"tl.load({k.pointer(chunks.keys[0])} + {at}, mask={mask}, other={(1 << 63) - 1})", "key"
    )
    return w.let(f"tl.min({keys}, 0)", "least")


def _searched(k: KernelWriter, chunks: _Chunks, start: str, own: _Key) -> str:
    """Return the number of elements of all chunks that precede one."""
    w = k.w
    abreast = min(SEARCHED_IN, 1 << (chunks.count - 1).bit_length())
    w.line(f"rank = tl.zeros(({SEARCHED},), tl.int32)")
    mine = own.spread("[None, :]")
    with w.block(f"for group in range(0, {chunks.count}, {abreast})"):
        number = w.let(f"group + tl.arange(0, {abreast})", "i")
        mask = w.let(f"({number} < {chunks.count})[:, None]", "m")
        base = w.let(f"({start} + {number} * {chunks.size})[:, None]", "i")
        w.line(f"found = tl.zeros(({abreast}, {SEARCHED}), tl.int32)")
        for step in _halves(chunks.size):
            key = chunks.load(k, w.let(f"{base} + found + {step - 1}", "i"), mask)
            w.assign("found", f"tl.where({key.before(mine)} & {mask}, found + {step}, found)")
        w.assign("rank", "rank + tl.sum(found, 0)")
    return "rank"


def _halves(size: int) -> Sequence[int]:
    """Return steps that reach every number up to a size that is a power of two."""
    return [*(size >> i for i in range(1, size.bit_length())), 1]
