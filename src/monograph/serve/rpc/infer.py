"""Requests and answers of `ModelInfer`: tensors as raw bytes, or as typed lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from monograph.ir import Array
from monograph.ir.dtype import string
from monograph.serve.datatypes import (
    NAMES,
    checked_shape,
    datatype_of,
    from_bytes,
    texts_of,
    to_bytes,
    type_named,
)  # fmt: skip
from monograph.serve.failures import invalid, unimplemented
from monograph.serve.protocol import InferAnswer, InferCall
from monograph.serve.rpc.messages import MESSAGES

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""The list that holds the elements of each type."""


def parameters_of(given: Any) -> dict[str, Any]:
    """Return parameters as values of Python."""
    found = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("choice")
        if kind is None:
            raise invalid(f"parameter {name!r} has no value")
        found[name] = getattr(parameter, kind)
    return found


def read_call(request: Any) -> tuple[InferCall, bool]:
    """Return a request, and True if its tensors are raw, as those of the answer shall be then."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid(f"{len(request.inputs)} inputs need as many raw contents, got {len(raw)}")
    feeds: dict[str, Array] = {}
    for i, given in enumerate(request.inputs):
        name = given.name
        if not name or name in feeds:
            raise invalid(f"each input must have a name of its own, got {name!r}")
        if "shared_memory_region" in given.parameters:
            raise unimplemented("shared memory")
        dtype = type_named(given.datatype, name)
        shape = checked_shape(list(given.shape), name)
        if raw:
            if given.HasField("contents"):
                raise invalid(f"input {name!r} has both contents and raw contents")
            feeds[name] = from_bytes(memoryview(raw[i]), dtype, shape, name)
        else:
            feeds[name] = _from_contents(given, name, shape)
    outputs = [output.name for output in request.outputs]
    for output in request.outputs:
        if "shared_memory_region" in output.parameters:
            raise unimplemented("shared memory")
        if "classification" in output.parameters:
            raise unimplemented("classification")
    if len(set(outputs)) != len(outputs):
        raise invalid("an output is requested twice")
    call = InferCall(feeds, request.id, outputs, parameters_of(request.parameters))
    return call, bool(raw) or not feeds


def _from_contents(given: Any, name: str, shape: tuple[int, ...]) -> Array:
    """Return an input that is given as a typed list."""
    field = _CONTENTS.get(given.datatype)
    if field is None:
        raise invalid(f"input {name!r}: {given.datatype} must be given as raw contents")
    data = getattr(given.contents, field)
    dtype = type_named(given.datatype, name)
    if dtype is string:
        return texts_of(list(data), shape, name)
    with np.errstate(invalid="ignore"):  # NaN with a sign bit of its own
        found = np.array(data, np.float64 if dtype.is_float else None)
    if len(data) != math.prod(shape):
        raise invalid(
            f"input {name!r}: shape {list(shape)} has {math.prod(shape)} elements, {field} "
            f"{len(data)}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        made = found.astype(dtype.numpy)
    if dtype.is_integer and not np.array_equal(made, found):
        raise invalid(f"input {name!r}: a number is out of the range of {NAMES[dtype]}")
    return made.reshape(shape)


def write_answer(answer: InferAnswer, raw: bool) -> Any:
    """Return the message of an answer."""
    found = MESSAGES["ModelInferResponse"](
        model_name=answer.name, model_version=answer.version, id=answer.id
    )
    for name, array in answer.outputs:
        datatype = datatype_of(array)
        made = found.outputs.add(name=name, datatype=datatype)
        made.shape.extend(array.shape)
        field = None if raw else _CONTENTS.get(datatype)
        if not raw and field is None:
            raise invalid(f"output {name!r}: {datatype} needs raw contents; send raw inputs")
        if field is None:
            found.raw_output_contents.append(bytes(to_bytes(array)))
        elif datatype == "BYTES":
            texts = array.reshape(-1).tolist()
            made.contents.bytes_contents.extend(
                t if isinstance(t, bytes) else str(t).encode() for t in texts
            )
        else:
            getattr(made.contents, field).extend(array.reshape(-1).tolist())
    return found
