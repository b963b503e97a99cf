"""ONNX Runtime's exceptions, and Monograph's errors as ONNX Runtime reports them.

Each class is one of Monograph's errors too, and keeps the node, the op and the remedy.
"""

from __future__ import annotations

from typing import Any, ClassVar

from monograph.errors import (
    ConfigError,
    ExecutionError,
    FeedError,
    InferError,
    ModelError,
    MonographError,
    UnsupportedError,
)


class OrtError(MonographError):
    """The base of ONNX Runtime's exceptions: a status with a code and a name."""

    status: ClassVar[tuple[int, str]] = (1, "FAIL")

    def __init__(self, message: str, **facts: Any) -> None:
        code, name = self.status
        super().__init__(f"[ONNXRuntimeError] : {code} : {name} : {message}", **facts)
        self.reason = message
        """The message without the status."""


class OrtFail(OrtError, ExecutionError):  # noqa: N818
    """A session cannot be made, or a run failed."""


class InvalidArgument(OrtError, FeedError):  # noqa: N818
    """Feeds, names of outputs or options do not fit the model."""

    status = (2, "INVALID_ARGUMENT")


class NoSuchFile(OrtError, ModelError):  # noqa: N818
    """There is no model file at the path."""

    status = (3, "NO_SUCHFILE")


class NoModel(OrtError, ModelError):  # noqa: N818
    """A session has no model."""

    status = (4, "NO_MODEL")


class EngineError(OrtError, ExecutionError):
    """The engine failed."""

    status = (5, "ENGINE_ERROR")


class RuntimeException(OrtError, ExecutionError):  # noqa: N818
    """A run failed on its data."""

    status = (6, "RUNTIME_EXCEPTION")


class InvalidProtobuf(OrtError, ModelError):  # noqa: N818
    """The file is not an ONNX model."""

    status = (7, "INVALID_PROTOBUF")


class ModelLoaded(OrtError, ModelError):  # noqa: N818
    """The session has a model already."""

    status = (8, "MODEL_LOADED")


class OrtNotImplemented(OrtError, UnsupportedError):  # noqa: N818
    """The model needs an op, or the program a feature, that Monograph does not implement."""

    status = (9, "NOT_IMPLEMENTED")


class InvalidGraph(OrtError, ModelError):  # noqa: N818
    """The graph of the model is malformed."""

    status = (10, "INVALID_GRAPH")


class EPFail(OrtError, ExecutionError):  # noqa: N818
    """An execution provider failed."""

    status = (11, "EP_FAIL")


class ModelLoadCanceled(OrtError, ModelError):  # noqa: N818
    """The program has called off the load of a model."""

    status = (12, "MODEL_LOAD_CANCELED")


class ModelRequiresCompilation(OrtError, ModelError):  # noqa: N818
    """The model must be compiled, and the options forbid it."""

    status = (13, "MODEL_REQUIRES_COMPILATION")


class NotFound(OrtError, ModelError):  # noqa: N818
    """Something that was asked for does not exist."""

    status = (14, "NOT_FOUND")


class DeviceReset(OrtError, ExecutionError):  # noqa: N818
    """A device was reset during a run."""

    status = (15, "DEVICE_RESET")


OrtFail.__name__, OrtNotImplemented.__name__ = "Fail", "NotImplemented"


def load_error(error: MonographError, path: str | None, source: object) -> OrtError:
    """Return the exception for a model that cannot be loaded."""
    if isinstance(error, OrtError):
        return error
    kind: type[OrtError] = OrtFail
    if isinstance(error, UnsupportedError):
        kind = OrtNotImplemented
    elif isinstance(error, ConfigError):
        kind = InvalidArgument
    elif isinstance(error, InferError):
        kind = OrtFail
    elif path is None and not source:
        kind = InvalidArgument
    elif isinstance(error, ModelError):
        unreadable = ("not an ONNX model", "the model file cannot be read")
        kind = InvalidProtobuf if error.message.startswith(unreadable) else InvalidGraph
    return _same_facts(kind, error, f"Load model from {path} failed:" if path else "")


def run_error(error: MonographError) -> MonographError:
    """Return the exception for a run that raised an error."""
    if isinstance(error, OrtError):
        return error
    return _same_facts(OrtFail if error.internal else InvalidArgument, error)


def _same_facts(kind: type[OrtError], error: MonographError, before: str = "") -> OrtError:
    return kind(
        before + error.message,
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint,
        internal=error.internal,
    )
