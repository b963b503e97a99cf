"""BMP: uncompressed, 8 bits through a palette, or 24 or 32 bits."""

from __future__ import annotations

from monograph.ir import Array
from monograph.ops.codecs.read import check_size, numbers, pixels, refuse, through_palette


def decode_bmp(data: bytes) -> Array:
    start, header, width, height, _, bits, compression = numbers("<IIiiHHI", data, 10)
    if header < 40 or compression not in (0, 3) or bits not in (8, 24, 32):
        refuse("this kind of BMP", expected="uncompressed", given=(header, bits, compression))
    if compression == 3 and (bits != 32 or numbers("<III", data, 54) != (0xFF0000, 0xFF00, 0xFF)):
        refuse("an order of colours other than blue, green, red")
    upwards, height = height > 0, abs(height)
    check_size(width, height)
    stride = (width * bits // 8 + 3) // 4 * 4
    rows = pixels(data, start, stride * height).reshape(height, stride)[:, : width * bits // 8]
    if upwards:
        rows = rows[::-1]
    if bits == 8:
        (count,) = numbers("<I", data, 46)
        count = min(count or 256, 256)
        palette = pixels(data, 14 + header, 4 * count).reshape(-1, 4)[:, 2::-1]
        return through_palette(palette, rows)
    return rows.reshape(height, width, bits // 8)[..., 2::-1].copy()
