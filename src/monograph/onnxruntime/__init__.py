"""ONNX Runtime's Python API on Monograph.

import monograph.onnxruntime as ort

session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
(boxes,) = session.run(None, {"images": x})

`python -m monograph.onnxruntime program.py` runs an unmodified program with `onnxruntime`
replaced.
"""

from __future__ import annotations

from typing import Any

from monograph.onnxruntime.allocators import (
    OrtAllocatorType,
    OrtArenaCfg,
    OrtDeviceMemoryType,
    OrtMemoryInfo,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    create_and_register_allocator,
    create_and_register_allocator_v2,
)
from monograph.onnxruntime.binding import IOBinding
from monograph.onnxruntime.binding import IOBinding as SessionIOBinding
from monograph.onnxruntime.environment import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from monograph.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    set_global_thread_pool_sizes,
)
from monograph.onnxruntime.providers import (
    get_all_providers,
    get_available_providers,
    get_device,
)
from monograph.onnxruntime.refused import REASONS
from monograph.onnxruntime.replace import replace_onnxruntime
from monograph.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg
from monograph.onnxruntime.values import OrtDevice, OrtDeviceVendorId, OrtValue, copy_tensors
from monograph.onnxruntime.version import VERSION, cuda_version, package_name

# Programs read `onnxruntime.capi.onnxruntime_pybind11_state` without importing it.
from monograph.onnxruntime import capi  # isort: skip
from monograph.onnxruntime.capi import _pybind_state as _pybind_state  # isort: skip
from monograph.onnxruntime.capi import (  # isort: skip
    onnxruntime_inference_collection as onnxruntime_inference_collection,
)
from monograph.onnxruntime.capi import onnxruntime_validation  # isort: skip

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "capi",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "onnxruntime_validation",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "replace_onnxruntime",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    reason = REASONS.get(name, "docs/migration.md lists what it has")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {reason}")
