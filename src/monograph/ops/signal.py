"""Signals: Fourier transforms, frames of a signal, mel filters.

Complex numbers are a last dimension of 2, real ones a last dimension of 1, as in ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monograph.errors import InferError
from monograph.ir import (
    UNKNOWN,
    Array,
    Dim,
    DType,
    Narrowing,
    Op,
    TensorType,
    Type,
    from_numpy,
    sample,
)
from monograph.ir.dtype import FLOAT, f32
from monograph.ir.traits import SUMS_MANY, known_product
from monograph.ops.base import (
    NUMERIC,
    as_tensor,
    check_allocation,
    check_kinds,
    narrow,
    normalise_axis,
    widen,
)


@dataclass(frozen=True)
class Dft(Op):
    """The discrete Fourier transform along an axis of x[..., 1 or 2].

    The signal is cut or filled with zeros to `length`. With `onesided` a spectrum is only its first
    length // 2 + 1 bins, of which the inverse makes a real signal.
    """

    axis: int
    length: int | None = None
    inverse: bool = False
    onesided: bool = False

    narrowing = Narrowing.KEPT
    kept_reason = SUMS_MANY
    wide_range = linear = True
    costly = True
    samples = (
        sample("f32[2, 5, 1]", axis=1),
        sample("f32[2, 5, 3, 2]", axis=-3, length=8),
        sample("f32[2, 5, 2]", axis=1, inverse=True),
        sample("f32[2, 6, 1]", axis=1, onesided=True),
        sample("f32[2, 4, 2]", axis=1, onesided=True, inverse=True, length=7),
    )

    def canonical(self, *types: Type) -> Op:
        if len(types) != 1:
            return self
        x = as_tensor(types[0])
        axis = normalise_axis(self.axis, x.rank)
        length, size = self.length, x.dims[axis]
        if length is None and isinstance(size, int):
            length = self._default_length(size)
        return replace(self, axis=axis, length=length)

    def _default_length(self, size: int) -> int:
        return 2 * (size - 1) if self.inverse and self.onesided else size

    def infer(self, x: TensorType) -> TensorType:
        return self._infer(x, self.axis)

    def _infer(self, x: TensorType, axis: int | None) -> TensorType:
        check_kinds(as_tensor(x).dtype, (FLOAT,))
        parts = x.dims[-1] if x.rank >= 2 else 0
        if isinstance(parts, int) and parts not in (1, 2):
            raise InferError("a last dimension of 1 (real) or 2 (complex) is needed", given=x)
        if self.onesided and parts == (1 if self.inverse else 2):
            raise InferError(
                "one side of a spectrum belongs to a real signal",
                expected=2 if self.inverse else 1,
                given=x,
            )
        shape: list[Dim] = [*x.dims[:-1], 1 if self.inverse and self.onesided else 2]
        if axis is None:
            return x.with_shape((*(UNKNOWN,) * (x.rank - 1), shape[-1]))
        if axis % x.rank == x.rank - 1:
            raise InferError("the last axis holds the parts of a number", given=axis)
        shape[axis] = self._bins(x.dims[axis])
        return x.with_shape(shape)

    def _bins(self, size: Dim) -> Dim:
        length: Dim = size if self.length is None else self.length
        if self.length is None and self.inverse and self.onesided:
            length = self._default_length(size) if isinstance(size, int) else UNKNOWN
        if isinstance(length, int) and length < 1:
            raise InferError("a transform needs a length of 1 or more", given=length)
        if self.onesided and not self.inverse:
            return length // 2 + 1 if isinstance(length, int) else UNKNOWN
        return length

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        axis = normalise_axis(self.axis, x.ndim)
        length = self._default_length(x.shape[axis]) if self.length is None else self.length
        check_allocation((*x.shape[:axis], length, *x.shape[axis + 1 :]), np.complex128)
        if self.inverse and self.onesided:
            spectrum = wide[..., 0] + 1j * wide[..., 1]
            return narrow(np.fft.irfft(spectrum, length, axis)[..., None], from_numpy(x.dtype))
        if self.onesided:
            y = np.fft.rfft(wide[..., 0], length, axis)
        else:
            signal = wide[..., 0] + (1j * wide[..., 1] if x.shape[-1] == 2 else 0)
            y = (np.fft.ifft if self.inverse else np.fft.fft)(signal, length, axis)
        return narrow(np.stack([y.real, y.imag], -1), from_numpy(x.dtype))

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        if "axis" in late:
            return cls(0, **static)._infer(x, None)
        result = as_tensor(cls(**static).infer(x))
        axis = normalise_axis(static["axis"], x.rank)
        return result.with_shape(UNKNOWN if i == axis else d for i, d in enumerate(result.dims))

    def accumulation_length(self, *types: TensorType) -> int:
        return known_product([types[0].dims[self.axis] if self.length is None else self.length])

    def error_scale(self, result: Array, *operands: Array) -> Array:
        """A fast transform sums all of a row for each of its elements."""
        y = np.abs(widen(result))
        return np.asarray(y + np.sqrt(np.mean(y**2, axis=(self.axis, -1), keepdims=True)))


@dataclass(frozen=True)
class Frames(Op):
    """Pieces of `length` along an axis, one every `step`: [..., L, ...] -> [..., F, length, ...].

    What is left at the end and too short for a frame is dropped.
    """

    axis: int
    length: int
    step: int

    view = linear = True
    rounds = False
    samples = (
        sample("f32[2, 9]", axis=1, length=4, step=2),
        sample("f32[7, 2]", axis=0, length=3, step=3),
        sample("i64[3]", axis=0, length=3, step=5),
    )

    def canonical(self, *types: Type) -> Op:
        return replace(self, axis=normalise_axis(self.axis, as_tensor(types[0]).rank))

    def infer(self, x: TensorType) -> TensorType:
        check_kinds(as_tensor(x).dtype, NUMERIC)
        if self.length < 1 or self.step < 1:
            raise InferError(
                "frames have a length and a step of 1 or more", given=(self.length, self.step)
            )
        size = x.dims[self.axis]
        count: Dim = UNKNOWN
        if isinstance(size, int):
            if size < self.length:
                raise InferError(
                    "the signal is shorter than a frame", expected=self.length, given=x
                )
            count = (size - self.length) // self.step + 1
        return x.with_shape((*x.dims[: self.axis], count, self.length, *x.dims[self.axis + 1 :]))

    def reference(self, x: Array) -> Array:
        axis = normalise_axis(self.axis, x.ndim)
        view = np.lib.stride_tricks.sliding_window_view(x, self.length, axis)
        frames = np.moveaxis(view, -1, axis + 1)
        return frames[(slice(None),) * axis + (slice(None, None, self.step),)]

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        x = as_tensor(types[0])
        axis = normalise_axis(static["axis"], x.rank)
        length: Dim = static.get("length", UNKNOWN)
        return x.with_shape((*x.dims[:axis], UNKNOWN, length, *x.dims[axis + 1 :]))


@dataclass(frozen=True)
class MelWeights(Op):
    """The matrix [dft_length // 2 + 1, bins] that turns a spectrum into one on the mel scale.

    Each column is a triangle between three of bins + 2 frequencies, evenly spaced in mel from
    `lower` on in steps of (upper - lower) / (bins + 2), and rounded down to bins of the spectrum.
    """

    bins: int
    dft_length: int
    sample_rate: int
    lower: float
    upper: float
    of: DType = f32

    samples = (
        sample(bins=8, dft_length=16, sample_rate=8192, lower=0.0, upper=4096.0),
        sample(bins=3, dft_length=64, sample_rate=16000, lower=125.0, upper=7500.0),
    )

    def infer(self) -> TensorType:
        if self.bins < 1 or self.dft_length < 1 or self.sample_rate < 1:
            raise InferError(
                "counts and rates are positive",
                given=(self.bins, self.dft_length, self.sample_rate),
            )
        if not 0 <= self.lower <= self.upper < np.inf:
            raise InferError("frequencies are not ordered", given=(self.lower, self.upper))
        check_kinds(self.of, NUMERIC)
        return TensorType(self.of, (self.dft_length // 2 + 1, self.bins))

    def reference(self) -> Array:
        check_allocation((self.dft_length // 2 + 1, self.bins), np.float64)
        low, high = (2595 * np.log10(1 + f / 700) for f in (self.lower, self.upper))
        mel = low + np.arange(self.bins + 2) * ((high - low) / (self.bins + 2))
        hertz = 700 * (10 ** (mel / 2595) - 1)
        edges = np.floor((self.dft_length + 1) * hertz / self.sample_rate)
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        places = np.arange(self.dft_length // 2 + 1)[:, None]
        rising = np.where(left == centre, 1.0, (places - left) / (centre - left))
        falling = (right - places) / (right - centre)
        weights = np.where((left <= places) & (places <= centre), rising, 0.0)
        return narrow(np.where((centre < places) & (places < right), falling, weights), self.of)

    @classmethod
    def infer_deferred(cls, static: dict[str, Any], types: tuple[Type, ...], **late: Type) -> Type:
        return TensorType(static.get("of", f32), (UNKNOWN, UNKNOWN))
