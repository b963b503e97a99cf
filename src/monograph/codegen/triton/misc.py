"""GPU kernels of single ops: determinants, n-gram counts, class probabilities, tree ensembles.

A determinant is eliminated with the largest pivot of each column, in f64, a matrix a lane.
"""

from __future__ import annotations

import math

import numpy as np

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.tile import ResultTile, each, joined, read, register, table, tile
from monograph.codegen.triton.emit.writer import power
from monograph.codegen.triton.module.kernel import (
    Candidate,
    GpuContext,
    KernelWriter,
    TritonScratch,
    kernel_for,
    single,
)
from monograph.codegen.triton.module.launch import Launch
from monograph.ir import Array, Value
from monograph.ir.dtype import f64, i64
from monograph.ops.linear import Det
from monograph.ops.ml import MAX_ITERATIONS, CoupleProbabilities
from monograph.ops.text import Ngrams, gram_tables
from monograph.ops.trees import EQ, GT, GTE, LEAF, LEQ, LT, MEMBER, NEQ, TreeEnsemble


def serves(anchor: Value) -> bool:
    if isinstance(anchor.op, Ngrams):
        return not anchor.inputs[0].dtype.is_string
    return isinstance(anchor.op, CoupleProbabilities)


@kernel_for(CoupleProbabilities, Ngrams, when=serves, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    if isinstance(context.anchor.op, Ngrams):
        return each(context, _count_grams)
    return single("rows", lambda: _couple_kernel(context))


def _couple_kernel(context: GpuContext) -> Launch:
    """Generate a program per row with its classes as lanes; rows of Q are computed when needed."""
    anchor = context.anchor
    k = context.kernel()
    t, w, x = tile(k), k.w, anchor.inputs[0]
    rows, classes = t.shape
    row, s = k.program_id(), t.elements.scalars
    lane = w.let(f"tl.arange(0, {power(classes)})", "j")
    mask = w.let(f"{lane} < {classes}", "m")
    t.axis(0, row)
    t.axis(1, lane, mask)
    k.wait()

    def estimates(i: str, j: str) -> str:
        across = [w.let(f"{n} + {lane} * 0", "n") for n in (row, i, j)]
        return str(s.cast(read(t.elements, x, across, mask), f64).reg)

    def line_of_q() -> None:
        """Compute a row of Q for class c: negative products of estimates; itself sums squares."""
        forth, back = estimates("c", lane), estimates(lane, "c")
        w.line(f"other = ({lane} != c) & {mask}")
        w.line(f"own = tl.sum(tl.where(other, {back} * {back}, 0.0), 0)")
        w.line(f"line = tl.where(other, -{back} * {forth}, tl.where({lane} == c, own, 0.0))")

    w.line(f"p = tl.where({mask}, tl.full((), {1.0 / classes!r}, tl.float64), 0.0)")
    w.line("turn = tl.full((), 0, tl.int32)")
    w.line("going = turn == 0")
    with w.block(f"while going & (turn < {MAX_ITERATIONS})"):
        w.line("qp = tl.zeros_like(p)")
        with w.block(f"for c in range({classes})"):
            line_of_q()
            w.line(f"qp = tl.where({lane} == c, tl.sum(line * p, 0), qp)")
        w.line("pqp = tl.sum(p * qp, 0)")
        # Compared in every lane: a maximum would ignore NaN.
        far = f"{mask} & ((tl.abs(qp - pqp) < {0.005 / classes!r}) == 0)"
        w.line(f"going = tl.max(({far}).to(tl.int32), 0) > 0")
        with w.block(f"for c in range({classes})"):
            line_of_q()
            w.line(f"mine = tl.sum(tl.where({lane} == c, qp, 0.0), 0)")
            # After convergence nothing changes any more.
            w.line("step = tl.where(going, (pqp - mine) / own, 0.0)")
            w.line(f"p = tl.where({lane} == c, p + step, p) / (1.0 + step)")
            changed = "(pqp + step * (step * own + 2.0 * mine)) / ((1.0 + step) * (1.0 + step))"
            w.line(f"pqp = {changed}")
            w.line("qp = (qp + step * line) / (1.0 + step)")
        w.line("turn = turn + 1")
    k.trigger()
    t.finish_scalar(s.cast(register(w, "p", f64), anchor.dtype))
    return k.launch((rows,), 4)


def _count_grams(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the weighted count of a column's grams in a row of tokens, searched one by one."""
    anchor = k.context.anchor
    op, x, w, s = anchor.op, anchor.inputs[0], k.w, t.elements.scalars
    assert isinstance(op, Ngrams)
    *row, column = (t.point[t.counter(d)].text for d in range(len(t.shape)))
    starts, lengths, places, weights, tokens = (table(k, a) for a in gram_tables(op))
    most, length = _max_grams(op), x.tensor.static[-1]
    inside = f", mask={mask}, other=0" if mask else ""
    w.line(f"total = tl.full((), 0.0, tl.float64) + {column} * 0")
    with w.block(f"for number in range({most})"):
        w.line(f"gram = tl.load({starts} + {column}{inside}) + number")
        w.line(f"given = gram < tl.load({starts} + {column} + 1{inside})")
        w.line(f"long = tl.load({lengths} + gram, mask=given, other=0)")
        w.line(f"place = tl.load({places} + gram, mask=given, other=0)")
        w.line(f"found = tl.full((), 0, tl.int64) + {column} * 0")
        with w.block(f"for step in range(1, {op.skips + 2})"), w.block(f"for i in range({length})"):
            w.line(
                f"same = given & ((step == 1) | (long > 1)) & (i + (long - 1) * step < {length})"
            )
            with w.block(f"for j in range({op.longest})"):
                w.line("within = same & (j < long)")
                w.line(f"at = i + j * step + {column} * 0")
                token = s.cast(read(t.elements, x, [*row, "at"], "within"), i64).reg
                wanted = f"tl.load({tokens} + place + j, mask=within, other=0)"
                w.line(f"same = same & ((within == 0) | ({token} == {wanted}))")
            w.line("found = found + same.to(tl.int64)")
        once = "tl.minimum(found, 1)" if op.once else "found"
        weight = f"tl.load({weights} + gram, mask=given, other=0.0)"
        w.line(f"total = total + {weight} * ({once}).to(tl.float64)")
    return s.encoded(s.cast(register(w, "total", f64), anchor.dtype))


def _max_grams(op: Ngrams) -> int:
    """The most grams of a column."""
    starts = gram_tables(op)[0]
    return int((starts[1:] - starts[:-1]).max())


_SIGNS = {LEQ: "<=", LT: "<", GTE: ">=", GT: ">", EQ: "==", NEQ: "!="}


@kernel_for(TreeEnsemble, readable=any_view)
def tree_candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _sum_votes)


def _sum_votes(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the votes of all trees in order, as the reference adds them."""
    anchor = k.context.anchor
    op, w, s = anchor.op, k.w, t.elements.scalars
    assert isinstance(op, TreeEnsemble)
    row, target = (t.point[t.counter(d)].text for d in range(2))
    start = {"min": 'float("inf")', "max": 'float("-inf")'}.get(op.aggregate, "0.0")
    w.line(f"total = tl.full((), {start}, tl.float64) + {row} * 0")
    w.line(f"voted = {row} < 0")
    with w.block(f"for tree in range({len(op.roots.array)})"):
        w.line(f"at = tl.load({table(k, op.roots.array)} + tree) + {row} * 0")
        if depth := _depth(op):
            with w.block(f"for level in range({depth})"):
                _descend(k, t, op, row, mask)
        _count(k, op, target)
    if op.aggregate == "average":
        w.line(f"total = total / {float(len(op.roots.array))}")
    if op.aggregate in ("min", "max"):
        w.line("total = tl.where(voted, total, 0.0)")
    return s.encoded(s.cast(register(w, "total", f64), anchor.dtype))


def _descend(k: KernelWriter, t: ResultTile, op: TreeEnsemble, row: str, mask: str | None) -> None:
    """Descend one step in every element that has not reached its leaf."""
    w, s, modes = k.w, t.elements.scalars, op.modes.array

    def entry(array: Array, name: str) -> None:
        w.line(f"{name} = tl.load({table(k, array)} + at)")

    entry(modes.astype(np.int32), "mode")
    entry(op.features.array, "feature")
    entry(op.splits.array.astype(np.float64), "split")
    w.line(f"inner = (mode != {LEAF})" + (f" & {mask}" if mask else ""))
    x = s.cast(read(t.elements, k.context.anchor.inputs[0], [row, "feature"], "inner"), f64).reg
    entry(op.missing_yes.array.astype(np.int32), "missing")
    w.line(f"taken = (missing != 0) & ({x} != {x})")
    for mode, sign in _SIGNS.items():
        if mode in modes:
            w.line(f"taken = taken | ((mode == {mode}) & ({x} {sign} split))")
    if MEMBER in modes and op.members.array.size:
        first = table(k, op.first_member.array)
        with w.block(f"for number in range({int(np.diff(op.first_member.array).max())})"):
            w.line(f"place = tl.load({first} + at) + number")
            w.line(f"listed = inner & (mode == {MEMBER}) & (place < tl.load({first} + at + 1))")
            members = table(k, op.members.array.astype(np.float64))
            w.line(f"taken = taken | (listed & ({x} == tl.load({members} + place, mask=listed)))")
    w.line(f"down = tl.where(taken, tl.load({table(k, op.yes.array)} + at), ")
    w.line(f"    tl.load({table(k, op.no.array)} + at))")
    w.line("at = tl.where(inner, down, at)")


def _count(k: KernelWriter, op: TreeEnsemble, target: str) -> None:
    """Add the votes of the reached leaves, for the elements' own targets."""
    w, first = k.w, table(k, op.first_vote.array)
    most = int(np.diff(op.first_vote.array).max(initial=0))
    if not most:
        return
    w.line(f"last = tl.load({first} + at + 1)")
    with w.block(f"for number in range({most})"):
        w.line(f"vote = tl.load({first} + at) + number")
        w.line("cast = vote < last")
        targets = table(k, op.vote_targets.array)
        w.line(f"mine = cast & (tl.load({targets} + vote, mask=cast, other=-1) == {target})")
        weights = table(k, op.vote_weights.array.astype(np.float64))
        w.line(f"weight = tl.load({weights} + vote, mask=mine, other=0.0)")
        if op.aggregate in ("min", "max"):
            best = f"tl.{op.aggregate}imum(total, weight)"
            w.line(f"total = tl.where(mine, {best}, total)")
        else:
            w.line("total = tl.where(mine, total + weight, total)")
        w.line("voted = voted | mine")


def _depth(op: TreeEnsemble) -> int:
    """The most steps from a root to a leaf."""
    inner = op.modes.array != LEAF
    front, depth = np.unique(op.roots.array), 0
    while (front := front[inner[front]]).size:
        front = np.unique([op.yes.array[front], op.no.array[front]])
        depth += 1
    return depth


PARALLEL = 1024
"""The most matrices of a program, which also sizes its scratch memory."""


@kernel_for(Det, readable=any_view)
def det_candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _eliminated)[:1]


def _eliminated(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    anchor = k.context.anchor
    x, w, e = anchor.inputs[0], k.w, t.elements
    size = x.tensor.static[-1]
    texts = [t.point[t.counter(d)].text for d in range(len(t.shape))]
    room = -(-max(math.prod(t.shape), 1) // PARALLEL) * PARALLEL
    memory = k.pointer(TritonScratch(max(room * size * size, 1) * 8, f64))
    # A matrix is contiguous: lanes never read what another one wrote, and threads that distribute
    # lanes differently from access to access wait for each other.
    own = joined(w, texts, t.shape) if texts else w.let("tl.program_id(0) * 0", "n")
    mask = mask if texts else None
    inside = f", mask={mask}" if mask else ""

    def at(i: str, j: str) -> str:
        return f"{memory} + {own} * {size * size} + ({i}) * {size} + ({j})"

    def get(i: str, j: str) -> str:
        name = w.name("x")
        w.line(f"{name} = tl.load({at(i, j)}{inside}{', other=0.0' if mask else ''})")
        return name

    def put(i: str, j: str, text: str) -> None:
        w.line(f"tl.store({at(i, j)}, {text}{inside})")

    with w.block(f"for i in range({size})"), w.block(f"for j in range({size})"):
        spread = [w.let(f"{n} + {own} * 0", "n") for n in ("i", "j")]
        found = e.scalars.cast(read(e, x, [*texts, *spread], mask), f64)
        put("i", "j", str(found.reg))
    w.line("tl.debug_barrier()")
    w.line(f"product = tl.full((), 1.0, tl.float64) + {own} * 0")
    with w.block(f"for k in range({size})"):
        w.line(f"best = tl.abs({get('k', 'k')})")
        w.line(f"row = k + {own} * 0")
        with w.block(f"for i in range(k + 1, {size})"):
            w.line(f"other = tl.abs({get('i', 'k')})")
            w.line("row = tl.where(other > best, i, row)")
            w.line("best = tl.where(other > best, other, best)")
        with w.block(f"for j in range(k, {size})"):
            upper, lower = get("k", "j"), get("row", "j")
            w.line("tl.debug_barrier()")
            put("row", "j", upper)
            put("k", "j", lower)
        w.line("tl.debug_barrier()")
        pivot = get("k", "k")
        # A column of zeros makes the product zero; the rest only has to stay finite.
        w.line(f"inverse = tl.where({pivot} == 0, 0.0, 1.0 / {pivot})")
        with w.block(f"for i in range(k + 1, {size})"):
            w.line(f"factor = {get('i', 'k')} * inverse")
            with w.block(f"for j in range(k + 1, {size})"):
                put("i", "j", f"{get('i', 'j')} - factor * {get('k', 'j')}")
        w.line("tl.debug_barrier()")
        w.line(f"product = product * tl.where(row == k, {pivot}, -{pivot})")
    made = register(w, "product", f64)
    return e.scalars.encoded(e.scalars.cast(made, anchor.dtype))
