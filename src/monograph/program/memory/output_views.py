"""Outputs that are views of a product: the product is written directly into them.

Otherwise such an output needs a kernel that only copies. A store in another order costs more than
one in a row; it pays as long as it costs less than a launch.
"""

from __future__ import annotations

from collections import Counter

from monograph.ir import Graph, Value
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape, Squeeze, Transpose, Unsqueeze
from monograph.program.fusion.op_classes import is_native, is_pointwise, is_view
from monograph.program.index import split_strides, strides_of

Strides = tuple[int, ...]
TURNED = 1 << 16
"""The most elements stored out of order: each writes a sector of 32 bytes.

A launch after another takes 0.64 us on an H200, in which its cache accepts 100,000 sectors.
"""


def product_ends(graph: Graph) -> frozenset[Value]:
    """Return the outputs that are views of a product's epilogue and can be written directly."""
    users = Counter(i for v in graph.values for i in v.inputs)
    users.update(v for _, v in graph.outputs)
    donated = {name for name, _ in graph.donations}
    return frozenset(
        value for name, value in graph.outputs if name not in donated and _is_end(value, users)
    )


def written_through(value: Value) -> tuple[Value, Strides] | None:
    """Return the source of a view, and its strides in the view's own memory.

    None for a value that is no view, and for views that drop or repeat elements.
    """
    if not is_view(value) or not is_native(value):
        return None
    strides = strides_of(value.tensor.static)
    while is_view(value):
        op, shape = value.op, value.tensor.static
        value = value.inputs[0]
        before = value.tensor.static
        found: Strides | None = None
        if isinstance(op, Transpose):
            found = tuple(strides[op.permutation.index(d)] for d in range(len(before)))
        elif isinstance(op, (Reshape, Squeeze, Unsqueeze)):
            in_a_row = strides == strides_of(shape)
            found = strides_of(before) if in_a_row else split_strides(shape, strides, before)
        if found is None:
            return None
        strides = found
    return value, strides


def _is_end(value: Value, users: Counter[Value]) -> bool:
    found = written_through(value)
    if found is None:
        return False
    source, strides = found
    while value is not source:
        if users[value] != 1:
            return False
        value = value.inputs[0]
    size = source.tensor.size
    in_a_row = strides == strides_of(source.tensor.static)
    return (in_a_row or 0 < size <= TURNED) and users[source] == 1 and _follows(source, users)


def _follows(source: Value, users: Counter[Value]) -> bool:
    """Return True for a product, or for pointwise work on one without other users."""
    body: dict[Value, None] = {}
    products: dict[Value, None] = {}
    stack = [source]
    while stack:
        value = stack.pop()
        if isinstance(value.op, Dot):
            products[value] = None
        elif is_pointwise(value) and value not in body:
            body[value] = None
            stack += [v for v in value.inputs if _shape(v) == _shape(source)]
    inside = Counter(i for v in body for i in v.inputs)
    inside[source] += 1  # the view
    return len(products) == 1 and all(users[v] == inside[v] for v in (*products, *body))


def _shape(value: Value) -> tuple[int, ...] | None:
    return value.tensor.static if is_native(value) else None
