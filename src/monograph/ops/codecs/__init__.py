"""Decoders of still images, each `bytes -> [height, width, channels]` of u8 with 1 or 3 channels.

What they read is data of a run, so they trust none of it: every size is checked against what the
file holds before anything is made of it. Holds no op.
"""

from __future__ import annotations

from collections.abc import Callable

from monograph.errors import ExecutionError
from monograph.ir import Array
from monograph.ops.codecs.bmp import decode_bmp
from monograph.ops.codecs.jpeg import decode_jpeg
from monograph.ops.codecs.png import decode_png
from monograph.ops.codecs.pnm import decode_pnm
from monograph.ops.codecs.tiff import decode_tiff

_DECODERS: tuple[tuple[tuple[bytes, ...], Callable[[bytes], Array]], ...] = (
    ((b"\x89PNG\r\n\x1a\n",), decode_png),
    ((b"\xff\xd8\xff",), decode_jpeg),
    ((b"BM",), decode_bmp),
    ((b"P2", b"P3", b"P5", b"P6"), decode_pnm),
    ((b"II*\0", b"MM\0*"), decode_tiff),
)


def decode(data: bytes) -> Array:
    """The image in a file of any format that is known by how it begins."""
    for beginnings, decoder in _DECODERS:
        if data.startswith(beginnings):
            return decoder(data)
    raise ExecutionError(
        "not an image of a known format",
        expected="PNG, JPEG, BMP, PNM or TIFF",
        given=data[:8],
    )
