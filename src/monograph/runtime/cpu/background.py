"""Compilation in the background: one process of low priority for all sessions of this process.

A request is a line of JSON, followed by the bytes of the model if it is no file; a reply is a line
of JSON. The process (`monograph.specialiser`) compiles into the cache on disk, from where the
session loads the code. It ends with this process, however that ends, because its input does.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

IDLE_SECONDS = 5.0
"""The process ends when it has had nothing to do for so long."""
MOST_JOBS = 64
"""The most compilations that wait."""
WORKER = "import sys; sys.path[:] = {path!r}; from monograph.specialiser import main; main()"
"""The program of the process. The caller's own script has no part in it."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_log = logging.getLogger("monograph")


@dataclass(frozen=True)
class CompileJob:
    """A compilation that another process can do."""

    request: Mapping[str, Any]
    """The model, options and shapes, as JSON data."""
    model: bytes = b""
    """The bytes of a model that is no file."""


@dataclass(frozen=True)
class CompileReply:
    """The end of a compilation."""

    error: str = ""
    """The reason why it failed; "" if it did not."""
    seconds: float = 0.0
    """The processor time that it took."""


Ended: TypeAlias = Callable[[CompileReply], None]


class BackgroundCompiler:
    """Compiles one job after the other. A thread talks to the process; nobody else waits for it."""

    def __init__(self) -> None:
        self._start_anew()

    def _start_anew(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[tuple[CompileJob | None, Ended]] = deque()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    def submit(self, job: CompileJob | None, ended: Ended) -> str:
        """Let a job be done, then call `ended` in the thread; return why that cannot be, else "".

        job: None if only `ended` is to be called.
        """
        if job is not None and (reason := why_no_process()):
            return reason
        with self._changed:
            if self._ending:
                return "the process is ending"
            if len(self._jobs) >= MOST_JOBS:
                return f"{MOST_JOBS} compilations are waiting"
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(
                    target=self._work, name="monograph-specialise", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as e:
                    return str(e)
                self._thread = thread
            self._jobs.append((job, ended))
            self._changed.notify_all()
        return ""

    def stop(self) -> None:
        """End the process; jobs that have not ended are dropped."""
        with self._changed:
            self._ending = True
            self._jobs.clear()
            self._changed.notify_all()
            process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def forget(self) -> None:
        """Begin anew in a forked child, which has neither the thread nor the process."""
        process = self._process
        if process is not None:
            # Else the process would not see the end of its input when the parent ends.
            _close_pipes(process)
            process.returncode = 0  # it is no child of this process, which cannot wait for it
        self._start_anew()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            wanted, ended = job
            reply = CompileReply() if wanted is None else self._done(wanted)
            if self._ending:
                return
            try:
                ended(reply)
            except Exception:  # a defect of ours must not end the thread
                _log.exception("exact code could not be loaded")

    def _next(self) -> tuple[CompileJob | None, Ended] | None:
        """Wait for a job; None at the end. A process without jobs ends after a while."""
        with self._changed:
            while not self._jobs and not self._ending:
                if not self._changed.wait(IDLE_SECONDS if self._process else None):
                    process, self._process = self._process, None
                    if process is not None:
                        _close(process)
            return None if self._ending else self._jobs.popleft()

    def _done(self, job: CompileJob) -> CompileReply:
        """Send a job to the process, and wait for its reply."""
        try:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            head = json.dumps({**job.request, "bytes": len(job.model)})
            _write(process.stdin, head.encode() + b"\n")
            _write(process.stdin, job.model)
            line = process.stdout.readline()
            if line:
                found = json.loads(line)
                return CompileReply(str(found["error"]), float(found["seconds"]))
        except (OSError, ValueError, KeyError, TypeError) as e:
            self._end_process()
            return CompileReply(f"the compiling process failed: {e}")
        code = self._end_process()
        return CompileReply(f"the compiling process ended with code {code}")

    def _running(self) -> subprocess.Popen[bytes]:
        with self._changed:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", WORKER.format(path=[p for p in sys.path if p])],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **dict.fromkeys(_THREADS, "1")},
                    bufsize=0,  # a forked child must not find a buffer with half a request
                    creationflags=getattr(subprocess, "IDLE_PRIORITY_CLASS", 0),
                )
            return self._process

    def _end_process(self) -> int | None:
        with self._changed:
            process, self._process = self._process, None
        if process is None:
            return None
        with suppress(OSError):
            process.kill()
        code = process.wait()
        _close(process)
        return code


def _write(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _close(process: subprocess.Popen[bytes]) -> None:
    """End a process that has nothing to do, and collect it."""
    _close_pipes(process)
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def why_no_process() -> str:
    """Return why this process cannot start another Python; "" if it can."""
    if getattr(sys, "frozen", False):
        return "a frozen program has no Python interpreter to compile with"
    if not sys.executable:
        return "the Python interpreter of this process is not known"
    if sys.platform in ("emscripten", "wasi"):
        return "this platform has no processes"
    return ""


background = BackgroundCompiler()
"""The background compilation of this process."""
atexit.register(background.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=background.forget)
