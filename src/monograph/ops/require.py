"""Conditions on sizes that are known at run time only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import Array, Op, TensorType, Type, sample
from monograph.ops.base import as_tensor, same_dtype


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
