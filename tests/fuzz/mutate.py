"""Mutants of model files: changes to the bytes of a file, and to the structure that it holds."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, NodeProto, TensorProto

INTS = (
    -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 255, 256, 1000, 65536, 10**6, 2**31 - 1, 2**31, 2**32,
    2**40, 2**62, 2**63 - 1, -2, -3, -8, -(2**31), -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "w", "linear", "constant", "reflect", "SAME_UPPER", "\0", "é", "a" * 300)


def mutate(raw: bytes, donor: bytes, rng: random.Random) -> bytes:
    """A mutant of a model; `donor` gives pieces to splice in."""
    if rng.random() < 0.15:
        return mutate_bytes(raw, donor, rng)
    try:
        model = onnx.ModelProto.FromString(raw)
        other = onnx.ModelProto.FromString(donor)
    except DecodeError:
        return mutate_bytes(raw, donor, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate_structure(model, other, rng)
    mutant = model.SerializeToString()
    return mutate_bytes(mutant, donor, rng) if rng.random() < 0.03 else mutant


# Bytes


def mutate_bytes(raw: bytes, donor: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del data[at : at + rng.randrange(1, 17)]
        elif kind == 4:
            start = rng.randrange(len(donor) + 1)
            data[at : at + rng.randrange(33)] = donor[start : start + rng.randrange(65)]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


# Structure


def mutate_structure(model: onnx.ModelProto, donor: onnx.ModelProto, rng: random.Random) -> None:
    messages = _messages(model)
    nodes = [m for m in messages if isinstance(m, NodeProto)]
    tensors = [m for m in messages if isinstance(m, TensorProto)]
    attributes = [m for m in messages if isinstance(m, AttributeProto)]
    choices: list[Any] = [lambda: _any_field(rng.choice(messages), donor, rng)] * 3
    if nodes:
        choices += [
            lambda: _change_op(rng.choice(nodes), rng),
            lambda: _rewire(rng.choice(nodes), nodes, model, rng),
            lambda: _rewire(rng.choice(nodes), nodes, model, rng),
            lambda: _reorder(model.graph.node, rng),
            lambda: _graft(rng.choice(nodes), donor, rng),
        ]
    if model.graph.initializer:
        choices += [lambda: _free_initialiser(model.graph, rng)] * 2
    if tensors:
        choices += [lambda: _spoil_tensor(rng.choice(tensors), rng)] * 3
    if attributes:
        choices += [lambda: _change_attribute(rng.choice(attributes), rng)] * 4
    choices += [lambda: _change_types(model, rng)] * 2
    choices += [lambda: _append(model, donor, rng)] * 4
    choices += [lambda: _change_opset(model, rng)]
    rng.choice(choices)()


def _messages(root: Message) -> list[Message]:
    """Every message of a tree, in a fixed order."""
    found: list[Message] = []
    stack: list[Message] = [root]
    while stack:
        message = stack.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == Field.TYPE_MESSAGE:
                stack.extend(value if _repeated(value) else [value])
    return found


def _repeated(value: Any) -> bool:
    return hasattr(value, "append")


def _scalar(field: Any, rng: random.Random) -> Any:
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == Field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == Field.TYPE_BYTES:
        return rng.choice((b"", b"linear", rng.randbytes(rng.randrange(20))))
    if field.type == Field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    number = rng.choice(INTS)
    if field.type == Field.TYPE_UINT64:
        return abs(number)
    return max(-(2**31), min(2**31 - 1, number)) if field.type == Field.TYPE_INT32 else number


def _any_field(message: Message, donor: Message, rng: random.Random) -> None:
    """Clears, replaces, repeats or shortens some field of a message."""
    fields = message.DESCRIPTOR.fields
    present = [f for f, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else fields)
    value = getattr(message, field.name)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif _repeated(value):
        _spoil_list(value, field, donor, rng)
    elif field.type == Field.TYPE_MESSAGE:
        same = [m for m in _messages(donor) if m.DESCRIPTOR is field.message_type]
        value.CopyFrom(rng.choice(same)) if same else value.SetInParent()
    else:
        setattr(message, field.name, _scalar(field, rng))


def _spoil_list(values: Any, field: Any, donor: Message, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif kind == 1 and len(values):
        _reorder(values, rng)
    elif field.type == Field.TYPE_MESSAGE:
        same = [m for m in _messages(donor) if m.DESCRIPTOR is field.message_type]
        if same:
            values.add().CopyFrom(rng.choice(same))
    elif kind == 2 and len(values):
        values[rng.randrange(len(values))] = _scalar(field, rng)
    else:
        values.append(_scalar(field, rng))


def _reorder(values: Any, rng: random.Random) -> None:
    """Shuffles, drops or repeats items."""
    items = list(values)
    kind = rng.randrange(3)
    if kind == 0:
        rng.shuffle(items)
    elif kind == 1 and items:
        items.pop(rng.randrange(len(items)))
    elif items:
        items.insert(rng.randrange(len(items) + 1), rng.choice(items))
    if items and isinstance(items[0], Message):
        items = [type(m).FromString(m.SerializePartialToString()) for m in items]
    del values[:]
    values.extend(items)


@cache
def _op_names() -> tuple[tuple[str, str], ...]:
    from monograph.frontend.onnx.node import registered

    schemas = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()}
    return tuple(sorted(schemas | set(registered())))


def _change_op(node: NodeProto, rng: random.Random) -> None:
    node.domain, node.op_type = rng.choice(_op_names())


def _rewire(
    node: NodeProto, nodes: list[NodeProto], model: onnx.ModelProto, rng: random.Random
) -> None:
    """Changes, adds or drops an input or output."""
    names = [name for n in nodes for name in n.output]
    names += [i.name for i in model.graph.input] + [t.name for t in model.graph.initializer]
    values = node.input if rng.random() < 0.8 else node.output
    name = rng.choice([*names, "", "nowhere"])
    kind = rng.randrange(4)
    if kind == 0 and len(values):
        del values[rng.randrange(len(values))]
    elif kind == 1 or not len(values):
        values.append(name)
    else:
        values[rng.randrange(len(values))] = name


def _graft(node: NodeProto, donor: onnx.ModelProto, rng: random.Random) -> None:
    """The op and attributes of another model's node, on this node's inputs and outputs."""
    others = [m for m in _messages(donor) if isinstance(m, NodeProto)]
    if others:
        other = rng.choice(others)
        node.op_type, node.domain = other.op_type, other.domain
        del node.attribute[:]
        node.attribute.extend(other.attribute)


def _append(model: onnx.ModelProto, donor: onnx.ModelProto, rng: random.Random) -> None:
    """Another model's node at the end, over whatever this one computes; its results are outputs."""
    others = list(donor.graph.node)
    if not others:
        return
    node = model.graph.node.add()
    node.CopyFrom(rng.choice(others))
    names = [i.name for i in model.graph.input] + [t.name for t in model.graph.initializer]
    names += [name for n in model.graph.node[:-1] for name in n.output]
    mine = {t.name for t in model.graph.initializer}
    for tensor in donor.graph.initializer:
        # Its own constants come along, most of the time: without them few ops accept anything.
        if tensor.name in node.input and tensor.name not in mine and rng.random() < 0.7:
            model.graph.initializer.add().CopyFrom(tensor)
            names.append(tensor.name)
            mine.add(tensor.name)
    for i, name in enumerate(node.input):
        if name and name not in mine and names:
            node.input[i] = rng.choice(names)
    for i, name in enumerate(node.output):
        if name:
            node.output[i] = f"appended{len(model.graph.node)}_{i}"
            model.graph.output.add(name=node.output[i])
    known = {o.domain for o in model.opset_import}
    model.opset_import.extend(o for o in donor.opset_import if o.domain not in known)


def _spoil_tensor(tensor: TensorProto, rng: random.Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        tensor.data_type = rng.choice(TensorProto.DataType.values())
    elif kind == 1:
        _reorder(tensor.dims, rng)
    elif kind == 2 and len(tensor.dims):
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTS)
    elif kind == 3 and tensor.raw_data:
        # Extreme numbers of the same total size: shapes and axes are such tensors.
        count = len(tensor.raw_data) // 8
        numbers = [rng.choice(INTS).to_bytes(8, "little", signed=True) for _ in range(count)]
        tensor.raw_data = b"".join(numbers) + tensor.raw_data[8 * count :]
    elif kind == 4 and tensor.raw_data:
        data = bytearray(tensor.raw_data)
        data[rng.randrange(len(data))] = rng.randrange(256)
        tensor.raw_data = bytes(data)
    elif tensor.int64_data:
        tensor.int64_data[rng.randrange(len(tensor.int64_data))] = rng.choice(INTS)
    else:
        tensor.dims.append(rng.choice((0, 1, 2)))


def _free_initialiser(graph: onnx.GraphProto, rng: random.Random) -> None:
    """A constant becomes an input: what it decides is known only at run time."""
    index = rng.randrange(len(graph.initializer))
    tensor = graph.initializer[index]
    dims: list[int | str | None] = [d if rng.random() < 0.7 else "free" for d in tensor.dims]
    shape = None if rng.random() < 0.1 else dims
    info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
    del graph.initializer[index]
    if tensor.name not in [i.name for i in graph.input]:
        graph.input.append(info)


def _change_attribute(attribute: AttributeProto, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        attribute.type = rng.choice(AttributeProto.AttributeType.values())
    elif attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(INTS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice(TEXTS).encode()
    elif attribute.type == AttributeProto.INTS and len(attribute.ints) and kind < 3:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTS)
    elif attribute.type == AttributeProto.INTS:
        _reorder(attribute.ints, rng)
    elif attribute.type == AttributeProto.FLOATS:
        _reorder(attribute.floats, rng)
    elif attribute.type == AttributeProto.STRINGS:
        _reorder(attribute.strings, rng)
    else:
        attribute.name = rng.choice(("axis", "axes", "to", "mode", "body", attribute.name))


def _change_types(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another element type or shape for an input."""
    if not model.graph.input:
        return
    tensor = rng.choice(model.graph.input).type.tensor_type
    kind = rng.randrange(5)
    dims = tensor.shape.dim
    if kind == 0:
        tensor.elem_type = rng.choice(TensorProto.DataType.values())
    elif kind == 1:
        tensor.ClearField("shape")
    elif kind == 2 and len(dims):
        dims[rng.randrange(len(dims))].dim_value = rng.choice(INTS)
    elif kind == 3 and len(dims):
        dims[rng.randrange(len(dims))].dim_param = rng.choice(("N", "M", ""))
    else:
        _reorder(dims, rng)


def _change_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        entry = rng.choice(model.opset_import)
        entry.version = rng.choice((*range(1, 27), *INTS))
