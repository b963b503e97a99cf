"""TIFF: 8-bit grey, colour or palette images in strips, uncompressed or deflated."""

from __future__ import annotations

import zlib
from struct import calcsize

import numpy as np

from monograph.ir import Array
from monograph.ops.codecs.read import check_size, numbers, pixels, refuse, through_palette

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_OFFSETS, _CHANNELS, _COUNTS, _PLANAR, _PREDICTOR, _PALETTE = 273, 277, 279, 284, 317, 320
_LAYOUTS = {1: "B", 3: "H", 4: "I"}
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE = 0, 1, 2, 3


def decode_tiff(data: bytes) -> Array:
    tags = _directory(data)

    def one(tag: int, default: int) -> int:
        return tags.get(tag, (default,))[0]

    width, height = one(_WIDTH, 0), one(_HEIGHT, 0)
    check_size(width, height)
    channels, kind = one(_CHANNELS, 1), one(_PHOTOMETRIC, BLACK_IS_ZERO)
    compression = one(_COMPRESSION, 1)
    layout = one(_PLANAR, 1), one(_PREDICTOR, 1)
    depths = set(tags.get(_BITS, (1,)))
    if compression not in (1, 8, 32946) or layout != (1, 1) or depths != {8} or kind > PALETTE:
        refuse("this kind of TIFF", given=(compression, *layout, *depths, kind))
    if channels < (3 if kind == RGB else 1) or channels > 8:
        refuse("its channels", given=channels)
    size = width * height * channels
    offsets, counts = tags.get(_OFFSETS, ()), tags.get(_COUNTS, ())
    if sum(counts) > len(data) or len(offsets) != len(counts):
        refuse("its strips", given=(len(offsets), len(counts)))
    raw = b""
    for offset, count in zip(offsets, counts, strict=True):
        raw += _strip(data, offset, count, compression, size - len(raw))
        if len(raw) >= size:
            break
    image = pixels(raw, 0, size).reshape(height, width, channels)
    if kind == RGB:
        return image[..., :3]
    grey = image[..., :1]
    if kind == PALETTE:
        table = np.array(tags.get(_PALETTE, ()), np.int64)
        palette = table[: len(table) // 3 * 3].reshape(3, -1).T >> 8
        return through_palette(palette.astype(np.uint8), grey[..., 0])
    return 255 - grey if kind == WHITE_IS_ZERO else grey


def _directory(data: bytes) -> dict[int, tuple[int, ...]]:
    """The numbers of the first directory, by tag."""
    order = "<" if data[:2] == b"II" else ">"
    (start,) = numbers(f"{order}I", data, 4)
    (count,) = numbers(f"{order}H", data, start)
    tags: dict[int, tuple[int, ...]] = {}
    for i in range(count):
        at = start + 2 + 12 * i
        tag, kind, length = numbers(f"{order}HHI", data, at)
        if kind not in _LAYOUTS:
            continue
        if length > len(data):
            refuse("it ends too early", given=length)
        layout = f"{order}{length}{_LAYOUTS[kind]}"
        inside = length * (1, 2, 4)["BHI".index(_LAYOUTS[kind])] <= 4
        tags[tag] = numbers(
            layout, data, at + 8 if inside else numbers(f"{order}I", data, at + 8)[0]
        )
    return tags


def _strip(data: bytes, offset: int, count: int, compression: int, size: int) -> bytes:
    """At most `size` bytes of pixels, 1 or more."""
    strip = pixels(data, offset, count).tobytes()
    if compression == 1:
        return strip[:size]
    try:
        return zlib.decompressobj().decompress(strip, size)
    except zlib.error as e:
        refuse(f"compressed data: {e}")
