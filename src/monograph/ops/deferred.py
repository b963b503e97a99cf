"""Ops whose attributes are known only at run time, and conditions on sizes (`Require`).

ONNX passes shapes, axes and sizes as tensors. Nearly always they are constants, or become so when
the model's dimensions are bound, and then the canonical op carries them as attributes. Until then
`Deferred` holds the op's name, the attributes that are known, and takes the others as extra
operands. One class serves every op, and one rule (`settle`) turns it into the plain op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, Op, TensorType, Type, Value, from_numpy, known, sample
from monograph.ir.dtype import i64
from monograph.ir.evaluate import check_fits
from monograph.ir.traits import NUMBER, Demand, Known
from monograph.ir.types import holds_open
from monograph.ops.base import as_tensor, same_dtype


@dataclass(frozen=True)
class Deferred(Op):
    """The op `target`, with the attributes in `late` read from the last operands at run time."""

    target: str
    late: tuple[str, ...]
    static: tuple[tuple[str, Any], ...] = ()

    samples = (sample("f32[2, 6]", [3, 4], target="reshape", late=("shape",)),)

    @property
    def pure(self) -> bool:  # type: ignore[override]
        return self.target_class.pure

    @property
    def costly(self) -> bool:  # type: ignore[override]
        return self.target_class.costly

    @property
    def target_class(self) -> type[Op]:
        cls = Op.registry.get(self.target)
        names = {f.name for f in fields(cls)} if cls else set()  # type: ignore[arg-type]
        if cls is None or not {*self.late, *dict(self.static)} <= names:
            raise InferError("no such op, or not its attributes", op=self.target, given=self.late)
        return cls

    def infer(self, *types: Type) -> Type:
        count = len(types) - len(self.late)
        if count < 0:
            raise InferError("too few operands", expected=len(self.late), given=len(types))
        late = dict(zip(self.late, map(as_tensor, types[count:]), strict=True))
        for name, t in late.items():
            self.check_late(name, t)
        static = dict(self.static)
        # The plain ops that it becomes come and go with every run.
        object.__setattr__(self, "_held", self.target_class.holds(static))
        return self.target_class.infer_deferred(static, types[:count], **late)

    def reference(self, *arguments: Any) -> Any:
        count = len(arguments) - len(self.late)
        op = self.settled(arguments[count:])
        data = arguments[:count]
        # Inferring first applies the op's own checks to attributes that are data.
        types = tuple(TensorType(from_numpy(x.dtype), x.shape) for x in data)
        check_fits(op.canonical(*types).infer(*types))
        return op.reference(*data)

    def check_late(self, name: str, given: TensorType) -> None:
        """Refuses an operand that cannot be the attribute: not its kind of number, or its rank."""
        kind = str(next(f.type for f in fields(self.target_class) if f.name == name))  # type: ignore[arg-type]
        if "float" not in kind and not given.dtype.is_integer:
            raise InferError(f"{name} is of integers", op=self.target, given=given)
        if not given.dtype.is_integer and not given.dtype.is_float:
            raise InferError(f"{name} is of numbers", op=self.target, given=given)
        rank = int(kind.startswith("tuple"))
        if given.shape is not None and len(given.shape) != rank:
            form = "vector" if rank else "scalar"
            raise InferError(f"{name} is a {form}", op=self.target, given=given)

    def settled(self, data: tuple[Array, ...]) -> Op:
        """Return the plain op, once the late attributes are known."""
        for name, x in zip(self.late, data, strict=True):
            dtype = i64 if holds_open(x) else from_numpy(x.dtype)
            self.check_late(name, TensorType(dtype, x.shape))
        late = dict(zip(self.late, map(as_attribute, data), strict=True))
        return self.target_class(**dict(self.static), **late)

    def affine(self, value: Value, given: Sequence[Known]) -> Known | None:
        return given[0] if self.target_class.passes else None

    def demands(self, value: Value, given: Sequence[Known]) -> list[Demand]:
        """Return the ranges of the attributes that are operands."""
        count, first = len(given) - len(self.late), value.inputs[0].type
        late = [self.target_class.late_demand(count + i, n, first) for i, n in enumerate(self.late)]
        return [*late, *(Demand(i, NUMBER) for i in range(count))]


def as_attribute(data: Array) -> Any:
    """Return a scalar or vector as an attribute: a number, or a tuple of numbers."""
    listed = np.asarray(data).tolist()
    return tuple(listed) if isinstance(listed, list) else listed


def deferred(
    op: type[Op], inputs: tuple[Value, ...], late: dict[str, Value], **static: Any
) -> Value:
    """`op(**late, **static)(*inputs)`: plain where every late attribute is a constant by now."""
    wrapped = Deferred(op.name, tuple(late), tuple(static.items()))
    data = [known(v) for v in late.values()]
    settled = tuple(d for d in data if d is not None)
    if len(settled) == len(data):
        return wrapped.settled(settled)(*inputs)
    return wrapped(*inputs, *late.values())


def settle(value: Value) -> Value:
    """Return a deferred value whose late operands have become constants, as the plain op."""
    if not isinstance(value.op, Deferred):
        return value
    count = len(value.inputs) - len(value.op.late)
    data = tuple(d for v in value.inputs[count:] if (d := known(v)) is not None)
    if len(data) < len(value.op.late):
        return value
    return value.op.settled(data)(*value.inputs[:count])


@dataclass(frozen=True)
class Require(Op):
    """x itself, where two vectors of sizes agree; where they do not, the run fails.

    Frontends put it where a rule of theirs would otherwise hold for known sizes only.
    """

    rule: str

    samples = (
        sample("f32[2, 3]", [2, 3], [2, 3], rule="sizes agree"),
        sample("i64[0]", 0, 0, rule="sizes agree"),
    )

    def infer(self, x: Type, expected: TensorType, given: TensorType) -> Type:
        if not same_dtype(expected, given).is_integer:
            raise InferError("sizes are integers", given=expected)
        if None not in (expected.shape, given.shape) and expected.rank != given.rank:
            raise InferError("sizes agree in number", expected=expected, given=as_tensor(given))
        return x

    def reference(self, x: Any, expected: Array, given: Array) -> Any:
        if not np.array_equal(expected, given):
            raise ExecutionError(self.rule, expected=expected.tolist(), given=given.tolist())
        return x
