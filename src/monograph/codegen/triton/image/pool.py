"""Pools of any form: each result separately, one tap of its window at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from monograph.codegen.common import types
from monograph.codegen.triton.emit.scalar import register_type
from monograph.codegen.triton.emit.tile import Body, ResultTile, accumulator, each, register
from monograph.codegen.triton.emit.writer import Writer, literal
from monograph.codegen.triton.image.windows import Window, WindowReader, readable
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter, kernel_for
from monograph.ir import DType, Value
from monograph.ir.dtype import i64
from monograph.ops.pool import ArgMaxPool, AveragePool, LpPool, MaxPool, Pool
from monograph.ops.scalar import Scalar
from monograph.ops.window import CHANNELS_LAST

Tap = Callable[[Scalar, str | None, list[str]], None]
"""Takes an element under a tap, its mask, and the position of the tap in the window."""
MOST_UNROLLED = 64
"""The most taps of a window that are unrolled."""


def serves(anchor: Value) -> bool:
    return isinstance(anchor.op, Pool) and not anchor.op.auto


@kernel_for(Pool, when=serves, readable=readable)
def candidates(context: GpuContext) -> list[Candidate]:
    bodies: dict[type, Body] = {
        MaxPool: _max_body,
        ArgMaxPool: _place,
        AveragePool: _mean_body,
        LpPool: _norm_body,
    }
    return each(context, bodies[type(context.anchor.op)])


def _window(anchor: Value) -> Window:
    op = anchor.op
    assert isinstance(op, Pool)
    x, y = anchor.inputs[0].tensor.static, anchor.tensor.static
    last = op.layout == CHANNELS_LAST
    spatial = slice(1, -1) if last else slice(2, None)
    return Window(
        x[0], x[spatial], y[spatial], op.kernel, op.strides, op.pads_begin, op.dilations, 1,
        1, 1, False, last,
    )  # fmt: skip


class _Walk:
    """Loops over the taps of the windows of a block of results."""

    def __init__(self, k: KernelWriter, t: ResultTile, mask: str | None) -> None:
        anchor = k.context.anchor
        self.k, self.t, self.g = k, t, _window(anchor)
        self.x = anchor.inputs[0]
        rank = len(t.shape)
        spatial = range(1, rank - 1) if self.g.last else range(2, rank)
        texts = [t.point[t.counter(d)].text for d in range(rank)]
        self.channel = texts[-1] if self.g.last else texts[1]
        places = tuple(texts[d] for d in spatial)
        self.image = texts[0]
        self.reader = WindowReader(k, t, self.x, self.g, places, texts[0], mask)

    def run(self, step: Tap) -> None:
        """Call step(element, mask, taps) for each tap."""
        k, g = self.k, self.g
        if g.taps <= MOST_UNROLLED:
            for place in np.ndindex(*g.kernel):
                self._one(step, [str(i) for i in place])
            return
        with k.w.block(f"for tap in range({g.taps})"):
            taps: list[str] = []
            rest = g.taps
            for size in g.kernel:
                rest //= size
                taps.append(k.w.let(f"(tap // {rest}) % {size}", "t"))
            self._one(step, taps)

    def _one(self, step: Tap, taps: list[str]) -> None:
        loaded, inside = self.reader.under(taps, self.channel, None)
        step(self.t.elements.scalars.decoded(loaded, self.x.dtype), inside, taps)


def _start(k: KernelWriter, t: ResultTile, name: str, number: float | int, dtype: DType) -> None:
    shape = next(iter(t.point.values())).text if t.point else "0"
    kind = register_type(dtype)
    k.w.line(
        f"{name} = tl.zeros_like({shape}).to({kind}) + {literal(number, types.register(dtype))}"
    )


def _lowest(dtype: DType) -> float | int:
    if dtype.is_float:
        return -math.inf
    return 0 if not dtype.is_signed else -(2 ** (dtype.bits - 1))


def _max_body(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    walk = _Walk(k, t, mask)
    scalars, dtype = t.elements.scalars, walk.x.dtype
    least = scalars.literal(_lowest(dtype), dtype)
    _start(k, t, "best", _lowest(dtype), dtype)

    def step(x: Scalar, inside: str | None, taps: list[str]) -> None:
        if inside is not None:
            kind, text = x.reg.type, f"tl.where({inside}, {x.reg}, {least.reg})"
            x = Scalar(k.w.set(kind, text), dtype)
        k.w.assign("best", str(scalars.max(register(k.w, "best", dtype), x).reg))

    walk.run(step)
    return scalars.encoded(register(k.w, "best", dtype))


def _place(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the index of the largest element, over all elements of [N, C, *S]."""
    walk = _Walk(k, t, mask)
    g, w, dtype = walk.g, k.w, walk.x.dtype
    anchor = k.context.anchor
    assert isinstance(anchor.op, ArgMaxPool)
    _start(k, t, "best", _lowest(dtype), dtype)
    _start(k, t, "place", -1, i64)
    sizes = g.sizes
    order = list(range(len(sizes))) if anchor.op.column_major else list(reversed(range(len(sizes))))
    steps, step_size = {}, 1
    for d in order:
        steps[d] = step_size
        step_size *= sizes[d]

    def step(x: Scalar, inside: str | None, taps: list[str]) -> None:
        at = (f"({walk.reader.along(d, tap)[0]}) * {steps[d]}" for d, tap in enumerate(taps))
        own = w.let(" + ".join(at), "s")
        nan = f" | (({x.reg} != {x.reg}) & (best == best))" if dtype.is_float else ""
        above = f"{x.reg} > best"
        if dtype.kind == "uint":
            kind = register_type(dtype).replace("tl.int", "tl.uint")
            above = f"{x.reg}.to({kind}, bitcast=True) > best.to({kind}, bitcast=True)"
        better = f"(({above}) | (place < 0){nan})"
        wins = w.let(f"{better} & ({inside})" if inside else better, "m")
        w.assign("best", f"tl.where({wins}, {x.reg}, best)")
        w.assign("place", f"tl.where({wins}, ({own}).to(tl.int64), place)")

    walk.run(step)
    channels = walk.x.tensor.static[-1] if g.last else walk.x.tensor.static[1]
    plane = f"(({walk.image}) * {channels} + ({walk.channel}))"
    # A window of padding only has found nothing.
    return w.let(f"tl.maximum(place, 0) + {plane}.to(tl.int64) * {math.prod(sizes)}")


def _mean_body(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    walk = _Walk(k, t, mask)
    g, w = walk.g, k.w
    op, dtype = k.context.anchor.op, walk.x.dtype
    assert isinstance(op, AveragePool)
    wide = accumulator(dtype)
    scalars = t.elements.scalars
    _start(k, t, "total", 0, wide)

    def step(x: Scalar, inside: str | None, taps: list[str]) -> None:
        # Elements outside were read as 0.
        w.assign("total", f"total + {scalars.cast(x, wide).reg}")

    walk.run(step)
    counts = [_count(w, walk, d, op) for d in range(len(g.sizes))]
    count = w.let(" * ".join(f"({c})" for c in counts), "n")
    divisor = register(w, f"({count}).to({register_type(wide)})", wide)
    total = register(w, "total", wide)
    return scalars.encoded(scalars.cast(scalars.div(total, divisor), dtype))


def _count(w: Writer, walk: _Walk, d: int, op: AveragePool) -> str:
    """Return the number of valid taps of a window along a dimension."""
    g = walk.g
    low, high = 0, g.sizes[d]
    if op.include_pad:
        low, high = -op.pads_begin[d], g.sizes[d] + op.pads_end[d]
    parts = []
    for tap in range(g.kernel[d]):
        place = w.let(walk.reader.along(d, str(tap))[0], "s")
        parts.append(f"(({place} >= {low}) & ({place} < {high})).to(tl.int32)")
    return w.let(" + ".join(parts), "n")


def _norm_body(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    walk = _Walk(k, t, mask)
    op, dtype, w = k.context.anchor.op, walk.x.dtype, k.w
    assert isinstance(op, LpPool)
    wide = accumulator(dtype)
    scalars = t.elements.scalars
    _start(k, t, "total", 0, wide)

    def step(x: Scalar, inside: str | None, taps: list[str]) -> None:
        size = scalars.abs(scalars.cast(x, wide))
        power = scalars.pow(size, scalars.literal(op.p, wide))
        w.assign("total", f"total + {power.reg}")

    walk.run(step)
    root = total = register(w, "total", wide)
    if op.p == 2:
        root = scalars.sqrt(total)
    elif op.p != 1:
        root = scalars.pow(total, scalars.literal(1.0 / op.p, wide))
    return scalars.encoded(scalars.cast(root, dtype))
