"""Image files as tensors. Reference only. The decoders are Pillow's (the extra `images`)."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

from monograph.errors import ExecutionError, InferError, MonographError
from monograph.ir import UNKNOWN, Array, Op, TensorType, sample
from monograph.ir.dtype import u8
from monograph.ops.base import as_tensor, check_allocation

RGB, BGR, GREY = "rgb", "bgr", "grey"
FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that ONNX names; a model's data cannot reach Pillow's other readers."""
_PNM = np.frombuffer(b"P6 2 1 255\n\x01\x02\x03\xff\x00\x80", np.uint8)


@dataclass(frozen=True)
class DecodeImage(Op):
    """The bytes of an image file as [height, width, channels]; the file says its own format."""

    colours: str = RGB

    host_reason = "it decodes a file"
    costly = True
    samples = (sample(_PNM), sample(_PNM, colours=BGR), sample(_PNM, colours=GREY))

    def infer(self, x: TensorType) -> TensorType:
        if as_tensor(x).dtype != u8 or x.rank != 1:
            raise InferError("the bytes of a file are a vector of u8", given=x)
        if self.colours not in (RGB, BGR, GREY):
            raise InferError("unknown colours", expected=(RGB, BGR, GREY), given=self.colours)
        return x.with_shape((UNKNOWN, UNKNOWN, 1 if self.colours == GREY else 3))

    def reference(self, x: Array) -> Array:
        try:
            from PIL import Image
        except ImportError:
            raise ExecutionError(
                "decoding images needs Pillow",
                hint="pip install Pillow, or decode before feeding the model",
            ) from None
        try:
            with Image.open(io.BytesIO(x.tobytes()), formats=FORMATS) as image:
                check_allocation((image.height, image.width, 4), np.uint8)
                pixels = np.asarray(image.convert("L" if self.colours == GREY else "RGB"))
        except (MonographError, MemoryError):
            raise
        except Exception as e:
            # Broken files make the decoders raise nearly anything, SyntaxError included.
            raise ExecutionError(f"the bytes are not an image that can be decoded: {e}") from e
        if self.colours == GREY:
            return pixels[..., None]
        return pixels[..., ::-1] if self.colours == BGR else pixels
