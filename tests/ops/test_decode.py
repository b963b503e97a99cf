"""Image files: made here byte by byte, and broken in every place."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import _image_decoder_data as onnx_data

from monograph.errors import ExecutionError, InferError, MonographError
from monograph.ops.decode import BGR, GREY, DecodeImage
from tests.ops.windows import apply, typed

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def decoded(data: bytes, **fields: Any) -> np.ndarray:
    result: np.ndarray = apply(DecodeImage(**fields), np.frombuffer(data, np.uint8))
    return result


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(rows: list[bytes], width: int, kind: int, depth: int, *extra: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, len(rows), depth, kind, 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    parts = (chunk(b"IHDR", header), *extra, chunk(b"IDAT", body[:9]), chunk(b"IDAT", body[9:]))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def filtered(image: np.ndarray, kinds: list[int]) -> list[bytes]:
    """The rows of an image as differences, by the definition of each filter."""
    height, width, channels = image.shape
    known = np.zeros((height + 1, width + 1, channels), np.int64)
    known[1:, 1:] = image
    rows = []
    for y, kind in enumerate(kinds):
        left, up, corner = known[y + 1, :-1], known[y, 1:], known[y, :-1]
        guess = left + up - corner
        order = np.stack([abs(guess - left), abs(guess - up), abs(guess - corner)])
        paeth = np.choose(order.argmin(0), [left, up, corner])
        predicted = [0 * left, left, up, (left + up) // 2, paeth][kind]
        rows.append(bytes([kind]) + ((image[y] - predicted) % 256).astype(np.uint8).tobytes())
    return rows


def test_png_with_every_filter() -> None:
    np.testing.assert_array_equal(decoded(png(filtered(IMAGE, [4, 3, 2, 1, 0]), 7, 2, 8)), IMAGE)
    with_alpha = np.concatenate([IMAGE, IMAGE[..., :1]], 2)
    rows = filtered(with_alpha, [1, 4, 3, 2, 0])
    np.testing.assert_array_equal(decoded(png(rows, 7, 6, 8)), IMAGE)


def test_png_of_few_and_of_many_bits() -> None:
    assert decoded(png([b"\0\xb0"], 4, 0, 1), colours=GREY).tolist() == [[[255], [0], [255], [255]]]
    assert decoded(png([b"\0\x1b"], 4, 0, 2), colours=GREY).reshape(-1).tolist() == [
        0,
        85,
        170,
        255,
    ]
    assert decoded(png([b"\0\x12\x34\xff\x00"], 2, 0, 16))[..., 0].tolist() == [[0x12, 0xFF]]
    palette = chunk(b"PLTE", bytes([1, 2, 3, 40, 50, 60]))
    assert decoded(png([b"\0\x40"], 2, 3, 1, palette)).tolist() == [[[1, 2, 3], [40, 50, 60]]]
    with pytest.raises(ExecutionError, match="a colour that its palette does not have"):
        decoded(png([b"\0\x40"], 2, 3, 1, chunk(b"PLTE", bytes(3))))


def bmp(bits: int, rows: bytes, width: int, height: int, palette: bytes = b"") -> bytes:
    start = 54 + len(palette)
    info = struct.pack("<IiiHHIIIIII", 40, width, height, 1, bits, 0, 0, 0, 0, len(palette) // 4, 0)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + info + palette + rows


def test_bmp_upwards_and_downwards() -> None:
    blue_first = IMAGE[..., ::-1]
    lines = [row.tobytes() + b"\0\0\0" for row in blue_first]
    np.testing.assert_array_equal(decoded(bmp(24, b"".join(lines[::-1]), 7, 5)), IMAGE)
    np.testing.assert_array_equal(decoded(bmp(24, b"".join(lines), 7, -5)), IMAGE)
    palette = bytes([3, 2, 1, 0, 60, 50, 40, 0])
    indexed = bmp(8, b"\x01\x00\0\0", 2, 1, palette)
    assert decoded(indexed).tolist() == [[[40, 50, 60], [1, 2, 3]]]


def test_pnm_as_text_and_as_bytes() -> None:
    binary = b"P6\n# a comment\n7 5\n255\n" + IMAGE.tobytes()
    np.testing.assert_array_equal(decoded(binary), IMAGE)
    assert decoded(b"P2 3 1 4\n0 2 4", colours=GREY).tolist() == [[[0], [128], [255]]]
    assert decoded(b"P5 2 1 255\n\x07\x09").tolist() == [[[7] * 3, [9] * 3]]
    with pytest.raises(ExecutionError, match="more than 8 bits"):
        decoded(b"P5 2 1 65535\n\0\0\0\0")


def tiff(order: str, tags: dict[int, tuple[int, ...]], strip: bytes) -> bytes:
    """A directory after one strip; lists of numbers go after the directory."""
    start = 8 + len(strip)
    tags = {**tags, 273: (8,), 279: (len(strip),)}
    after = start + 2 + 12 * len(tags) + 4
    entries, extra = b"", b""
    for tag, given in sorted(tags.items()):
        body = struct.pack(f"{order}{len(given)}H", *given)
        if len(body) > 4:
            place = struct.pack(f"{order}I", after + len(extra))
            extra, body = extra + body, place
        entries += struct.pack(f"{order}HHI", tag, 3, len(given)) + body.ljust(4, b"\0")
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start)
    return header + strip + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + extra


@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff(order: str) -> None:
    size = {256: (7,), 257: (5,)}
    colour = {**size, 258: (8, 8, 8), 262: (2,), 277: (3,)}
    np.testing.assert_array_equal(decoded(tiff(order, colour, IMAGE.tobytes())), IMAGE)
    packed = tiff(order, {**colour, 259: (8,)}, zlib.compress(IMAGE.tobytes()))
    np.testing.assert_array_equal(decoded(packed), IMAGE)
    inverted = tiff(order, {**size, 258: (8,), 262: (0,)}, IMAGE[..., 0].tobytes())
    np.testing.assert_array_equal(decoded(inverted, colours=GREY), 255 - IMAGE[..., :1])
    table = tuple(range(0, 3 * 256 * 256, 256))
    palette = {256: (2,), 257: (1,), 258: (8,), 262: (3,), 320: tuple(v % 65536 for v in table)}
    assert decoded(tiff(order, palette, b"\x05\x09")).tolist() == [[[5] * 3, [9] * 3]]


def test_colours() -> None:
    data = b"P6 1 1 255\n" + bytes([10, 20, 200])
    assert decoded(data, colours=BGR).tolist() == [[[200, 20, 10]]]
    assert decoded(data, colours=GREY).tolist() == [[[38]]]


JPEG = onnx_data.image_decoder_decode_jpeg_rgb.data.tobytes()


def test_jpeg_gives_the_expected_bits() -> None:
    expected = onnx_data.image_decoder_decode_jpeg_rgb.output
    np.testing.assert_array_equal(decoded(JPEG), expected)


FILES = {
    "png": png(filtered(IMAGE, [4, 3, 2, 1, 0]), 7, 2, 8),
    "jpeg": JPEG,
    "bmp": bmp(24, bytes(24 * 5), 7, 5),
    "pnm": b"P3 7 5 255\n" + b" ".join(b"%d" % v for v in IMAGE.reshape(-1)),
    "tiff": tiff("<", {256: (7,), 257: (5,), 258: (8,), 259: (8,)}, zlib.compress(bytes(35))),
}


@pytest.mark.parametrize("kind", FILES)
def test_broken_files_are_refused(kind: str) -> None:
    """Cut short or with a byte changed, a file gives an image or our error, nothing else."""
    data = FILES[kind]
    assert decoded(data).shape[2] == 3
    with pytest.raises(ExecutionError):
        decoded(data[: len(data) // 2])
    rng = np.random.default_rng(1)
    for _ in range(150):
        broken = bytearray(data)
        for place in rng.integers(0, min(len(data), 700), 2):
            broken[place] = rng.integers(0, 256)
        try:
            decoded(bytes(broken))
        except MonographError:
            pass


def test_what_is_no_image() -> None:
    with pytest.raises(ExecutionError, match="not an image of a known format"):
        decoded(b"RIFF....WEBP")
    with pytest.raises(ExecutionError, match="its size"):
        decoded(b"P6 99999999 99999999 255\n")
    with pytest.raises(InferError, match="a vector of u8"):
        typed(DecodeImage(), "i8 9")
    with pytest.raises(InferError, match="unknown colours"):
        typed(DecodeImage("cmyk"), "u8 9")
    assert typed(DecodeImage(GREY), "u8 L").tensor.dims[2] == 1
