"""Fusion: the values that one kernel computes, and those that are stored between kernels.

Stored values are outputs of the graph, operands of kernels that read memory, and parts of a join.
Every other value is computed inside the one kernel that needs it. A pointwise value that several
kernels need is stored once, unless it is a view. Pointwise work of the same shape becomes the
epilogue of a kernel if it is the kernel's only user; if the target allows it, so does work on
column blocks of the result (a gate and the gated half). Values that only kernels read which compute
them themselves are not stored either. A product of one column is fused into the product before it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from monograph.ir import Graph, Item, TupleType, Value
from monograph.ir.dtype import bf16, f16, f32
from monograph.ir.sizes import hint_of, proven, same_sizes
from monograph.ops.linear import Dot
from monograph.ops.shape import Slice
from monograph.program.fusion.op_classes import (
    is_join,
    is_kernel,
    is_leaf,
    is_native,
    is_pointwise,
    is_view,
    reads_expressions,
)
from monograph.program.fusion.region import Region

Computes = Callable[[Value, int], bool]
"""A function that returns True if a kernel computes operand i itself from its sources."""
Gathers = Callable[[Value, tuple[int, ...], int], bool]
"""A function that returns True if a kernel keeps column blocks of its result together, given their
starts and width.
"""


def fuse(graph: Graph, computes: Computes, gathers: Gathers) -> list[Region]:
    """Return the regions of a graph, in an order in which they can run."""
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
        """Kernel ops that are computed inside the kernels that read them."""
        self.users: dict[Value, list[Value]] = {v: [] for v in graph.values}
        for v in graph.values:
            for i in dict.fromkeys(v.inputs):
                self.users[i].append(v)
        for value in reversed(graph.values):
            self._settle(value)

    def _settle(self, value: Value) -> None:
        """Decide whether a value is stored; its users are decided already."""
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
            # A kernel that reads a view reads the source of the view.
            while is_view(operand):
                operand = operand.inputs[0]
            if not is_leaf(operand):
                self.stored.add(operand)

    def _must_store(self, value: Value) -> bool:
        if isinstance(value.op, Item) or is_join(value) or not is_native(value):
            return True
        if not all(map(is_native, value.inputs)):
            return True  # a host step; none of its users runs in the same kernel
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
        """Return True if only kernels that compute a value themselves read it, or its views."""
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
        """Return True if a root's kernel computes each element of an inlined value only once."""
        if is_kernel(root):
            return reads_expressions(root) and proven(
                value.tensor.size, "==", root.inputs[0].tensor.size
            )
        return is_pointwise(root) and hint_of(value.tensor.size) >= hint_of(root.tensor.size)

    def _takes_epilogue(self, value: Value, root: Value) -> bool:
        """Return True if the work from a kernel's result to a root can be its epilogue."""
        if not is_pointwise(root) or root in self.anchor or not is_native(value):
            return False
        if not same_sizes(value.tensor.static, root.tensor.static):
            starts = part_starts(value, root, self.stored)
            return bool(starts) and self.gathers(value, starts, root.tensor.static[-1])
        # Every path to the root must keep the element's index: no views on the way.
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
        """Return the region that computes a stored value."""
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
            # The kernel stores each result that has a user.
            items = tuple(v for v in self.users[root] if isinstance(v.op, Item))
            return Region(items, tuple(inputs), (*body, *items), anchor)
        return Region((root,), tuple(inputs), tuple(body), anchor)


def _shown(output: Value) -> Value:
    """Return the value that is stored for an output: for a view, its source."""
    while is_view(output) and is_native(output):
        output = output.inputs[0]
    return output


def part_starts(anchor: Value, root: Value, stored: Container[Value]) -> tuple[int, ...]:
    """Return the first columns of the blocks that a root is computed from; () if there are none.

    Between a result and the root there are only pointwise ops, and on every path one slice of whole
    columns, as many as the root has: `silu(y[:, :n]) * y[:, n:]`.
    """
    shape, width = anchor.tensor.static, root.tensor.static[-1:]
    if not width or not same_sizes((*shape[:-1], *width), root.tensor.static):
        return ()
    starts: set[int] = set()
    # The flag: True if the value has all columns, False if it has those of the root.
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
            elif not is_pointwise(v) or not same_sizes(
                v.tensor.static, shape if wide else root.tensor.static
            ):
                return ()
            if (v, crossed) not in seen:
                seen.add((v, crossed))
                stack.append((v, crossed))
    return tuple(sorted(starts))


def _columns(part: Value, width: int) -> int | None:
    """Return the first column of a slice of `width` whole columns; None for other slices."""
    assert isinstance(part.op, Slice)
    whole = part.inputs[0].tensor.static
    if any(s != 1 for s in part.op.steps) or part.tensor.static != (*whole[:-1], width):
        return None
    return part.op.starts[-1]


def _reaches(start: Value, target: Value, stored: Container[Value]) -> bool:
    """Return True if a value depends on `target` through values that are not stored."""
    stack, seen = [start], {start}
    while stack:
        for v in stack.pop().inputs:
            if v is target:
                return True
            if v not in seen and v not in stored and not is_leaf(v):
                seen.add(v)
                stack.append(v)
    return False


TYPES = (bf16, f16, f32)
MOST = 1 << 20
"""The most elements of the first product's result: an H200 writes and reads them in the time of a
launch. For more elements, separate kernels (also library calls) are tuned instead.
"""


def merge_narrow(graph: Graph, regions: Sequence[Region]) -> list[Region]:
    """Fuse each product of one column with the product whose result it reads."""
    readers: dict[Value, list[Region]] = {}
    for region in regions:
        for value in region.inputs:
            readers.setdefault(value, []).append(region)
    outputs = {v for _, v in graph.outputs}
    merged: dict[Region, Region] = {}
    for before in regions:
        users = readers.get(before.root, [])
        if len(users) == 1 and before.root not in outputs and _follows(before, users[0]):
            merged[users[0]] = before
    gone = set(merged.values()) - set(merged)
    return [
        _joined(merged[r], r) if r in merged and merged[r] in gone else r
        for r in regions
        if r not in gone
    ]


def inner_product(region: Region) -> Value | None:
    """Return the product inside a region that its anchor, a product of one column, reads."""
    anchor = region.anchor
    if anchor is None or not isinstance(anchor.op, Dot) or anchor.tensor.static[-1] != 1:
        return None
    before = region.body[: region.body.index(anchor)]
    own = anchor.inputs[0]
    if own not in before:
        return None
    return next((v for v in before if _is_product(v) and v.tensor.shape == own.tensor.shape), None)


def _follows(before: Region, after: Region) -> bool:
    """Return True if a region only multiplies the rows of another's result by one column."""
    first, second, own = before.anchor, after.anchor, before.root
    if first is None or second is None or not _is_product(first) or not _is_product(second):
        return False
    if inner_product(before) is not None or len(before.outputs) + len(after.outputs) != 2:
        return False
    if second.inputs[0] is not own or sum(own in v.inputs for v in after.body) != 1:
        return False
    # One product of plain weights, whose result is finished element by element.
    if sum(map(is_kernel, before.body)) != 1 or own.tensor.shape != first.tensor.shape:
        return False
    if first.inputs[1] not in before.inputs:
        return False
    size, rows = own.tensor.static, second.tensor.static
    if own is second.inputs[1] or rows != (*size[:-1], 1):
        return False
    return 0 < own.tensor.size <= MOST


def _is_product(value: Value) -> bool:
    return isinstance(value.op, Dot) and value.dtype in TYPES


def _joined(before: Region, after: Region) -> Region:
    inputs = dict.fromkeys((*before.inputs, *after.inputs))
    del inputs[before.root]
    body = dict.fromkeys((*before.body, *after.body))
    return Region(after.outputs, tuple(inputs), tuple(body), after.anchor)
