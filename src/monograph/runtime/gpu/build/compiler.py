"""Kernels from source text to machine code: worker processes compile them, and a disk cache.

`python -m monograph.runtime.gpu.build.compiler` is a worker: it reads a JSON object per line and
answers with one per line. Triton reads the source of a function from the file that defines it; the
files of generated kernels exist in memory only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import linecache
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from triton import knobs

from monograph.codegen.triton.module.kernel import NAME
from monograph.codegen.triton.module.launch import Arch
from monograph.errors import CodegenError
from monograph.runtime.gpu.build.binaries import Built, CompileRequest, KernelBinary

_HEAD = "import triton\nimport triton.language as tl\n"
_INTERPRETED = "from monograph.codegen.triton.emit import interpreter_math as functions\n"
_IMPORTS = (
    ("functions.", "from triton.language.extra import libdevice as functions\n"),
    ("gdc_", "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"),
)
_lock = threading.Lock()
_functions: dict[str, Any] = {}


def named(source: str, stem: str) -> str:
    """Name a kernel after its stem and a hash of its source."""
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    words = "".join(c if c.isalnum() else "_" for c in stem)
    return f"{words}_{key}"


def function(source: str, stem: str = "kernel") -> Any:
    """Return the Triton function of a source text; equal texts share one function."""
    name = named(source, stem)
    with _lock:
        if name not in _functions:
            _functions[name] = _define(name, source.replace(NAME, name))
        return _functions[name]


def _define(name: str, source: str) -> Any:
    imports = "".join(line for name, line in _IMPORTS if name in source)
    if knobs.runtime.interpret:
        imports = imports.replace(_IMPORTS[0][1], _INTERPRETED)
    text = f"{_HEAD}{imports}\n\n{source}"
    file = f"<monograph kernel {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": f"monograph_kernels.{name}", "__file__": file}
    exec(compile(text, file, "exec"), space)
    return space[name]


def build(wanted: CompileRequest, arch: Arch) -> KernelBinary:
    """Compile a kernel for an architecture; no device is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = int(arch.name.removeprefix("sm_")) if arch.backend == "cuda" else arch.name
    made = function(wanted.source, wanted.stem)
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, aligned in enumerate(wanted.aligned) if aligned
    }
    signature = {f"p{i}": kind for i, kind in enumerate(wanted.types)}
    options: dict[str, Any] = {"num_warps": wanted.warps, "num_stages": wanted.stages}
    if wanted.dependent:
        options["launch_pdl"] = True
    try:
        compiled = triton.compile(
            ASTSource(made, signature, attrs=attributes),
            target=GPUTarget(arch.backend, name, arch.warp),
            options=options,
        )
    except Exception as error:
        raise CodegenError(
            f"cannot compile a kernel for {arch.name}: {error}", op=wanted.stem
        ) from error
    code = compiled.asm["cubin" if arch.backend == "cuda" else "hsaco"]
    meta = compiled.metadata
    return KernelBinary(
        meta.name, bytes(code), meta.shared, meta.num_warps * arch.warp, wanted.dependent
    )


KERNELS_PER_WORKER = 3
"""Kernels per worker process; fewer do not repay its start."""


def encode_request(one: CompileRequest, arch: Arch) -> str:
    """Return the line that asks a worker for a kernel."""
    return json.dumps({"request": asdict(one), "arch": asdict(arch)})


def decode_reply(line: str) -> KernelBinary | CodegenError:
    """Return the kernel or the error in a worker's reply."""
    answer = json.loads(line)
    if "error" in answer:
        return CodegenError(answer["error"])
    return KernelBinary(**{**answer, "code": base64.b64decode(answer["code"])})


def _compile(line: str) -> dict[str, Any]:
    asked = json.loads(line)
    given = asked["request"]
    one = CompileRequest(
        **{**given, "types": tuple(given["types"]), "aligned": tuple(given["aligned"])}
    )
    try:
        binary = build(one, Arch(**asked["arch"]))
    except CodegenError as error:
        return {"error": str(error)}
    return {**asdict(binary), "code": base64.b64encode(binary.code).decode()}


def main() -> None:
    # The compiler may print to stdout: keep that out of the replies.
    """Run a worker: compile each request from stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_compile(line)) + "\n")
        answers.flush()


def build_all(
    wanted: Iterable[CompileRequest], arch: Arch, done: Callable[[int], None] = lambda count: None
) -> Built:
    """Compile kernels; return the machine code or the error of each."""
    requests = list(dict.fromkeys(wanted))
    found: Built = {}
    lock = threading.Lock()

    def each(one: CompileRequest, made: KernelBinary | CodegenError) -> None:
        with lock:
            found[one] = made
            done(len(found))

    builds = KernelBuilds(arch, len(requests), each)
    builds.add(requests)
    builds.finish()
    return found


def _build_or_error(one: CompileRequest, arch: Arch) -> KernelBinary | CodegenError:
    try:
        return build(one, arch)
    except CodegenError as error:
        return error


class KernelBuilds:
    """Worker processes that compile kernels in the order in which these are added."""

    def __init__(
        self,
        arch: Arch,
        expected: int,
        each: Callable[[CompileRequest, KernelBinary | CodegenError], None],
    ) -> None:
        """expected: about how many kernels there will be.

        each: called with each kernel or its error, from any thread.
        """
        self._arch = arch
        self._each = each
        self._waiting: queue.SimpleQueue[CompileRequest | None] = queue.SimpleQueue()
        workers = min(len(os.sched_getaffinity(0)), -(-expected // KERNELS_PER_WORKER))
        # A process that interprets kernels cannot compile them.
        here = workers < 2 and not knobs.runtime.interpret
        count = 0 if here or not expected else max(workers, 1)
        self._threads = [threading.Thread(target=self._feed, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def add(self, requests: Iterable[CompileRequest]) -> None:
        """Compile kernels after those that were added before."""
        for one in requests:
            if self._threads:
                self._waiting.put(one)
            else:
                self._each(one, _build_or_error(one, self._arch))

    def stop(self) -> None:
        """Forget the kernels that no worker has begun, and wait for the others."""
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        self.finish()

    def finish(self) -> None:
        """Wait for all kernels that were added."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _feed(self) -> None:
        """Keep one process busy; start another if the compiler kills it."""
        one = self._waiting.get()
        while one is not None:
            with _start_worker() as process:
                made: KernelBinary | CodegenError | None = CodegenError("")
                while one is not None and made is not None:
                    made = _ask(process, one, self._arch)
                    self._each(one, made or CodegenError("the compiler crashed", op=one.stem))
                    one = self._waiting.get()


def _start_worker() -> subprocess.Popen[str]:
    paths = os.pathsep.join(p for p in sys.path if p)
    # A worker compiles for a device without touching it.
    own = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "monograph.runtime.gpu.build.compiler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **own},
        text=True,
    )


def _ask(
    process: subprocess.Popen[str], one: CompileRequest, arch: Arch
) -> KernelBinary | CodegenError | None:
    """Return a worker's reply, or None if it died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(encode_request(one, arch) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return None
    return decode_reply(line) if line else None


if __name__ == "__main__":
    main()
