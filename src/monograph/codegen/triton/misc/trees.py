"""Ensembles of decision trees: each element descends every tree and adds its target's votes."""

from __future__ import annotations

import numpy as np

from monograph.codegen.common.registry import any_view
from monograph.codegen.triton.emit.indexed_load import read, register, table
from monograph.codegen.triton.emit.map_kernel import each
from monograph.codegen.triton.emit.tile import ResultTile
from monograph.codegen.triton.module.kernel import Candidate, GpuContext, KernelWriter, kernel_for
from monograph.ir import Array
from monograph.ir.dtype import f64
from monograph.ops.trees import EQ, GT, GTE, LEAF, LEQ, LT, MEMBER, NEQ, TreeEnsemble

_SIGNS = {LEQ: "<=", LT: "<", GTE: ">=", GT: ">", EQ: "==", NEQ: "!="}


@kernel_for(TreeEnsemble, readable=any_view)
def candidates(context: GpuContext) -> list[Candidate]:
    return each(context, _voted)


def _voted(k: KernelWriter, t: ResultTile, mask: str | None) -> str:
    """Return the votes of all trees in order, as the reference adds them."""
    anchor = k.context.step.region.anchor
    assert anchor is not None
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
    anchor = k.context.step.region.anchor
    assert anchor is not None
    w, s, modes = k.w, t.elements.scalars, op.modes.array

    def entry(array: Array, name: str) -> None:
        w.line(f"{name} = tl.load({table(k, array)} + at)")

    entry(modes.astype(np.int32), "mode")
    entry(op.features.array, "feature")
    entry(op.splits.array.astype(np.float64), "split")
    w.line(f"inner = (mode != {LEAF})" + (f" & {mask}" if mask else ""))
    x = s.cast(read(t.elements, anchor.inputs[0], [row, "feature"], "inner"), f64).reg
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
