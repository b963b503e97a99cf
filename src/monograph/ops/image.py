"""Images sampled at places that are data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monograph.errors import InferError
from monograph.ir import Array, Dim, Op, TensorType, from_numpy, sample
from monograph.ir.dtype import FLOAT
from monograph.ir.types import merge_dims
from monograph.ops.base import NUMERIC, as_tensor, check_allocation, check_kinds
from monograph.ops.interpolate import (
    BORDER,
    CUBIC,
    LINEAR,
    MIRROR,
    NEAREST,
    REFLECT,
    TAPS,
    ZEROS,
    sample_at,
    sampling_gain,
)


@dataclass(frozen=True)
class GridSample(Op):
    """x[N, C, *S] read at the places in grid[N, *P, D]: [N, C, *P].

    A place is D coordinates, that of the last axis first, from -1 to 1 over the axis: between the
    centres of the first and last elements with `align_corners`, else between their outer edges.
    `outside` is "zeros", "border" or "reflect".
    """

    mode: str = LINEAR
    outside: str = ZEROS
    align_corners: bool = False

    costly = True
    samples = (
        sample("f32[1, 2, 4, 5]", "f32[1, 3, 2, 2] in -1.5..1.5"),
        sample("f32[2, 1, 4, 5]", "f32[2, 3, 2, 2] in -2..2", mode=NEAREST, outside=BORDER),
        sample("f32[1, 2, 4, 5]", "f32[1, 3, 2, 2] in -3..3", mode=CUBIC, outside=REFLECT),
        sample(
            "f32[1, 2, 3, 4, 2]", "f32[1, 2, 3, 2, 3] in -2..2",
            outside=REFLECT, align_corners=True,
        ),
    )  # fmt: skip

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, NUMERIC)
        check_kinds(as_tensor(grid).dtype, (FLOAT,))
        if self.mode not in (NEAREST, LINEAR, CUBIC) or self.outside not in (
            ZEROS,
            BORDER,
            REFLECT,
        ):
            raise InferError("unknown mode", given=(self.mode, self.outside))
        if x.rank < 3 or grid.rank != x.rank:
            raise InferError("x[N, C, *S] and a grid of the same rank", expected=x, given=grid)
        count = grid.dims[-1]
        if isinstance(count, int) and count != x.rank - 2:
            raise InferError("one coordinate an axis", expected=x.rank - 2, given=grid)
        batch: Dim = merge_dims(x.dims[0], grid.dims[0])
        return x.with_shape((batch, x.dims[1], *grid.dims[1:-1]))

    def reference(self, x: Array, grid: Array) -> Array:
        shape = (*x.shape[:2], *grid.shape[1:-1])
        check_allocation(shape, np.float64)
        places = []
        for i, size in enumerate(x.shape[2:]):
            g = grid[..., x.ndim - 3 - i].astype(np.float64)[:, None]
            places.append(
                (g + 1) / 2 * (size - 1) if self.align_corners else ((g + 1) * size - 1) / 2
            )
        turned = MIRROR if self.align_corners and self.outside == REFLECT else self.outside
        y = sample_at(x.astype(np.float64)[:, None], places, self.mode, turned)
        return y.reshape(shape).astype(from_numpy(x.dtype).numpy)

    def accumulation_length(self, *types: TensorType) -> int:
        return int(TAPS.get(self.mode, 1) ** (types[0].rank - 2))

    def operand_gain(self, index: int, *types: TensorType) -> float:
        return sampling_gain(types[0]) if index == 1 else 1.0
