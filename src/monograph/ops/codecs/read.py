"""What the decoders share: reading numbers, and refusing what does not fit."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

import numpy as np

from monograph.errors import ExecutionError
from monograph.ir import Array

MAX_PIXELS = 1 << 26


def refuse(message: str, expected: Any = None, given: Any = None) -> NoReturn:
    raise ExecutionError(
        f"a broken or unsupported image: {message}", expected=expected, given=given
    )


def numbers(layout: str, data: bytes, offset: int) -> tuple[int, ...]:
    """Integers at an offset, by a layout of `struct`."""
    if offset < 0 or offset + struct.calcsize(layout) > len(data):
        refuse("it ends too early", expected=offset + struct.calcsize(layout), given=len(data))
    return struct.unpack_from(layout, data, offset)


def check_size(width: int, height: int) -> None:
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        refuse("its size", expected=f"up to {MAX_PIXELS:,} pixels", given=(height, width))


def pixels(data: bytes, offset: int, count: int) -> Array:
    """That many bytes from an offset on."""
    if offset < 0 or offset + count > len(data):
        refuse("it ends too early", expected=offset + count, given=len(data))
    return np.frombuffer(data, np.uint8, count, offset)


def through_palette(palette: Array, indices: Array) -> Array:
    if indices.size and int(indices.max()) >= len(palette):
        refuse("a colour that its palette does not have", given=int(indices.max()))
    return palette[indices]
