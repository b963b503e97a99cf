"""The transpose of a convolution: each input element spreads a kernel over the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from monograph.errors import ExecutionError, InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    Narrowing,
    Op,
    Shape,
    TensorType,
    Type,
    Value,
    from_numpy,
    sample,
)
from monograph.ir.dtype import FLOAT
from monograph.ir.layout import LayoutPlan
from monograph.ir.traits import known_product
from monograph.ops import window as wi
from monograph.ops.base import as_tensor, check_kinds, narrow, same_dtype


@dataclass(frozen=True)
class ConvTranspose(Op):
    """y[n, o, s * strides + k * dilations - pads_begin] += x[n, c, s] * w[c, o, k].

    x is [N, C, *S] and w is [C, O/groups, *K]; `pads` crop the result and `output_padding` adds
    zeros at its end. A `sizes` (the spatial shape of the result) or an `auto` mode determines the
    padding by the input's size, and is resolved as soon as that is known. With the layout
    "channels_last" x and the result are [N, *S, C]; weights keep their form (see `Conv`).
    """

    strides: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1
    sizes: tuple[int, ...] | None = None
    auto: str = ""
    layout: str = wi.CHANNELS_FIRST

    narrowing = Narrowing.LAYER
    contracts = linear = True
    costly = True
    samples = (
        sample(
            "f32[2, 3, 3, 4]", "f32[3, 2, 3, 2]",
            strides=(2, 1), pads_begin=(1, 0), pads_end=(0, 1), dilations=(1, 2),
            output_padding=(1, 0),
        ),
        sample(
            "f32[1, 4, 3]", "f32[4, 3, 2]",
            strides=(3,), pads_begin=(0,), pads_end=(0,), dilations=(1,), output_padding=(0,),
            groups=2, sizes=(10,),
        ),
        sample(
            "f32[1, 1, 3, 3]", "f32[1, 2, 3, 3]",
            strides=(2, 2), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1),
            output_padding=(0, 0), auto=wi.SAME_UPPER,
        ),
        sample(
            "f32[2, 3, 4, 3]", "f32[3, 2, 3, 2]",
            strides=(2, 1), pads_begin=(1, 0), pads_end=(0, 1), dilations=(1, 2),
            output_padding=(1, 0), layout=wi.CHANNELS_LAST,
        ),
    )  # fmt: skip

    def canonical(self, *types: Type) -> Op:
        if len(types) != 2 or (self.sizes is None and not self.auto):
            return self
        x, w = map(as_tensor, types)
        x = wi.type_channels_first(x, self.layout)
        self._check(x, w)
        if not all(isinstance(d, int) for d in (*x.dims[2:], *w.dims[2:])):
            return self
        sizes = self.sizes
        if sizes is None:
            sizes = tuple(int(d) * s for d, s in zip(x.dims[2:], self.strides, strict=True))
        pads, extra = [], []
        for size, full in zip(sizes, self._full(x.dims[2:], w.dims[2:]), strict=True):
            total = int(full) - size
            pads.append(wi.split_padding(max(0, total), self.auto))
            extra.append(max(0, -total))
        return replace(
            self,
            pads_begin=tuple(p[0] for p in pads),
            pads_end=tuple(p[1] for p in pads),
            output_padding=tuple(map(int.__add__, self.output_padding, extra)),
            sizes=None,
            auto="",
        )

    def _full(self, sizes: Shape, kernel: Shape) -> Shape:
        """Return the spatial shape before cropping."""
        full: list[Dim] = []
        axes = zip(sizes, kernel, self.strides, self.dilations, self.output_padding, strict=True)
        for size, k, stride, dilation, extra in axes:
            if not isinstance(size, int) or not isinstance(k, int):
                full.append(UNKNOWN)
            else:
                full.append(max(0, (size - 1) * stride + wi.extent(k, dilation)) + extra)
        return tuple(full)

    def _check(self, x: TensorType, w: TensorType) -> None:
        check_kinds(same_dtype(x, w), (FLOAT,))
        if x.rank < 3 or w.rank != x.rank:
            raise InferError(
                "a convolution takes x[N, C, *spatial] and w of the same rank, 3 or more",
                expected=x,
                given=w,
            )
        wi.check_window(
            x.rank - 2,
            strides=self.strides,
            dilations=self.dilations,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
            auto=self.auto,
        )
        wi.check_kernel(w.dims[2:])
        for name, given in (("output_padding", self.output_padding), ("sizes", self.sizes)):
            if given is not None and (len(given) != x.rank - 2 or min(given) < 0):
                raise InferError(
                    f"{name}: one number a spatial axis, none negative",
                    expected=x.rank - 2,
                    given=list(given),
                )
        channels = x.dims[1]
        if self.groups < 1 or (isinstance(channels, int) and channels % self.groups):
            raise InferError(
                "channels do not divide into groups", expected=self.groups, given=channels
            )
        if isinstance(channels, int) and isinstance(w.dims[0], int) and channels != w.dims[0]:
            raise InferError("channels do not fit the weights", expected=w.dims[0], given=channels)

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        x = wi.type_channels_first(x, self.layout)
        self._check(x, w)
        spatial: list[Dim] = []
        pads = map(int.__add__, self.pads_begin, self.pads_end)
        axes = zip(x.dims[2:], self._full(x.dims[2:], w.dims[2:]), pads, strict=True)
        for i, (size, full, cropped) in enumerate(axes):
            if self.sizes is not None:
                spatial.append(self.sizes[i])
            elif self.auto:
                spatial.append(size if self.strides[i] == 1 else UNKNOWN)
            else:
                spatial.append(max(0, full - cropped) if isinstance(full, int) else UNKNOWN)
        per_group = w.dims[1]
        results = per_group * self.groups if isinstance(per_group, int) else UNKNOWN
        return wi.type_in_layout(x.with_shape((x.dims[0], results, *spatial)), self.layout)

    def batch_axis(self, index: int, axis: int, *types: TensorType) -> int | None:
        return 0 if index == 0 and axis == 0 else None

    def reference(self, x: Array, w: Array) -> Array:
        op = self.canonical(*(TensorType(from_numpy(a.dtype), a.shape) for a in (x, w)))
        assert isinstance(op, ConvTranspose)
        x = wi.channels_first(x, self.layout)
        if x.shape[1] != w.shape[0]:
            raise ExecutionError(
                "channels do not fit the weights", expected=w.shape[0], given=x.shape
            )
        full = tuple(map(int, op._full(x.shape[2:], w.shape[2:])))
        count, groups, per_group = x.shape[0], self.groups, w.shape[1]
        kept = (f - b - e for f, b, e in zip(full, op.pads_begin, op.pads_end, strict=True))
        used = x.size + count * groups * per_group * math.prod(max(0, k) for k in kept)
        wi.check_padding((count, groups * per_group, *full), used)
        y = np.zeros((count, groups * per_group, *full))
        # Sizes in full: where one of them is 0, numpy cannot tell what is left for another.
        per_input = x.shape[1] // groups
        places = math.prod(x.shape[2:])
        flat = x.astype(np.float64).reshape(count, groups, per_input, places)
        kernel = w.astype(np.float64).reshape(groups, per_input, *w.shape[1:])
        for place in np.ndindex(*w.shape[2:] if y.size and x.size else (0,)):
            weights = kernel[(..., *place)].transpose(0, 2, 1)
            part = np.matmul(weights, flat).reshape(count, groups * per_group, *x.shape[2:])
            y[(slice(None), slice(None), *op._places(place, x.shape[2:]))] += part
        crop = (
            slice(b, max(b, size - e))
            for b, e, size in zip(op.pads_begin, op.pads_end, full, strict=True)
        )
        cropped = narrow(y[(slice(None), slice(None), *crop)], from_numpy(x.dtype))
        return wi.in_layout(cropped, self.layout)

    def _places(self, place: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the places of the results of one element of the kernel."""
        return tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(place, self.dilations, sizes, self.strides, strict=True)
        )

    def layer_plan(self, value: Value) -> LayoutPlan | None:
        return wi.channels_last_plan(value, self.layout)

    def accumulation_length(self, *types: TensorType) -> int:
        """Return the terms of a sum: only every stride-th element of a kernel meets a result."""
        w = types[1]
        kernel = zip(w.dims[2:], self.strides, strict=True)
        places = [-(-k // s) for k, s in kernel if isinstance(k, int)]
        return known_product(w.dims[:1]) // self.groups * math.prod(places)
