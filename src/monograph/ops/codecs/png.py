"""PNG: every colour type and depth, not interlaced."""

from __future__ import annotations

import zlib

import numpy as np

from monograph.ir import Array
from monograph.ops.codecs.read import check_size, numbers, refuse, through_palette

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
PALETTE = 3


def decode_png(data: bytes) -> Array:
    chunks = _chunks(data)
    width, height, depth, kind, _, _, interlaced = numbers(">IIBBBBB", chunks.get(b"IHDR", b""), 0)
    check_size(width, height)
    if kind not in _CHANNELS or depth not in _DEPTHS[kind] or interlaced:
        refuse("this kind of PNG", given=(kind, depth, interlaced))
    channels = _CHANNELS[kind]
    stride = (width * channels * depth + 7) // 8
    size = (stride + 1) * height
    try:
        raw = zlib.decompressobj().decompress(chunks.get(b"IDAT", b""), size)
    except zlib.error as e:
        refuse(f"compressed data: {e}")
    if len(raw) < size:
        refuse("it ends too early", expected=size, given=len(raw))
    filtered = np.frombuffer(raw, np.uint8, size).reshape(height, stride + 1)
    rows = _unfilter(filtered, max(1, channels * depth // 8))
    samples = _samples(rows, depth)[:, : width * channels].reshape(height, width, channels)
    if kind == PALETTE:
        colours = chunks.get(b"PLTE", b"")
        palette = np.frombuffer(colours[: len(colours) // 3 * 3], np.uint8).reshape(-1, 3)
        return through_palette(palette, samples[..., 0])
    if depth < 8:
        samples = samples * np.uint8(255 // (2**depth - 1))
    return samples[..., :3] if channels >= 3 else samples[..., :1]


def _chunks(data: bytes) -> dict[bytes, bytes]:
    """The chunks by name, those of one name joined."""
    found: dict[bytes, list[bytes]] = {}
    offset = 8
    while offset + 8 <= len(data):
        (length,) = numbers(">I", data, offset)
        name = data[offset + 4 : offset + 8]
        if offset + 12 + length > len(data):
            refuse("it ends too early", given=name)
        found.setdefault(name, []).append(data[offset + 8 : offset + 8 + length])
        if name == b"IEND":
            break
        offset += 12 + length
    return {name: b"".join(parts) for name, parts in found.items()}


def _samples(rows: Array, depth: int) -> Array:
    """Samples as u8: of 16 bits the high ones, of fewer than 8 one element each."""
    if depth == 16:
        return rows[:, ::2]
    if depth == 8:
        return rows
    bits = np.unpackbits(rows, axis=1).reshape(rows.shape[0], -1, depth)
    return np.asarray(bits @ (1 << np.arange(depth)[::-1]), np.uint8)


def _unfilter(filtered: Array, step: int) -> Array:
    """Rows from their differences to what is left, above and above left."""
    height, stride = filtered.shape[0], filtered.shape[1] - 1
    rows = np.zeros((height, stride), np.uint8)
    above = np.zeros(stride, np.uint8)
    for y in range(height):
        kind, row = int(filtered[y, 0]), filtered[y, 1:]
        if kind == 0:
            rows[y] = row
        elif kind == 1:
            padded = np.zeros(-(-stride // step) * step, np.uint8)
            padded[:stride] = row
            rows[y] = np.cumsum(padded.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)[
                :stride
            ]
        elif kind == 2:
            rows[y] = row + above
        elif kind in (3, 4):
            rows[y] = _sequential(row.tolist(), above.tolist(), step, paeth=kind == 4)
        else:
            refuse("the filter of a row", expected="0..4", given=kind)
        above = rows[y]
    return rows


def _sequential(row: list[int], above: list[int], step: int, paeth: bool) -> list[int]:
    """A row whose every byte depends on the one before it."""
    result = [0] * len(row)
    for i, value in enumerate(row):
        left, corner = (result[i - step], above[i - step]) if i >= step else (0, 0)
        up = above[i]
        if paeth:
            guess = left + up - corner
            distances = abs(guess - left), abs(guess - up), abs(guess - corner)
            predicted = (left, up, corner)[distances.index(min(distances))]
        else:
            predicted = (left + up) // 2
        result[i] = (value + predicted) & 255
    return result
