"""Long Fourier transforms by shorter ones: products with small matrices, and twiddle factors.

A composite length is transformed along both factors; a long prime becomes a convolution, which
transforms of a power of two compute. All arithmetic is in f64 and rounds once at the end.
"""

from __future__ import annotations

import math

import numpy as np

from monograph.ir import Array, Value, constant
from monograph.ir.dtype import f64
from monograph.ops.cast import Cast
from monograph.ops.elementwise import Add, Mul, Sub
from monograph.ops.linear import Dot
from monograph.ops.pad_tile import Pad
from monograph.ops.shape import Concat, Reshape, Slice, Transpose
from monograph.ops.signal import Dft

BASE = 128
"""The longest transform that is one product."""


def long_transform(op: Dft, x: Value) -> Value:
    """Transform a known length by shorter transforms, in f64; the axis stays."""
    shape, axis = x.tensor.static, op.axis
    rank, length = len(shape), op.length or 0
    others = [i for i in range(rank - 1) if i != axis]
    order = (*others, axis, rank - 1)
    kept = tuple(shape[i] for i in others)
    rows = Transpose(order)(x if x.dtype == f64 else Cast(f64)(x))
    rows = Reshape((math.prod(kept), shape[axis], shape[-1]))(rows)
    made = _rows(op, rows, length)
    back = tuple(int(i) for i in np.argsort(order))
    return Transpose(back)(Reshape((*kept, *made.tensor.static[1:]))(made))


def _rows(op: Dft, x: Value, n: int) -> Value:
    """Transform every row of x[rows, size, parts]."""
    bins = n // 2 + 1
    if op.inverse and op.onesided:
        made = _transform(_both_sides(_sized(x, bins), n), n, True)
        return _part(made, 0)
    x = _sized(x, n)
    if x.tensor.static[2] == 1:
        x = Concat(2)(x, constant(np.zeros(x.tensor.static)))
    made = _transform(x, n, op.inverse)
    return _cut(made, 1, 0, bins) if op.onesided else made


def _sized(x: Value, n: int) -> Value:
    """Cut rows to a length, or pad them with zeros."""
    size = x.tensor.static[1]
    if size > n:
        return _cut(x, 1, 0, n)
    return Pad((0, 0, 0), (0, n - size, 0))(x) if size < n else x


def _cut(x: Value, axis: int, start: int, stop: int) -> Value:
    shape = x.tensor.static
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(shape))
    return Slice(starts, stops, (1,) * len(shape))(x)


def _part(x: Value, which: int) -> Value:
    """Return the real or imaginary parts; the last dimension stays."""
    return _cut(x, len(x.tensor.static) - 1, which, which + 1)


def _both_sides(x: Value, n: int) -> Value:
    """Return the whole spectrum of a real signal from its first half."""
    real, imaginary = _part(x, 0), _part(x, 1)
    bins = x.tensor.static[1]
    # A bin that is its own mirror image has no imaginary part.
    own = np.ones((1, bins, 1))
    own[0, 0] = 0
    if n % 2 == 0:
        own[0, -1] = 0
    half = Concat(2)(real, Mul()(imaginary, constant(own)))
    rest = n - bins
    if rest < 1:
        return half
    last = bins - 1 if n % 2 == 0 else bins
    rows = x.tensor.static[0]
    # In reverse, from the last bin with a mirror image to the first.
    mirrored = Slice((0, last - 1, 0), (rows, -bins, 2), (1, -1, 1))(half)
    return Concat(1)(half, Mul()(mirrored, constant(np.array([1.0, -1.0]))))


def _transform(x: Value, n: int, inverse: bool) -> Value:
    """Transform every row of x[rows, n, 2]; an inverse transform is divided by its length."""
    made = _any_length(x, n, 1 if inverse else -1)
    return Mul()(made, constant(np.float64(1 / n))) if inverse else made


def _any_length(x: Value, n: int, sign: int) -> Value:
    if n <= BASE:
        return _product(x, n, sign)
    a = _factor(n)
    return _chirp(x, n, sign) if a == 1 else _two_factors(x, a, n // a, sign)


def _factor(n: int) -> int:
    """Return the largest divisor of n up to its root and up to the length of one product."""
    root = math.isqrt(n)
    return next((d for d in range(min(root, BASE), 1, -1) if n % d == 0), 1)


def _units(turns: Array) -> Array:
    """e^(2 pi i turns)."""
    return np.exp(2j * np.pi * turns)


def _product(x: Value, n: int, sign: int) -> Value:
    """Multiply rows by the matrix that combines real and imaginary parts."""
    k = np.arange(n)
    w = _units(sign * (np.outer(k, k) % n) / n)
    matrix = np.empty((n, 2, n, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = w.real, w.imag
    matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -w.imag, w.real
    rows = x.tensor.static[0]
    made = Dot()(Reshape((rows, 2 * n))(x), constant(matrix.reshape(2 * n, 2 * n)))
    return Reshape((rows, n, 2))(made)


def _times(x: Value, w: Array) -> Value:
    """Multiply complex numbers x[..., 2] by broadcast constants."""
    real, imaginary = _part(x, 0), _part(x, 1)
    c, d = constant(w.real[..., None]), constant(w.imag[..., None])
    first = Sub()(Mul()(real, c), Mul()(imaginary, d))
    second = Add()(Mul()(real, d), Mul()(imaginary, c))
    return Concat(len(x.tensor.static) - 1)(first, second)


def _two_factors(x: Value, a: int, b: int, sign: int) -> Value:
    """Transform with length a, multiply by the twiddle factors, transform with length b."""
    rows = x.tensor.static[0]
    columns = Transpose((0, 2, 1, 3))(Reshape((rows, a, b, 2))(x))
    first = _any_length(Reshape((rows * b, a, 2))(columns), a, sign)
    place, bin_ = np.arange(b)[:, None], np.arange(a)
    turned = _times(Reshape((rows, b, a, 2))(first), _units(sign * place * bin_ / (a * b)))
    across = Reshape((rows * a, b, 2))(Transpose((0, 2, 1, 3))(turned))
    second = Reshape((rows, a, b, 2))(_any_length(across, b, sign))
    return Reshape((rows, a * b, 2))(Transpose((0, 2, 1, 3))(second))


def _chirp(x: Value, n: int, sign: int) -> Value:
    """Transform a prime length as a convolution with a chirp (Bluestein)."""
    size = 1 << (2 * n - 2).bit_length()
    squares = np.arange(n, dtype=np.int64) ** 2 % (2 * n)
    chirp = _units(sign * squares / (2 * n))
    kernel = np.zeros(size, complex)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp.conj()[:0:-1]
    spectrum = np.fft.fft(kernel) / size
    padded = Pad((0, 0, 0), (0, size - n, 0))(_times(x, chirp))
    forward = _times(_any_length(padded, size, -1), spectrum)
    return _times(_cut(_any_length(forward, size, 1), 1, 0, n), chirp)
