"""The reference evaluator: it runs each op's numpy reference in order and frees values early.

It is the oracle for everything else, so it is plain: no fusion, no cleverness, no recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, MonographError, unforeseen
from monograph.ir.dtype import from_numpy
from monograph.ir.graph import Graph, input_op
from monograph.ir.memory import check_result, check_room
from monograph.ir.op import Constant, Value
from monograph.ir.types import TensorType, TupleType, Type

Observer = Callable[[Value, Any], None]


def evaluate(
    graph: Graph,
    feeds: Mapping[str, Any] | Sequence[Any],
    observe: Observer | None = None,
) -> list[Any]:
    """Return the outputs of a graph, in order. `observe` is called with each computed value."""
    if not isinstance(feeds, Mapping):
        feeds = dict(zip(graph.input_names, feeds, strict=True))
    remaining = dict(graph.uses)
    results: dict[Value, Any] = {v: feeds[input_op(v).label] for v in graph.inputs}
    with np.errstate(all="ignore"):
        for value in graph.values:
            if value not in results:
                results[value] = _apply(graph, value, [results[v] for v in value.inputs])
            if observe is not None:
                observe(value, results[value])
            for v in value.inputs:
                remaining[v] -= 1
                if remaining[v] == 0:
                    del results[v]
    return [results[v] for _, v in graph.outputs]


def apply(value: Value, arguments: Sequence[Any]) -> Any:
    """The result of one value's op on data."""
    with np.errstate(all="ignore"):
        return value.op.reference(*arguments)


def check_fits(type_: Type) -> None:
    """Raise an error if the machine cannot hold a result of this type."""
    if isinstance(type_, TupleType):
        for item in type_.items:
            check_fits(item)
    elif isinstance(type_, TensorType) and type_.is_static:
        check_result(type_.static, type_.dtype.itemsize)


def _apply(graph: Graph, value: Value, arguments: Sequence[Any]) -> Any:
    try:
        if not isinstance(value.op, Constant):
            check_fits(value.type)
            check_room(sum(map(_computing_bytes, [value.type, *arguments])))
        return value.op.reference(*arguments)
    except MonographError as e:
        raise e.at(node=graph.origin(value), op=value.op.name) from None
    except MemoryError:
        raise ExecutionError(
            "out of memory", node=graph.origin(value), op=value.op.name, given=value.type
        ) from None
    except (ValueError, LookupError, TypeError, ArithmeticError) as e:
        refused = _refusal(value, arguments)
        if refused is not None:
            raise ExecutionError(
                refused.message,
                node=graph.origin(value),
                op=f"{value.op.name}({', '.join(map(_describe, arguments))})",
                expected=refused.expected,
                given=refused.given,
            ) from e
        raise ExecutionError(
            "the op cannot be computed", node=graph.origin(value), op=value.op.name, **unforeseen(e)
        ) from e


def _computing_bytes(operand: Any) -> int:
    """Return the bytes of an operand or result during computation; floats are widened."""
    if isinstance(operand, TensorType) and operand.is_static:
        return operand.size * max(operand.dtype.itemsize, operand.dtype.compute.itemsize)
    if isinstance(operand, np.ndarray) and operand.dtype != object:
        widened = from_numpy(operand.dtype).compute.itemsize
        return operand.size * widened if widened > operand.itemsize else 0
    return 0


def _refusal(value: Value, arguments: Sequence[Any]) -> MonographError | None:
    """Return the error of the op's type rule on the shapes now known; None if it accepts them."""
    types = [
        TensorType(from_numpy(x.dtype), x.shape) if isinstance(x, np.ndarray) else v.type
        for x, v in zip(arguments, value.inputs, strict=True)
    ]
    try:
        value.op.canonical(*types).infer(*types)
    except MonographError as e:
        return e
    except (TypeError, AttributeError):
        return None
    return None


def _describe(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        return f"{from_numpy(argument.dtype)}{[*argument.shape]}"
    return type(argument).__name__
