"""A decoding step in one kernel: rotary embedding, new cache rows, attention.

The valid keys are divided among programs. Each stores its partial result; the last program to do so
combines them all, so that no second kernel is needed. All programs of a head compute the rotated
key, which costs nothing, and use it from registers: only the first one stores it.

Most of the time of such a kernel is its first read. So the first block of keys and values is read
before the earlier kernels have ended (dependent launch), where that is safe:

- The number of valid keys follows from inputs of the program, which no kernel of a run writes. It
  is computed again from them, not read from a kernel's result.
- Only this kernel writes into the caches, which are inputs. Rows of earlier runs are complete:
  graphs run one after the other, and in runs launched kernel by kernel some earlier kernel had
  waited for all before it and only then allowed the next one to start.
- The new row is taken from registers, whatever was read at its position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.attention.attention import element, turn
from monograph.codegen.triton.attention.flash import Flash, FlashTiling, heads_of
from monograph.codegen.triton.emit.elements import TritonElements
from monograph.codegen.triton.emit.tile import coordinates, register, write
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.matmul.dot import BUSY
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    TritonFault,
    TritonScratch,
    Work,
    kernel_for,
    variants,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Constant, Input, Item, Value
from monograph.ir.dtype import f32, i32, i64
from monograph.ops.attention import Rope
from monograph.ops.cast import Cast
from monograph.ops.composite import COS, COUNTS, KEYS, STARTS, VALUES, DecodeAttention, K, Q, V
from monograph.ops.elementwise import Add, Sub
from monograph.ops.scalar import Scalar
from monograph.program.fusion.op_classes import is_view
from monograph.program.memory.buffer_assignment import CONSTANT, INPUT, Places, Storage
from monograph.program.memory.inplace import root

SIMPLE = 8
"""The most ops between an input and a value computed from it: every program repeats them."""


def is_run_invariant(cache: Value, places: Places) -> bool:
    """Return True if a cache, or the source of a view, exists before any kernel of a run."""
    while is_view(cache) and cache not in places.storage:
        cache = cache.inputs[0]
    storage = places.storage.get(cache)
    return storage is not None and storage.buffer.kind in (CONSTANT, INPUT)


def leaves(values: Sequence[Value], places: Places) -> tuple[Value, ...] | None:
    """Return the inputs and constants that values are simply computed from; None otherwise.

    A run writes nothing into such an input: kernels may read it at any time.
    """
    found: dict[Value, None] = {}
    left, seen = list(values), set[Value]()
    while left:
        value = left.pop()
        if value in seen:
            continue
        if isinstance(value.op, Input):
            storage = places.storage.get(value)
            if storage is None or storage.buffer.kind != INPUT:
                return None
            if storage.buffer.id in places.over.values():
                return None
            found[value] = None
        elif isinstance(value.op, Constant) and value.tensor.size == 1:
            found[value] = None
        elif isinstance(value.op, (Add, Sub, Cast)) and len(seen) < SIMPLE:
            seen.add(value)
            left += value.inputs
        else:
            return None
    return tuple(found)


ROWS = 16
"""Rows of a tile: the fewest of a product of tiles."""
MOST_JOINED = 128
"""The most numbers of a thread that are combined at once: they must fit its registers."""
PARTS = 64
"""The most programs whose results one program combines."""
BARRIERS = ("gather", "pointwise")
"""Steps whose kernels allow the next one to start only after they have waited themselves."""


def serves(anchor: Value) -> bool:
    """Return True if there are heads, and numbers in them."""
    return all(0 not in x.tensor.static[1:] for x in anchor.inputs[:3])


@kernel_for(DecodeAttention, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return variants("step", _configs(context.anchor), partial(_step, context))


def _operands(anchor: Value) -> tuple[Value, ...]:
    """Return the operands of attention, with the caches as keys and values."""
    given = anchor.inputs
    return given[Q], given[KEYS], given[VALUES], given[COUNTS]


def _configs(anchor: Value) -> list[FlashTiling]:
    """Return tilings: a block of keys per program, or enough programs to keep a device busy."""
    assert isinstance(anchor.op, DecodeAttention)
    h = heads_of(_operands(anchor))
    rows = max(ROWS, power(h.repeats))
    wide = anchor.inputs[Q].dtype.itemsize >= 4
    single = [
        FlashTiling(rows, t, warps, 1, blocks)
        for t, warps in ((32, 2), (16, 1)) * wide or ((64, 1), (64, 2), (32, 1), (128, 4))
        if (blocks := _blocks(anchor, t)) <= PARTS
    ]
    splits = sorted(
        (1, 2, 4, 8, 16, 32, 64), key=lambda s: abs(math.log2(s * h.batch * h.groups / BUSY))
    )
    shared = [
        FlashTiling(rows, t, warps, 1, split)
        for split in splits[:4]
        for t, warps in ((16, 4), (32, 2)) * wide or ((64, 4), (32, 2), (128, 4))
        if split == 1 or h.keys > t * (split // 2)
    ]
    # With many heads the device is busy anyway, and every part costs a combination.
    many = h.batch * h.groups >= BUSY // 4
    found = [*shared[:3], *single, *shared[3:]] if many else [*single, *shared]
    return list(dict.fromkeys(found)) or [FlashTiling(rows, 16, 4, 1, 1)]


def _blocks(anchor: Value, t: int) -> int:
    """Return the most blocks of keys that a query sees."""
    assert isinstance(anchor.op, DecodeAttention)
    keys = heads_of(_operands(anchor)).keys
    # A window begins anywhere in a block.
    seen = min(keys, anchor.op.window + t - 1) if anchor.op.window else keys
    return -(-seen // t)


def _step(context: GpuContext, c: FlashTiling) -> tuple[Work, ...]:
    copies = tuple(_copy_kernel(context, item, cache) for item, cache in _moved_caches(context))
    return (*copies, _Step(context, context.anchor, c).launch())


def _moved_caches(context: GpuContext) -> list[tuple[Value, Value]]:
    """Return the caches that are not updated in place: they are copied first."""
    places = context.program.places
    found = []
    for item, cache in _caches(context).items():
        new, old = places.storage[item], places.storage.get(cache)  # None: a view
        if old is None or _root(new, places) != _root(old, places):
            found.append((item, cache))
    return found


def _root(storage: Storage, places: Places) -> int:
    return root(storage.buffer.id, places.over)


def _caches(context: GpuContext) -> dict[Value, Value]:
    """Return the operand of each cache that is a result."""
    found = {}
    for item in context.step.region.outputs:
        assert isinstance(item.op, Item)
        if item.op.index:
            found[item] = context.anchor.inputs[DecodeAttention.updates[item.op.index]]
    return found


def _copy_kernel(context: GpuContext, item: Value, cache: Value, block: int = 1024) -> Launch:
    k = context.kernel()
    e, w = k.elements(), k.w
    size = math.prod(cache.tensor.static)
    flat = w.let(f"{k.program_id()} * {block} + tl.arange(0, {block})", "i")
    mask = w.let(f"{flat} < {size}", "m")
    numbers = coordinates(w, flat, cache.tensor.static)
    k.wait()
    write(e, item, numbers, element(e, cache, numbers, mask), mask)
    k.trigger()
    return k.launch((-(-size // block),), 4)


@dataclass(frozen=True)
class _Parts:
    """The partial results of programs: sums, largest score, weights, and the finished count."""

    sums: TritonScratch
    done: TritonScratch


class _Step(Flash):
    """The kernel; its rows are the heads that share keys."""

    def __init__(self, context: GpuContext, anchor: Value, c: FlashTiling) -> None:
        assert isinstance(anchor.op, DecodeAttention)
        h = heads_of(_operands(anchor))
        self.found: _Parts | None = None
        if c.split > 1:
            count = h.batch * h.groups * h.repeats * c.split
            sums = TritonScratch(count * (h.width + 2) * 4, f32)
            self.found = _Parts(sums, TritonScratch(h.batch * h.groups * 4, i32, zeroed=True))
        sums_of = None if self.found is None else self.found.sums
        super().__init__(context, anchor.op.attention, _operands(anchor), c, sums_of)
        self.given_values, self.decode = anchor.inputs, anchor.op
        self.results = {
            v.op.index: v for v in context.step.region.outputs if isinstance(v.op, Item)
        }

        self.single = c.split >= _blocks(anchor, c.t)
        """True if a program has at most one block of keys."""

    def launch(self) -> Launch:
        k, w, h = self.k, self.w, self.h
        k.trigger()  # the next kernel loads its weights meanwhile
        self.begin()
        known_early = self._early()
        if known_early is None:
            k.wait()
        self._read_places(known_early or self.t.elements)
        turns = self.span()
        self._read_ahead(f"{self.first} + tl.arange(0, {self.c.t})")
        k.wait()
        self._report_start()
        mask = w.let(f"{self.masked}[:, None]", "m")
        rows = [self.batch, w.let(f"{self.head}[:, None]"), "0", self._across(self.size)]
        q = self._vector(self.given_values[Q], rows, self._within(self.size, h.size, mask))
        one = [self.batch, self.group, "0", self._across(self.size)]
        key = self._vector(self.given_values[K], one, self._within(self.size, h.size))
        last = [self.batch, self.group, "0", self._across(self.width)]
        inside = self._within(self.width, h.width)
        value = self._stored(element(self.t.elements, self.given_values[V], last, inside))
        self.new = (key, value)
        self._add_rows()
        self.start()
        if self.single:
            self._attend_block(q, f"{self.first} + tl.arange(0, {self.c.t})")
        else:
            with w.block(f"for t0 in range(0, {turns}, {self.c.t})"):
                self._attend_block(q, f"{self.first} + t0 + tl.arange(0, {self.c.t})")
        if self.found is None:
            total = w.let("tl.where(total == 0, 1, total)")
            self._write_rows(w.let(f"acc / {total}[:, None]"), self.head, self.masked)
        else:
            self._join(self.found)
        return self.launched()

    # Keys and values

    def _early(self) -> TritonElements | None:
        """Return elements that give the number of valid keys before the wait; None if unknown."""
        context, given = self.context, self.given_values
        steps, places = context.program.steps, context.program.places
        before = steps[: steps.index(context.step)]
        known = leaves((given[STARTS], given[COUNTS]), places)
        if known is None or not any(s.region.kind in BARRIERS for s in before):
            return None
        if not all(is_run_invariant(given[i], places) for i in (KEYS, VALUES)):
            return None
        pointers = {v: self.k.pointer(v) for v in known if isinstance(v.op, Input)}
        return TritonElements(
            self.w, places.storage, pointers, frozenset(known), guard=self.k.guard
        )

    def _read_places(self, e: TritonElements) -> None:
        """Compute the number of valid keys, and the position of the new row."""
        w, keys = self.w, self.h.keys
        counted = element(e, self.given_values[COUNTS], [self.batch], None)
        self.length = w.let(f"tl.minimum({counted.reg}, {keys}).to(tl.int32)", "n")
        loaded = element(e, self.given_values[STARTS], [self.batch], None)
        self.begins = w.let(f"{e.scalars.cast(loaded, i64).reg}", "start")

    def _read_ahead(self, keys: str) -> None:
        """Read a block of keys and values that is used later."""
        key = self.w.let(keys, "key")
        inside = self.w.let(f"{key} < {self.end}", "m")
        for name, block in zip(("keys", "values"), self.read_block(key, inside), strict=True):
            self.w.assign(name, block)

    def _attend_block(self, q: str, keys: str) -> None:
        """Process the block that was read, and read the next one meanwhile."""
        w = self.w
        key = w.let(keys, "key")
        new = w.let(f"({key}[:, None]) == {self.begins}", "m")
        made = [
            w.let(f"tl.where({new}, {row}, {name})", "x")
            for row, name in zip(self.new, ("keys", "values"), strict=True)
        ]
        if not self.single:
            self._read_ahead(f"{key} + {self.c.t}")
        self.attend(q, key, w.let(f"{key} < {self.end}", "m"), made[0], made[1])

    # The new rows

    def _across(self, padded: int) -> str:
        return self.w.let(f"tl.arange(0, {padded})[None, :]", "e")

    def _within(self, padded: int, size: int, mask: str | None = None) -> str | None:
        beyond = f"({self._across(padded)} < {size})" if padded != size else None
        masks = [m for m in (mask, beyond) if m]
        return self.w.let(" & ".join(masks), "m") if masks else None

    def _report_start(self) -> None:
        w, h = self.w, self.h
        self.fits = w.let(f"({self.begins} >= 0) & ({self.begins} < {h.keys})", "m")
        fault = TritonFault("rows are written out of bounds", f"0..{h.keys - 1}")
        self.k.report(fault, w.let(f"{self.fits} == 0", "m"), self.begins)

    def _vector(self, x: Value, numbers: Sequence[str], mask: str | None) -> str:
        """Load a query or key and rotate it."""
        e, cos = self.t.elements, self.given_values[COS:]
        if not cos:
            return self._stored(element(e, x, numbers, mask))
        return self._stored(turn(e, Rope(self.decode.interleaved), (x, *cos), numbers, mask))

    def _stored(self, x: Scalar) -> str:
        return self.w.let(self.t.elements.scalars.encoded(x), "x")

    def _add_rows(self) -> None:
        """Store the new key and value, in the first program of a head."""
        w, e = self.w, self.t.elements
        own = w.let(f"{self.fits} & ({self.k.program_id(2)} == 0)", "m")
        sizes = ((self.size, self.h.size), (self.width, self.h.width))
        for index, (made, (padded, size)) in enumerate(zip(self.new, sizes, strict=True), 1):
            if index not in self.results:
                continue
            across = self._across(padded)
            mask = self._within(padded, size, w.let(f"{own} & ({across} >= 0)", "m"))
            target = [self.batch, self.group, self.begins, across]
            write(e, self.results[index], target, e.scalars.decoded(made, self.dtype), mask)

    # The result

    def _write_rows(self, made: str, head: str, mask: str) -> None:
        """Store rows of the result: heads down, elements across."""
        if 0 not in self.results:
            return
        e, w = self.t.elements, self.w
        inside = self._within(self.width, self.h.width, w.let(f"{mask}[:, None]", "m"))
        scalar = register(w, made, self.wide)
        numbers = [self.batch, w.let(f"{head}[:, None]"), "0", self._across(self.width)]
        write(e, self.results[0], numbers, e.scalars.cast(scalar, self.dtype), inside)

    def _join(self, parts: _Parts) -> None:
        """Store the partial result; the last program of a head combines all of them.

        Programs after the valid keys have no result, and are not waited for.
        """
        k, w = self.k, self.w
        share = w.let(f"tl.maximum({self.share}, 1)", "n")
        needed = f"({self.length} - {self.low} + {share} - 1) // {share}"
        # At least one, also if no key is valid: it returns zeros.
        self.active = w.let(f"tl.maximum({needed}, 1)", "n")
        with w.block(f"if {k.program_id(2)} < {self.active}"):
            self.store_part()
            w.line("tl.debug_barrier()")
            counter = f"{k.pointer(parts.done)} + {k.program_id(1)}"
            w.line(f'before = tl.atomic_add({counter}, 1, sem="acq_rel")')
            w.line("tl.debug_barrier()")
            with w.block(f"if before == {self.active} - 1"):
                self._combine(parts)
                w.line(f"tl.store({counter}, 0)")

    def _combine(self, parts: _Parts) -> None:
        """Combine the heads' results from the parts of all programs, as many at once as fit."""
        rows, each = power(self.h.repeats), power(self.c.split) * self.width
        while rows > 1 and rows * each > MOST_JOINED * 32 * self.c.warps:
            rows //= 2
        for first in range(0, self.h.rows, rows):
            self._combine_rows(parts, first, rows)

    def _combine_rows(self, parts: _Parts, first: int, rows: int) -> None:
        """Combine some rows. All loads come before any arithmetic: one memory latency."""
        k, w, h, c = self.k, self.w, self.h, self.c
        pointer, count = k.pointer(parts.sums), h.batch * h.groups * h.rows
        part = w.let(f"tl.arange(0, {power(c.split)})[:, None]", "pp")
        number = w.let(f"{first} + tl.arange(0, {rows})", "r")
        row = w.let(f"{number}[None, :]", "r")
        here = w.let(f"{part} * {count} + {k.program_id(1)} * {h.rows} + {row}", "i")
        mask = w.let(f"({part} < {self.active}) & ({row} < {h.rows})", "m")
        across = w.let(f"tl.arange(0, {self.width})[None, None, :]", "e")
        whole = w.let(f"{mask}[:, :, None] & ({across} < {h.width})", "m")
        rest = count * c.split * h.width

        def load(where: str, inside: str, other: str) -> str:
            options = f'mask={inside}, other={other}, cache_modifier=".cg"'
            return w.let(f"tl.load({pointer} + {where}, {options})", "x")

        top = load(f"{rest} + {here}", mask, 'float("-inf")')
        weight = load(f"{rest + count * c.split} + {here}", mask, "0")
        found = load(f"{here}[:, :, None] * {h.width} + {across}", whole, "0")
        most = w.let(f"tl.max({top}, 0)[None, :]", "most")
        safe = w.let(f'tl.where({most} == float("-inf"), 0, {most})')
        share = w.let(self.exp(w.let(f"{top} - {safe}")), "share")
        total = w.let(f"tl.sum({share} * {weight}, 0)", "x")
        scaled = w.let(f"{share} / tl.where({total} == 0, 1, {total})[None, :]", "share")
        made = w.let(f"tl.sum({found} * {scaled}[:, :, None], 0)", "x")
        head = w.let(f"{self.group} * {h.repeats} + {number}", "h")
        self._write_rows(made, head, w.let(f"{number} < {h.rows}", "m"))
