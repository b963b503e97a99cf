"""ONNX Runtime's Python API on Monograph.

import monograph.onnxruntime as ort

session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
(boxes,) = session.run(None, {"images": x})

`python -m monograph.onnxruntime program.py` runs an unmodified program with `onnxruntime`
replaced.
"""

from __future__ import annotations

import logging
from typing import Any

import monograph
from monograph.onnxruntime import capi
from monograph.onnxruntime.binding import IOBinding
from monograph.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    log_once,
)
from monograph.onnxruntime.providers import (
    get_all_providers,
    get_available_providers,
    get_device,
)
from monograph.onnxruntime.replace import replace_onnxruntime
from monograph.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg
from monograph.onnxruntime.values import OrtDevice, OrtDeviceVendorId, OrtValue
from monograph.onnxruntime.version import VERSION

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "preload_dlls",
    "print_debug_info",
    "replace_onnxruntime",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__ = VERSION
_SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Python's levels of ONNX Runtime's severities: verbose, info, warning, error, fatal."""


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose API this package follows."""
    return __version__


def get_build_info() -> str:
    """Return a text that tells Monograph from ONNX Runtime."""
    return f"ORT Build Info: Monograph {monograph.__version__}"


def set_seed(seed: int) -> None:
    """Let random ops without a seed give the same numbers in sessions that follow."""
    from monograph.ops.random import seed_starts

    seed_starts(seed)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger `monograph`: 0 is verbose, 4 is fatal."""
    if severity not in range(len(_SEVERITIES)):
        raise RuntimeError(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        )
    logging.getLogger("monograph").setLevel(_SEVERITIES[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a verbosity, without effect."""
    log_once(f"the verbosity {verbosity} of the logger has no effect")


def enable_telemetry_events() -> None:
    """Do nothing: Monograph sends no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: Monograph sends no telemetry."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: torch loads the libraries that the gpu target needs."""


def print_debug_info() -> None:
    """Print versions and providers."""
    print(f"{get_build_info()}, the API of ONNX Runtime {__version__}")
    print(f"providers: {', '.join(get_available_providers())}")


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: docs/migration.md lists what it has"
    )
