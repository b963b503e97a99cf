"""The process that compiles exact code in the background (`runtime/cpu/background.py`).

It reads requests from its input and ends with it. Its priority is the lowest there is, and it
compiles on one core.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monograph.bindings import Bindings

MOST_SECONDS = 900
"""The most processor time of the process: a compilation that takes longer is not worth it."""
NICEST = 19


def main() -> None:
    """Serve requests until the input ends."""
    be_modest()
    # What libraries print must not come between replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    compiler = ExactCompiler()
    while True:
        request, model = requests.get()
        started = time.process_time()
        error = compiler.compile(request, model)
        seconds = time.process_time() - started
        replies.write(json.dumps({"error": error, "seconds": seconds}) + "\n")
        replies.flush()


def _read(source: IO[bytes], requests: SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    """Queue requests; end the process with its input, in the middle of a compilation too."""
    while line := source.readline():
        request = json.loads(line)
        requests.put((request, source.read(request["bytes"])))
    os.kill(os.getpid(), signal.SIGTERM)


def be_modest() -> None:
    """Take only processor time that nobody else wants, and be the first to go without memory."""
    with suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all its processes
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(handle, b"1000")
        os.close(handle)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))


class ExactCompiler:
    """Compiles models for sets of shapes, and stores the code in the cache on disk."""

    def __init__(self) -> None:
        self._known: tuple[str, Bindings] | None = None
        """The last model: requests for one model often follow each other."""

    def compile(self, request: dict[str, Any], model: bytes) -> str:
        """Serve one request; return why it failed, else ""."""
        try:
            from monograph.runtime.cpu.native import compile_on

            compile_on(1)
            bindings = self._bindings(request, model)
            shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
            bindings.compile_exact(shapes, request["dtypes"])
        except Exception as e:  # whatever it is, the caller goes on without exact code
            return f"{type(e).__name__}: {e}"
        return ""

    def _bindings(self, request: dict[str, Any], model: bytes) -> Bindings:
        from monograph.bindings import Bindings
        from monograph.config import Config
        from monograph.errors import ModelError
        from monograph.runtime.cache.store import UnreadModel
        from monograph.runtime.progress import silent

        given = {k: v for k, v in request.items() if k not in ("shapes", "dtypes")}
        key = json.dumps(given, sort_keys=True)
        if self._known is not None and self._known[0] == key:
            return self._known[1]
        source = UnreadModel(model or request["path"])
        if source.digest != request["digest"]:
            raise ModelError("the model file has changed since it was loaded")
        if request["values"]:
            source = source.with_values(tuple(request["values"]))
        config = Config(**request["config"])
        made = Bindings(source, config, request["dims"], request["donate"], silent)
        self._known = key, made
        return made


if __name__ == "__main__":
    main()
