"""The names of ONNX Runtime's native module that programs import, its exceptions above all."""

from monograph.onnxruntime.binding import IOBinding as SessionIOBinding
from monograph.onnxruntime.errors import (
    EngineError,
    EPFail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    RuntimeException,
)
from monograph.onnxruntime.errors import OrtFail as Fail
from monograph.onnxruntime.errors import OrtNotImplemented as NotImplemented
from monograph.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from monograph.onnxruntime.providers import (
    get_all_providers,
    get_available_providers,
    get_device,
)
from monograph.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg
from monograph.onnxruntime.values import OrtDevice, OrtValue

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
]
