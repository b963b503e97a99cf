"""The module in which ONNX Runtime defines its sessions and values."""

from monograph.onnxruntime.binding import IOBinding
from monograph.onnxruntime.providers import check_and_normalize_provider_args
from monograph.onnxruntime.session import InferenceSession
from monograph.onnxruntime.session import InferenceSession as Session
from monograph.onnxruntime.values import OrtDevice, OrtDeviceVendorId, OrtValue, copy_tensors

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "check_and_normalize_provider_args",
    "copy_tensors",
]
