"""Makes arrays for the samples of ops: seeded, so that a failure repeats."""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import numpy as np

from monograph.ir import (
    Graph,
    Input,
    MapType,
    Op,
    OptionalType,
    Sample,
    SequenceType,
    TensorType,
    Type,
    Value,
    from_numpy,
    parse_tensor_type,
    parse_type,
)

SEED = int(os.environ.get("MONOGRAPH_TEST_SEED", "0"))
_RANGE = re.compile(r"(.*) in (-?[\d.]+)\.\.(-?[\d.]+)\Z")


def make_input(description: Any, seed: int) -> np.ndarray:
    """An array for one input of a sample: random of a type, or the data given."""
    if not isinstance(description, str):
        array = np.asarray(description)
        # Python floats stand for f32, the type nearly every kernel is for.
        return array.astype(np.float32) if array.dtype == np.float64 else array
    found = _RANGE.match(description)
    text, low, high = found.groups() if found else (description, None, None)
    kind = parse_tensor_type(text)
    generator = np.random.default_rng(seed)
    lo, hi = (float(low), float(high)) if low is not None else (-4.0, 4.0)
    if kind.dtype.kind == "uint" and low is None:
        lo, hi = 0.0, 3.0 if kind.dtype.bits == 2 else 9.0
    if kind.dtype.kind == "int" and kind.dtype.bits == 2 and low is None:
        lo, hi = -2.0, 1.0
    if kind.dtype.kind == "bool":
        return generator.integers(0, 2, kind.static).astype(bool)
    if kind.dtype.is_string:
        return generator.choice(np.array(["a", "bc", "", "dé"], object), kind.static)
    if kind.dtype.is_integer:
        return generator.integers(int(lo), int(hi) + 1, kind.static).astype(kind.dtype.numpy)
    data = generator.uniform(lo, hi, kind.static)
    if kind.dtype.kind == "complex":
        data = data + 1j * generator.uniform(lo, hi, kind.static)
    return data.astype(kind.dtype.numpy)


def make_operand(description: Any, seed: int) -> tuple[Type, Any]:
    """The type and the data of one input: as `make_input`, or a sequence, an optional, a map."""
    if isinstance(description, str) and description.startswith(("seq<", "opt<")):
        kind = parse_type(description)
        assert isinstance(kind, (SequenceType, OptionalType))
        made = [make_operand(str(kind.element), seed + i)[1] for i in range(3)]
        return kind, made if isinstance(kind, SequenceType) else made[0]
    if isinstance(description, str) and description.startswith("map<"):
        kind = parse_type(description)
        assert isinstance(kind, MapType)
        keys = ["a", "bc", "dé"] if kind.key.is_string else [5, 2, 7]
        values = make_input(f"{kind.value}[3]", seed).tolist()
        return kind, dict(zip(keys, values, strict=True))
    array = make_input(description, seed)
    return TensorType(from_numpy(array.dtype), array.shape), array


def sample_graph(op: type[Op], sample: Sample) -> tuple[Graph, dict[str, Any]]:
    """The sample as a graph of one op, and arrays to feed it."""
    seed = SEED + zlib.crc32(f"{op.name} {sample}".encode()) % 100_000
    operands = [make_operand(d, seed + i) for i, d in enumerate(sample.inputs)]
    inputs: list[Value] = [Input(f"x{i}", t)() for i, (t, _) in enumerate(operands)]
    value = op(**sample.attributes)(*inputs)
    items = getattr(value.type, "items", None)
    if items is None:
        outputs: tuple[tuple[str, Value], ...] = (("y", value),)
    else:
        from monograph.ir import unpack

        outputs = tuple((f"y{i}", v) for i, v in enumerate(unpack(value)))
    return Graph(tuple(inputs), outputs), {f"x{i}": x for i, (_, x) in enumerate(operands)}
