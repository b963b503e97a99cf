"""PNM: grey and colour maps, as text or as bytes."""

from __future__ import annotations

import re

import numpy as np

from monograph.ir import Array
from monograph.ops.codecs.read import check_size, pixels, refuse

_SPACE = rb"(?:\s|#[^\n]*\n)+"
_HEADER = re.compile(
    rb"P([2356])" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,9})" + _SPACE + rb"(\d{1,5})\s"
)


def decode_pnm(data: bytes) -> Array:
    found = _HEADER.match(data)
    if found is None:
        refuse("the header of a PNM", given=data[:20])
    kind, width, height, highest = map(int, found.groups())
    check_size(width, height)
    if not 0 < highest < 256:
        refuse("a PNM of more than 8 bits", expected="1..255", given=highest)
    channels = 3 if kind in (3, 6) else 1
    count = width * height * channels
    if kind in (5, 6):
        values = pixels(data, found.end(), count).astype(np.int64)
    else:
        # Two characters a number at least; the last needs no space after it.
        if len(data) - found.end() < 2 * count - 1:
            refuse("it ends too early", expected=count)
        words = data[found.end() :].split()
        if len(words) < count or not all(w.isdigit() and len(w) < 4 for w in words[:count]):
            refuse("numbers of a PNM", expected=count, given=len(words))
        values = np.array([int(w) for w in words[:count]], np.int64)
    scaled = np.clip((values * 255 + highest // 2) // highest, 0, 255)
    return scaled.astype(np.uint8).reshape(height, width, channels)
