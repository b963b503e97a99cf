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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from triton import knobs

from monograph.codegen.triton.emit.scalar import stored
from monograph.codegen.triton.module.kernel import NAME, Arch, Launch
from monograph.errors import CodegenError
from monograph.ir import DType
from monograph.runtime.cache.object_cache import DiskCache

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


POINTERS = {
    "i8": "*i8",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "half": "*fp16",
    "bfloat": "*bf16",
    "float": "*fp32",
    "double": "*fp64",
}
"""Triton's pointer types, by LLVM's element types."""


@dataclass(frozen=True)
class CompileRequest:
    """A kernel to compile: its source, and the types and alignment of its arguments.

    Field names enter the keys of the binary cache.
    """

    source: str
    stem: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int
    stages: int
    dependent: bool


@dataclass(frozen=True)
class KernelBinary:
    """A compiled kernel: code that the driver loads, and its launch parameters."""

    name: str
    code: bytes
    shared: int
    threads: int
    dependent: bool


def request(
    launch: Launch, dtypes: tuple[DType, ...], aligned: tuple[bool, ...], stem: str
) -> CompileRequest:
    """Return the compile request of a launch."""
    sizes = tuple("i64" if wide else "i32" for wide in launch.wide_sizes)
    types = tuple(POINTERS[stored(t)] for t in dtypes) + sizes
    aligned = (aligned if launch.aligned is None else launch.aligned) + launch.multiples
    return CompileRequest(
        launch.source, stem, types, aligned, launch.warps, launch.stages, launch.dependent
    )


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


_ABOUT, _CODE = "about", "code"
_FORMAT = 1
"""Format of the stored parts; raise it when their meaning changes."""
KERNELS_PER_WORKER = 3
"""Kernels per worker process; fewer do not repay its start."""
Built = dict[CompileRequest, KernelBinary | CodegenError]


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
    workers = min(len(os.sched_getaffinity(0)), -(-len(requests) // KERNELS_PER_WORKER))
    if workers < 2 and not knobs.runtime.interpret:
        found: Built = {}
        for number, one in enumerate(requests):
            found[one] = _build_or_error(one, arch)
            done(number + 1)
        return found
    # This process may interpret kernels, and then cannot compile them.
    return _Workers(requests, arch, done).work(workers)


def _build_or_error(one: CompileRequest, arch: Arch) -> KernelBinary | CodegenError:
    try:
        return build(one, arch)
    except CodegenError as error:
        return error


class _Workers:
    """Worker processes, each fed by a thread."""

    def __init__(
        self, requests: list[CompileRequest], arch: Arch, done: Callable[[int], None]
    ) -> None:
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
        """Keep one process busy; start another if the compiler kills it."""
        while not self.waiting.empty():
            with _start_worker() as process:
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


class BinaryCache:
    """Machine code of one architecture's kernels on disk; stores nothing without a cache.

    Triton has a cache too, but a process must import Triton to ask it.
    """

    def __init__(self, cache: DiskCache | None, arch: Arch) -> None:
        self._cache = cache
        self._arch = asdict(arch)
        self.found = 0
        """Kernels that were found and not compiled."""
        self._stored: set[str] = set()
        """Keys that are known to be in the cache."""

    def find(self, wanted: Iterable[CompileRequest]) -> dict[CompileRequest, KernelBinary]:
        """Return the kernels that the cache has."""
        made = {one: self._find(one) for one in wanted} if self._cache is not None else {}
        found = {one: binary for one, binary in made.items() if binary is not None}
        self.found += len(found)
        return found

    def _find(self, one: CompileRequest) -> KernelBinary | None:
        assert self._cache is not None
        key = self._key(one)
        parts = self._cache.get(key)
        if parts is None:
            return None
        self._stored.add(key)
        try:
            return KernelBinary(**{**json.loads(bytes(parts[_ABOUT])), "code": bytes(parts[_CODE])})
        except (ValueError, KeyError, TypeError):
            self._cache.forget(key)
            self._stored.discard(key)
            return None

    def keep(self, made: dict[CompileRequest, KernelBinary]) -> None:
        """Store compiled kernels."""
        for one, binary in made.items():
            key = self._key(one)
            if self._cache is None or key in self._stored:
                continue
            about = {name: x for name, x in asdict(binary).items() if name != "code"}
            self._cache.put(key, {_ABOUT: json.dumps(about).encode(), _CODE: binary.code})
            self._stored.add(key)

    def _key(self, one: CompileRequest) -> str:
        parts = {
            "format": _FORMAT,
            "kernel": asdict(one),
            "arch": self._arch,
            "triton": version("triton"),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    main()
