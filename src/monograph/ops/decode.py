"""Image files as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monograph.errors import InferError
from monograph.ir import UNKNOWN, Array, Op, TensorType, sample
from monograph.ir.dtype import u8
from monograph.ops.base import as_tensor
from monograph.ops.codecs import decode

RGB, BGR, GREY = "rgb", "bgr", "grey"
_PNM = np.frombuffer(b"P6 2 1 255\n\x01\x02\x03\xff\x00\x80", np.uint8)


@dataclass(frozen=True)
class DecodeImage(Op):
    """The bytes of an image file as [height, width, channels]; the file says its own format."""

    colours: str = RGB

    samples = (sample(_PNM), sample(_PNM, colours=BGR), sample(_PNM, colours=GREY))

    def infer(self, x: TensorType) -> TensorType:
        if as_tensor(x).dtype != u8 or x.rank != 1:
            raise InferError("the bytes of a file are a vector of u8", given=x)
        if self.colours not in (RGB, BGR, GREY):
            raise InferError("unknown colours", expected=(RGB, BGR, GREY), given=self.colours)
        return x.with_shape((UNKNOWN, UNKNOWN, 1 if self.colours == GREY else 3))

    def reference(self, x: Array) -> Array:
        image = decode(x.tobytes())
        if self.colours == GREY:
            return image if image.shape[2] == 1 else _grey(image)
        image = np.broadcast_to(image, (*image.shape[:2], 3))
        return image[..., ::-1] if self.colours == BGR else image


def _grey(image: Array) -> Array:
    """The luma of ITU-R 601, in 16-bit fixed point."""
    weights = np.array([19595, 38470, 7471])
    return (((image @ weights) + (1 << 15)) >> 16).astype(np.uint8)[..., None]
