"""Requests and answers of `infer` over HTTP: JSON, and Triton's binary tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from monograph.ir import Array, DType
from monograph.serve.datatypes import (
    checked_shape,
    datatype_of,
    from_bytes,
    from_json,
    to_bytes,
    to_json,
    type_named,
)  # fmt: skip
from monograph.serve.failures import invalid, unimplemented
from monograph.serve.protocol import InferAnswer, InferCall

HEADER_LENGTH = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class InputPlan:
    """One input as the JSON of a request describes it."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    size: int | None
    """The bytes of its binary data; None if its data are in the JSON."""
    data: Any


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The part of a request that its JSON tells: all but the binary data."""

    inputs: tuple[InputPlan, ...]
    id: str
    outputs: tuple[str, ...]
    binary: Mapping[str, bool]
    """The outputs that shall be binary; "" for the default."""
    parameters: Mapping[str, Any]

    def feeds(self, body: memoryview, at: int) -> dict[str, Array]:
        """Return the inputs; the binary data begin at a place of the body."""
        feeds: dict[str, Array] = {}
        for given in self.inputs:
            name, size = given.name, given.size
            if size is None:
                feeds[name] = from_json(given.data, given.dtype, given.shape, name)
                continue
            if size > len(body) - at:
                raise invalid(
                    f"input {name!r}: binary_data_size must be a size within the body, got {size}"
                )
            feeds[name] = from_bytes(body[at : at + size], given.dtype, given.shape, name)
            at += size
        if at != len(body):
            raise invalid(f"{len(body) - at} bytes of the body belong to no input")
        return feeds


def read_call(body: bytes, header_length: str | None) -> tuple[InferCall, Mapping[str, bool]]:
    """Return the request of a body, and the outputs that shall be binary ("" for the default)."""
    whole = memoryview(body)
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length) > len(body):
            raise invalid(
                f"{HEADER_LENGTH} must be a length within the body, got {header_length[:20]!r}"
            )
        length = int(header_length)
    plan = read_plan(whole[:length])
    feeds = plan.feeds(whole, length)
    return InferCall(feeds, plan.id, plan.outputs, plan.parameters), plan.binary


def read_plan(text: bytes | memoryview) -> CallPlan:
    """Return what the JSON of a request tells."""
    try:
        call = orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise invalid(f"the request is no JSON: {e}") from None
    if not isinstance(call, dict):
        raise invalid("the request must be a JSON object")
    parameters = _parameters(call, "the request")
    inputs = _inputs(call)
    outputs, binary = _outputs(call)
    binary[""] = _flag(parameters, "binary_data_output")
    id_ = call.get("id", "")
    if not isinstance(id_, str):
        raise invalid(f"id must be a text, got {id_!r}")
    return CallPlan(inputs, id_, tuple(outputs), binary, parameters)


def _inputs(call: dict[str, Any]) -> tuple[InputPlan, ...]:
    found: dict[str, InputPlan] = {}
    for given in _list_of(call, "inputs", required=True):
        name = given.get("name")
        if not isinstance(name, str) or name in found:
            raise invalid(f"each input must have a name of its own, got {name!r}")
        dtype = type_named(given.get("datatype"), name)
        shape = checked_shape(given.get("shape"), name)
        parameters = _parameters(given, f"input {name!r}")
        if "shared_memory_region" in parameters:
            raise unimplemented("shared memory")
        size = parameters.get("binary_data_size")
        if size is not None and "data" in given:
            raise invalid(f"input {name!r} has data both in JSON and in binary")
        if size is not None and (type(size) is not int or size < 0):
            raise invalid(
                f"input {name!r}: binary_data_size must be a size within the body, got {size!r}"
            )
        found[name] = InputPlan(name, dtype, shape, size, given.get("data"))
    return tuple(found.values())


def _outputs(call: dict[str, Any]) -> tuple[list[str], dict[str, bool]]:
    names: list[str] = []
    binary: dict[str, bool] = {}
    for given in _list_of(call, "outputs"):
        name = given.get("name")
        if not isinstance(name, str) or name in names:
            raise invalid(f"each output must have a name of its own, got {name!r}")
        parameters = _parameters(given, f"output {name!r}")
        if "shared_memory_region" in parameters:
            raise unimplemented("shared memory")
        if parameters.get("classification"):
            raise unimplemented("classification")
        if "binary_data" in parameters:
            binary[name] = _flag(parameters, "binary_data")
        names.append(name)
    return names, binary


def _list_of(call: dict[str, Any], name: str, required: bool = False) -> list[dict[str, Any]]:
    found = call.get(name, None if required else [])
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise invalid(f"{name} must be a list of objects")
    return found


def _parameters(given: dict[str, Any], place: str) -> dict[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise invalid(f"the parameters of {place} must be an object")
    return found


def _flag(parameters: dict[str, Any], name: str) -> bool:
    found = parameters.get(name, False)
    if not isinstance(found, bool):
        raise invalid(f"parameter {name!r} must be true or false, got {found!r}")
    return found


def write_answer(
    answer: InferAnswer, binary: Mapping[str, bool]
) -> tuple[list[bytes | memoryview], int | None]:
    """Return the parts of the body, and the length of its JSON if binary data follow."""
    listed: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = [b""]
    for name, array in answer.outputs:
        entry: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
        }
        if binary.get(name, binary[""]):
            data = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            parts.append(data)
        else:
            entry["data"] = to_json(array, name)
        listed.append(entry)
    found: dict[str, Any] = {"model_name": answer.name, "model_version": answer.version}
    if answer.id:
        found["id"] = answer.id
    found["outputs"] = listed
    parts[0] = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
    return parts, len(parts[0]) if len(parts) > 1 else None
