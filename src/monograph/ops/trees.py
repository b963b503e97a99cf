"""Ensembles of decision trees. Reference only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, DType, Literal, Op, TensorType, sample
from monograph.ir.dtype import FLOAT, INT, UINT, f32
from monograph.ir.lazy import lazy
from monograph.ops.base import as_tensor, check_allocation, check_kinds, narrow

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)
AGGREGATES = ("sum", "average", "min", "max")
MAX_TARGETS = 1 << 24
CHUNK = 1 << 20
"""Rows are taken in blocks such that rows times trees, or targets, stay near this number."""

_COMPARE = {
    LEQ: np.less_equal,
    LT: np.less,
    GTE: np.greater_equal,
    GT: np.greater,
    EQ: np.equal,
    NEQ: np.not_equal,
}


def _stump(**changed: Any) -> dict[str, Any]:
    """Two trees: x[0] <= 0 decides the first, membership of x[1] the second."""
    attributes: dict[str, Any] = {
        "roots": Literal(np.array([0, 3])),
        "modes": Literal(np.array([LEQ, LEAF, LEAF, MEMBER, LEAF, LEAF], np.uint8)),
        "features": Literal(np.array([0, 0, 0, 1, 0, 0])),
        "splits": Literal(np.array([0.0, 0, 0, 0, 0, 0])),
        "yes": Literal(np.array([1, 0, 0, 4, 0, 0])),
        "no": Literal(np.array([2, 0, 0, 5, 0, 0])),
        "missing_yes": Literal(np.array([True, False, False, False, False, False])),
        "first_vote": Literal(np.array([0, 0, 1, 2, 2, 4, 5])),
        "vote_targets": Literal(np.array([0, 1, 0, 1, 1])),
        "vote_weights": Literal(np.array([0.5, 1.5, -2.0, 3.0, 0.25])),
        "first_member": Literal(np.array([0, 0, 0, 0, 2, 2, 2])),
        "members": Literal(np.array([1.0, 2.0])),
        "targets": 2,
    }
    return attributes | changed


_ROWS = [[-1.0, 2.0], [1.0, 3.0], [float("nan"), 1.0], [0.0, float("nan")]]


@dataclass(frozen=True)
class TreeEnsemble(Op):
    """The votes of decision trees on each row of x[N, F], aggregated by target: [N, targets].

    Nodes of all trees stand in one table. At node i, `modes[i]` compares the feature
    `x[features[i]]` with `splits[i]` (MEMBER: with `members[first_member[i]:first_member[i + 1]]`)
    and goes on at node `yes[i]` or `no[i]`; a NaN goes to `yes` where `missing_yes` says so, and
    otherwise where the comparison sends it. A LEAF casts the votes `first_vote[i]` to
    `first_vote[i + 1]`: a weight for a target. "average" divides by the number of trees. A target
    without a vote is 0.
    """

    roots: Literal
    modes: Literal
    features: Literal
    splits: Literal
    yes: Literal
    no: Literal
    missing_yes: Literal
    first_vote: Literal
    vote_targets: Literal
    vote_weights: Literal
    first_member: Literal
    members: Literal
    targets: int
    aggregate: str = "sum"
    out: DType = f32

    host_reason = "an op of classical models"
    costly = sums_constants = True
    samples = (
        sample(_ROWS, **_stump()),
        sample(_ROWS, **_stump(aggregate="min")),
        sample(_ROWS, **_stump(aggregate="average")),
        sample("i64[0, 2]", **_stump(aggregate="max")),
    )

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, (FLOAT, INT, UINT))
        self.check()
        if x.shape is None:
            return TensorType(self.out, None)
        if len(x.shape) != 2:
            raise InferError("rows of features are needed", expected="[N, F]", given=x)
        width = x.shape[1]
        if isinstance(width, int) and self.largest_feature >= width:
            raise InferError(
                "a tree reads a feature that is not there",
                expected=f"below {width}",
                given=self.largest_feature,
            )
        return TensorType(self.out, (x.shape[0], self.targets))

    @lazy
    def largest_feature(self) -> int:
        used = self.features.array[self.modes.array != LEAF]
        return int(used.max(initial=-1))

    def check(self) -> None:
        """Every index of the tables is in range, and no path through the nodes is a circle."""
        if self.__dict__.get("_checked"):
            return
        if self.aggregate not in AGGREGATES:
            raise InferError("unknown aggregate", expected=AGGREGATES, given=self.aggregate)
        if not 1 <= self.targets <= MAX_TARGETS:
            raise InferError("targets", expected=f"1..{MAX_TARGETS}", given=self.targets)
        self._check_lengths()
        inner = self.modes.array < LEAF
        count = len(inner)
        _check_range("a tree's root", self.roots.array, count)
        _check_range("a branch", self.yes.array[inner], count)
        _check_range("a branch", self.no.array[inner], count)
        _check_range("a vote's target", self.vote_targets.array, self.targets)
        if int(self.features.array[inner].min(initial=0)) < 0:
            raise InferError("a feature's number is negative")
        _check_offsets("votes", self.first_vote.array, len(self.vote_weights.array))
        _check_offsets("members", self.first_member.array, len(self.members.array))
        check_acyclic(self.yes.array, self.no.array, inner)
        object.__setattr__(self, "_checked", True)

    def _check_lengths(self) -> None:
        count = self.modes.array.size
        tables = {
            "modes": (self.modes, count), "features": (self.features, count),
            "splits": (self.splits, count), "yes": (self.yes, count), "no": (self.no, count),
            "missing_yes": (self.missing_yes, count), "roots": (self.roots, self.roots.array.size),
            "first_vote": (self.first_vote, count + 1), "members": (self.members, None),
            "first_member": (self.first_member, count + 1),
            "vote_weights": (self.vote_weights, None),
            "vote_targets": (self.vote_targets, self.vote_weights.array.size),
        }  # fmt: skip
        for name, (table, length) in tables.items():
            if table.array.ndim != 1 or (length is not None and table.array.size != length):
                raise InferError(f"{name}: wrong length", expected=length, given=table.type)
        if not self.roots.array.size:
            raise InferError("an ensemble has no tree")

    def reference(self, x: Array) -> Array:
        if self.largest_feature >= x.shape[1]:
            raise ExecutionError(
                "a tree reads a feature that is not there",
                expected=f"below {x.shape[1]}",
                given=self.largest_feature,
            )
        check_allocation((x.shape[0], self.targets), np.float64)
        result = np.zeros((x.shape[0], self.targets), self.out.numpy)
        block = max(1, CHUNK // max(len(self.roots.array), self.targets))
        for at in range(0, x.shape[0], block):
            rows = x[at : at + block].astype(np.float64)
            result[at : at + block] = narrow(self.tally(self.descend(rows)), self.out)
        return result

    def descend(self, x: Array) -> Array:
        """Return the leaf that each row reaches in each tree."""
        modes, features = self.modes.array, self.features.array
        splits = self.splits.array.astype(np.float64)
        at = np.tile(self.roots.array, (len(x), 1)).reshape(-1)
        rows = np.repeat(np.arange(len(x)), len(self.roots.array))
        active = np.flatnonzero(modes[at] != LEAF)
        for _ in range(len(modes)):
            if not active.size:
                break
            nodes = at[active]
            values = x[rows[active], features[nodes]]
            taken = self.missing_yes.array[nodes] & np.isnan(values)
            for mode, compare in _COMPARE.items():
                chosen = modes[nodes] == mode
                taken[chosen] |= compare(values[chosen], splits[nodes[chosen]])
            for node in np.unique(nodes[modes[nodes] == MEMBER]):
                begin, end = self.first_member.array[node : node + 2]
                chosen = nodes == node
                taken[chosen] |= np.isin(values[chosen], self.members.array[begin:end])
            at[active] = np.where(taken, self.yes.array[nodes], self.no.array[nodes])
            active = active[modes[at[active]] != LEAF]
        return at.reshape(len(x), -1)

    def tally(self, leaves: Array) -> Array:
        """Return the votes of these leaves, [N, T], by row and target."""
        first = self.first_vote.array[leaves].reshape(-1)
        counts = self.first_vote.array[leaves + 1].reshape(-1) - first
        rows = np.repeat(np.repeat(np.arange(len(leaves)), leaves.shape[1]), counts)
        # Within the votes of a leaf: the position minus where its run starts.
        run = np.repeat(first - (np.cumsum(counts) - counts), counts)
        votes = run + np.arange(counts.sum())
        place = rows * self.targets + self.vote_targets.array[votes]
        weights = self.vote_weights.array[votes].astype(np.float64)
        size = len(leaves) * self.targets
        if self.aggregate in ("sum", "average"):
            total: Array = np.bincount(place, weights, minlength=size)
            total = total / len(self.roots.array) if self.aggregate == "average" else total
        else:
            smallest = self.aggregate == "min"
            total = np.full(size, np.inf if smallest else -np.inf)
            (np.minimum if smallest else np.maximum).at(total, place, weights)
            total[np.bincount(place, minlength=size) == 0] = 0.0
        return total.reshape(len(leaves), self.targets)

    def accumulation_length(self, *types: TensorType) -> int:
        return int(self.roots.array.size)


def _check_range(what: str, table: Array, count: int) -> None:
    wrong = (table < 0) | (table >= count)
    if wrong.any():
        raise InferError(
            f"{what} is out of range", expected=f"0..{count - 1}", given=int(table[wrong][0])
        )


def _check_offsets(what: str, offsets: Array, total: int) -> None:
    if offsets[0] != 0 or offsets[-1] != total or bool((np.diff(offsets) < 0).any()):
        raise InferError(f"the {what} of the nodes do not partition their table", expected=total)


def check_acyclic(yes: Array, no: Array, inner: Array) -> None:
    """Refuses nodes that lead back to themselves."""
    left, right, branches = yes.tolist(), no.tolist(), inner.tolist()
    parents = [0] * len(left)
    for i, branching in enumerate(branches):
        if branching:
            parents[left[i]] += 1
            parents[right[i]] += 1
    # Nodes without parents go first, and take their children's edges with them; a circle stays.
    ready = [i for i, count in enumerate(parents) if count == 0]
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        if branches[i]:
            for child in (left[i], right[i]):
                parents[child] -= 1
                if parents[child] == 0:
                    ready.append(child)
    if done < len(left):
        stuck = next(i for i, count in enumerate(parents) if count)
        raise InferError("the nodes of a tree form a circle", given=f"through node {stuck}")
