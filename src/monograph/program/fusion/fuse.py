"""Fusion: which values are computed together, and which are stored between kernels.

A value is stored where memory is the only way: outputs of the graph, operands of kernels that
read memory, parts of a join. Everything else is computed inside the one kernel that needs it.
Work on single elements that several kernels would need is stored once, unless it is a mere view.
A kernel whose only user is work on single elements of the same shape takes it along as its
epilogue; where the target says so, also work on parts of the result that lie side by side (a gate
and what it opens). What only kernels read that compute it themselves is not stored either.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from monograph.ir import Graph, Item, TupleType, Value
from monograph.ops.shape import Slice
from monograph.program.fusion.op_classes import (
    is_join,
    is_kernel,
    is_leaf,
    is_native,
    is_pointwise,
    is_view,
    reads_codes,
    reads_expressions,
)
from monograph.program.fusion.region import Region

Computes = Callable[[Value, int], bool]
"""Whether a kernel computes operand i itself from what that is made of."""
Gathers = Callable[[Value, tuple[int, ...], int], bool]
"""Whether a kernel holds parts of its result together: where columns start, and how many."""


def gathers_nothing(anchor: Value, starts: tuple[int, ...], width: int) -> bool:
    """The answer of targets whose kernels finish a result element by element."""
    return False


def fuse(
    graph: Graph, computes: Computes = reads_codes, gathers: Gathers = gathers_nothing
) -> list[Region]:
    """The regions of a graph, in an order in which they can run."""
    roots = _Roots(graph, computes, gathers)
    regions = [roots.region(v) for v in graph.values if v in roots.stored]
    return [r for r in regions if r is not None]


class _Roots:
    """For every value, the stored values whose kernels compute it."""

    def __init__(self, graph: Graph, computes: Computes, gathers: Gathers) -> None:
        self.computes = computes
        self.gathers = gathers
        self.stored: set[Value] = {_shown(v) for _, v in graph.outputs if not is_leaf(v)}
        self.roots: dict[Value, set[Value]] = {v: set() for v in graph.values}
        self.anchor: dict[Value, Value] = {}
        self.inner: set[Value] = set()
        """Kernels' work that is done inside the kernels that read it."""
        self.users: dict[Value, list[Value]] = {v: [] for v in graph.values}
        for v in graph.values:
            for i in dict.fromkeys(v.inputs):
                self.users[i].append(v)
        for value in reversed(graph.values):
            self._settle(value)

    def _settle(self, value: Value) -> None:
        """Decides whether a value is stored; its users are settled already."""
        if is_leaf(value):
            return
        if value not in self.stored and self._must_store(value):
            self.stored.add(value)
        if value in self.stored:
            self.roots[value] = {value}
        for i, operand in enumerate(value.inputs):
            self.roots[operand] |= self.roots[value]
            if not self._needs_memory(value, i):
                continue
            # A kernel that reads a view reads what the view is of.
            while is_view(operand):
                operand = operand.inputs[0]
            if not is_leaf(operand):
                self.stored.add(operand)

    def _must_store(self, value: Value) -> bool:
        if isinstance(value.op, Item) or is_join(value) or not is_native(value):
            return True
        if not all(map(is_native, value.inputs)):
            return True  # the host makes it, and nothing that uses it has to be there too
        if is_view(value):
            return False
        roots = self.roots[value]
        if self._computed_by_users(value):
            if is_kernel(value):
                self.inner.add(value)
            return False
        if is_pointwise(value):
            return len(roots) != 1 or not self._inlines(value, next(iter(roots)))
        if len(roots) == 1 and self._takes_epilogue(value, next(iter(roots))):
            self.anchor[next(iter(roots))] = value
            return False
        return True

    def _computed_by_users(self, value: Value) -> bool:
        """Whether only kernels that compute it themselves read a value, or views of it."""
        if not self.users[value]:
            return False
        stack = [value]
        while stack:
            current = stack.pop()
            for user in self.users[current]:
                if is_view(user) and user not in self.stored:
                    stack.append(user)
                    continue
                at = [i for i, v in enumerate(user.inputs) if v is current]
                if not is_kernel(user) or not all(self.computes(user, i) for i in at):
                    return False
        return True

    def _inlines(self, value: Value, root: Value) -> bool:
        """Whether computing a value inside a root's kernel computes each element only once."""
        if is_kernel(root):
            return reads_expressions(root) and value.tensor.size == root.inputs[0].tensor.size
        return is_pointwise(root) and value.tensor.size >= root.tensor.size

    def _takes_epilogue(self, value: Value, root: Value) -> bool:
        """Whether the work that leads from a kernel's result to a root can be done with it."""
        if not is_pointwise(root) or root in self.anchor or not is_native(value):
            return False
        if value.tensor.shape != root.tensor.shape:
            starts = part_starts(value, root, self.stored)
            return bool(starts) and self.gathers(value, starts, root.tensor.static[-1])
        # Every path to the root must keep the element's place: no views on the way.
        stack, seen = [root], {root}
        while stack:
            current = stack.pop()
            for v in current.inputs:
                if v is value or v in seen or v in self.stored or is_leaf(v):
                    continue
                if not is_pointwise(v) and _reaches(v, value, self.stored):
                    return False
                seen.add(v)
                if is_pointwise(v):
                    stack.append(v)
        return all(is_pointwise(u) for u in self.users[value])

    def _needs_memory(self, user: Value, operand: int) -> bool:
        if is_join(user) or isinstance(user.op, Item) or not is_native(user):
            return True
        if user in self.inner:
            return True
        if is_kernel(user) and self.computes(user, operand):
            return False
        return is_kernel(user) and not (reads_expressions(user) and operand == 0)

    def region(self, root: Value) -> Region | None:
        """The region that computes a stored value."""
        if isinstance(root.op, Item):
            return None
        body: list[Value] = []
        inputs: dict[Value, None] = {}
        stack: list[tuple[Value, bool]] = [(root, False)]
        done: set[Value] = set()
        while stack:
            value, ready = stack.pop()
            if value in done:
                continue
            if ready:
                done.add(value)
                body.append(value)
                continue
            if value is not root and (value in self.stored or is_leaf(value)):
                done.add(value)
                inputs[value] = None
                continue
            stack.append((value, True))
            stack.extend((v, False) for v in reversed(value.inputs))
        anchor = self.anchor.get(root)
        if anchor is None and (is_kernel(root) or is_join(root)):
            anchor = root
        if isinstance(root.type, TupleType):
            # Its kernel stores each result that anyone uses.
            items = tuple(v for v in self.users[root] if isinstance(v.op, Item))
            return Region(items, tuple(inputs), (*body, *items), anchor)
        return Region((root,), tuple(inputs), tuple(body), anchor)


def _shown(output: Value) -> Value:
    """What is stored for an output: of one that may stay a view, what it shows."""
    while is_view(output) and is_native(output):
        output = output.inputs[0]
    return output


def part_starts(anchor: Value, root: Value, stored: Container[Value]) -> tuple[int, ...]:
    """Where the columns of a result start that a root is made from; none where it is not so.

    Between a result and the root stands only work on single elements, and on every way one slice
    of whole columns, as many as the root has: `silu(y[:, :n]) * y[:, n:]`.
    """
    shape, width = anchor.tensor.static, root.tensor.static[-1:]
    if not width or (*shape[:-1], *width) != root.tensor.static:
        return ()
    starts: set[int] = set()
    # Whether what stands there has all columns, or those of the root.
    stack, seen = [(root, False)], {(root, False)}
    while stack:
        value, wide = stack.pop()
        for v in value.inputs:
            crossed = wide
            if v is anchor and not wide:
                return ()
            if v is anchor or v in stored or is_leaf(v) or not _reaches(v, anchor, stored):
                continue
            if isinstance(v.op, Slice):
                start = _columns(v, width[0])
                if wide or start is None:
                    return ()
                starts.add(start)
                crossed = True
                if v.inputs[0] is anchor:
                    continue
            elif not is_pointwise(v) or v.tensor.static != (shape if wide else root.tensor.static):
                return ()
            if (v, crossed) not in seen:
                seen.add((v, crossed))
                stack.append((v, crossed))
    return tuple(sorted(starts))


def _columns(part: Value, width: int) -> int | None:
    """Where a slice of so many whole columns starts; None for slices of another kind."""
    assert isinstance(part.op, Slice)
    whole = part.inputs[0].tensor.static
    if any(s != 1 for s in part.op.steps) or part.tensor.static != (*whole[:-1], width):
        return None
    return part.op.starts[-1]


def _reaches(start: Value, target: Value, stored: Container[Value]) -> bool:
    """Whether a value that is not stored is computed from another."""
    stack, seen = [start], {start}
    while stack:
        for v in stack.pop().inputs:
            if v is target:
                return True
            if v not in seen and v not in stored and not is_leaf(v):
                seen.add(v)
                stack.append(v)
    return False
