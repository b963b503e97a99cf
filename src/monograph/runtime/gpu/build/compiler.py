"""Many kernels compiled side by side, in processes of their own."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

from triton import knobs

from monograph.codegen.triton.module.kernel import Arch
from monograph.errors import CodegenError
from monograph.runtime.gpu.build.build import KernelBinary, CompileRequest, build
from monograph.runtime.gpu.build.worker import encode_reply, decode_request

FEW = 3
"""Kernels for which processes are not worth starting."""
Built = dict[CompileRequest, KernelBinary | CodegenError]


def build_all(
    wanted: Iterable[CompileRequest], arch: Arch, done: Callable[[int], None] = lambda count: None
) -> Built:
    """Every kernel's machine code, or why there is none."""
    requests = list(dict.fromkeys(wanted))
    workers = min(len(os.sched_getaffinity(0)), -(-len(requests) // FEW))
    if workers < 2 and not knobs.runtime.interpret:
        found: Built = {}
        for number, one in enumerate(requests):
            found[one] = _built(one, arch)
            done(number + 1)
        return found
    # A process that interprets kernels cannot compile them.
    return _Crew(requests, arch, done).work(workers)


def _built(one: CompileRequest, arch: Arch) -> KernelBinary | CodegenError:
    try:
        return build(one, arch)
    except CodegenError as error:
        return error


class _Crew:
    """Worker processes, each fed by a thread."""

    def __init__(self, requests: list[CompileRequest], arch: Arch, done: Callable[[int], None]) -> None:
        self.arch = arch
        self.done = done
        self.waiting: queue.SimpleQueue[CompileRequest] = queue.SimpleQueue()
        for one in requests:
            self.waiting.put(one)
        self.built: Built = {}
        self.lock = threading.Lock()

    def work(self, workers: int) -> Built:
        threads = [threading.Thread(target=self._feed) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.built

    def _feed(self) -> None:
        """Keeps one process busy; one that the compiler takes with it is followed by another."""
        while not self.waiting.empty():
            with _started() as process:
                while (one := self._next()) is not None:
                    made = _ask(process, one, self.arch)
                    self._store(one, made or CodegenError("the compiler crashed", op=one.stem))
                    if made is None:
                        break

    def _next(self) -> CompileRequest | None:
        try:
            return self.waiting.get_nowait()
        except queue.Empty:
            return None

    def _store(self, one: CompileRequest, made: KernelBinary | CodegenError) -> None:
        with self.lock:
            self.built[one] = made
            self.done(len(self.built))


def _started() -> subprocess.Popen[str]:
    paths = os.pathsep.join(p for p in sys.path if p)
    # A worker compiles for a device without touching it.
    own = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "monograph.runtime.gpu.build.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **own},
        text=True,
    )


def _ask(process: subprocess.Popen[str], one: CompileRequest, arch: Arch) -> KernelBinary | CodegenError | None:
    """A worker's answer; None where it gave none."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(decode_request(one, arch) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return None
    return encode_reply(line) if line else None
