"""Runs of executables that nothing captures: by choice, or because there are no graphs here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NoReturn

import torch

from monograph.errors import ConfigError
from monograph.runtime.counts import Counts, RunCounters
from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.async_run import started_eagerly
from monograph.runtime.gpu.capture.capture_policy import Attempts
from monograph.runtime.gpu.capture.launches import not_copied
from monograph.runtime.gpu.capture.replay_fast_path import Quick, cold
from monograph.runtime.gpu.tensor_checks import imported
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending, ready


class Eager:
    """An executable that would be captured if there were graphs: each run is counted, and why."""

    hot: Quick = staticmethod(cold)
    warm: Quick = staticmethod(cold)
    start_hot: Quick = staticmethod(cold)

    def __init__(self, executable: GpuProgram, reason: str, mode: str, tally: RunCounters) -> None:
        self.executable = executable
        self.counts: Counts = tally.of(self)
        self._reason = reason
        self._attempts = Attempts(mode, self.counts, tally)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_copied("a model on a GPU")

    def __getattr__(self, name: str) -> Any:
        """All that is asked of an executable, but its runs."""
        if name in ("executable", "__setstate__"):
            raise AttributeError(name)
        return getattr(self.executable, name)

    def run(self, feeds: Mapping[str, Any], out: Mapping[str, Any] = NOTHING) -> list[Any]:
        """The outputs, as `Running.run` gives them."""
        self._count()
        return self.executable.run(feeds, out)

    def _count(self) -> None:
        with self.executable.lock:  # threads count together
            self._attempts.goes_without(self._reason)

    def run_async(
        self, feeds: Mapping[str, Any], stream: Any = None, out: Mapping[str, Any] = NOTHING
    ) -> Pending:
        """Enqueues a run on the current stream, or the one given."""
        self._count()
        return run_async(self.executable, feeds, stream, out)


def run_async(
    executable: GpuProgram,
    feeds: Mapping[str, Any],
    stream: Any = None,
    out: Mapping[str, Any] = NOTHING,
) -> Pending:
    """Enqueues a run kernel by kernel on the current stream, or the one given.

    Where the host takes part in a run, it has ended before this returns.
    """
    executable.check_process()
    given = {name: imported(x) for name, x in feeds.items()}
    place = executable.device.place
    with ExitStack() as stack:
        if stream is not None:
            if place.type != "cuda":
                raise ConfigError("there are no streams here", given=str(stream))
            number = int(getattr(stream, "cuda_stream", stream))
            user = torch.cuda.ExternalStream(number, place)
            for tensor in (*given.values(), *out.values()):
                if isinstance(tensor, torch.Tensor) and tensor.device == place:
                    tensor.record_stream(user)
            stack.enter_context(torch.cuda.stream(user))
        if not getattr(executable, "whole", True):
            return ready(executable.run(given, out))
        return started_eagerly(executable, given, out)
