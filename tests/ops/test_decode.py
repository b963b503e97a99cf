"""Image files: every format that ONNX names, and bytes that are none."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from monograph.errors import ExecutionError, InferError
from monograph.ir import parse_type
from monograph.ops.image import BGR, GREY, DecodeImage

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def encoded(kind: str, **options: object) -> np.ndarray:
    target = io.BytesIO()
    Image.fromarray(IMAGE).save(target, kind, **options)
    return np.frombuffer(target.getvalue(), np.uint8)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("PPM", {}),
        ("TIFF", {}),
        ("WEBP", {"lossless": True}),
        ("JPEG2000", {"irreversible": False}),
    ],
)
def test_lossless_formats(kind: str, options: dict[str, object]) -> None:
    data = encoded(kind, **options)
    np.testing.assert_array_equal(DecodeImage().reference(data), IMAGE)
    np.testing.assert_array_equal(DecodeImage(BGR).reference(data), IMAGE[..., ::-1])
    grey = DecodeImage(GREY).reference(data)
    weights = IMAGE.astype(np.float64) @ [0.299, 0.587, 0.114]
    assert grey.shape == (5, 7, 1)
    np.testing.assert_allclose(grey[..., 0], weights, atol=0.51)


def test_jpeg_is_close() -> None:
    flat = Image.new("RGB", (16, 16), (200, 30, 90))
    target = io.BytesIO()
    flat.save(target, "JPEG", quality=95)
    pixels = DecodeImage().reference(np.frombuffer(target.getvalue(), np.uint8))
    np.testing.assert_allclose(
        pixels.astype(int), np.broadcast_to([200, 30, 90], (16, 16, 3)), atol=3
    )


@pytest.mark.parametrize(
    "data", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a" + b"\0" * 40]
)
def test_other_bytes_are_a_clear_error(data: bytes) -> None:
    with pytest.raises(ExecutionError, match="not an image"):
        DecodeImage().reference(np.frombuffer(data, np.uint8))


def test_a_truncated_file_is_a_clear_error() -> None:
    with pytest.raises(ExecutionError, match="not an image"):
        DecodeImage().reference(encoded("PNG")[:60])


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ExecutionError, match="pip install Pillow"):
        DecodeImage().reference(data)


def test_only_bytes_are_decoded() -> None:
    with pytest.raises(InferError, match="vector of u8"):
        DecodeImage().infer(parse_type("f32[3]"))
    with pytest.raises(InferError, match="unknown colours"):
        DecodeImage("cmyk").infer(parse_type("u8[3]"))
