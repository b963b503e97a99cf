"""CUDA driver functions that note their calls and call no driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver

real: Any = driver
GOOD = real.CUresult.CUDA_SUCCESS
NO_RESULT = (
    "Destroy", "SetCurrent", "PushCurrent", "Launch", "SetParams", "HostRegister", "HostUnregister",
)  # fmt: skip
"""Endings of calls that return an error code alone."""


class Bindings:
    """The driver's functions, which note that they were called; its types are the real ones."""

    def __init__(self, version: int = 13000) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.errors: dict[str, Any] = {}
        self.version = version
        self.recording: set[int] = set()
        self._made = 100

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]

    def add_condition(self, *arguments: Any) -> Any:
        self.calls.append(("add_condition", arguments))
        self._made += 1
        return self._made

    def CUgraphNodeParams(self) -> SimpleNamespace:  # noqa: N802
        """Parameters whose bodies are there without a driver."""
        return SimpleNamespace(conditional=SimpleNamespace(phGraph_out=["body 0", "body 1"]))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name[2].islower():
            return getattr(real, name)

        def called(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            return (self.errors.get(name, GOOD), *self._results(name, arguments))

        return called

    def _results(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in ("cuStreamBeginCapture", "cuStreamBeginCaptureToGraph"):
            self.recording.add(arguments[0])
            return ()
        if name == "cuStreamEndCapture":
            self.recording.discard(arguments[0])
        if name == "cuStreamIsCapturing":
            status = real.CUstreamCaptureStatus
            active = arguments[0] in self.recording
            return (status.CU_STREAM_CAPTURE_STATUS_ACTIVE if active else status(0),)
        if name == "cuDriverGetVersion":
            return (self.version,)
        if name == "cuStreamGetCaptureInfo":
            active = real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
            return active, 7, "graph", [self._made], None, 1
        if name.endswith(NO_RESULT) or "Update" in name:
            return ()
        self._made += 1
        return (self._made,)
