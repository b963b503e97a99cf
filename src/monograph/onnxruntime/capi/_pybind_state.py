"""The names of ONNX Runtime's native module, under the name that its own modules use."""

from monograph.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
