"""LLVM text to object code, and object code to functions in memory.

No pass runs over the text: code generation at level 3 is all. Modules compile in parallel, and
object code outlives the process in the cache, so the two steps are apart.
"""

from __future__ import annotations

import ctypes
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from monograph.codegen.llvm.module.features import Features
from monograph.errors import CodegenError
from monograph.runtime.cpu.threads import available_threads
from monograph.runtime.cpu.trim_memory import release_memory
from monograph.runtime.forking import Busy, hold_during_fork

_LEVEL = 3
_LARGE = 1 << 20
"""Text of more bytes is that of a model whose memory counts."""
_LOOK_SECONDS = 0.1
"""The longest that an interrupt goes unnoticed if it comes just before a wait."""
_PLACE = re.compile(r"<string>:(\d+):\d+: error: (.*)")


_llvm_lock: Any = getattr(ffi.lib, "_lock", None)
if _llvm_lock is not None:
    # A child that is forked while another thread is inside llvmlite would wait for it for ever.
    hold_during_fork(_llvm_lock.__enter__, lambda: _llvm_lock.__exit__(None, None, None))
# LLVM has locks of its own. After the other: a fork first waits for this, and holds nothing then.
_inside_llvm = Busy()


_jobs = 0
"""The most modules to compile at once; 0 for as many as threads can run."""


def compile_on(threads: int) -> None:
    """Compile on so many threads from now on, in this process."""
    global _jobs
    _jobs = threads


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def compile_module(text: str, features: Features) -> bytes:
    """The object code of one module."""
    return _emit(text, features, True)


def compile_modules(
    texts: Sequence[str],
    features: Features,
    *,
    jobs: int = 0,
    finished: Callable[[], None] | None = None,
) -> list[bytes]:
    """The object code of several modules, compiled side by side; `finished` is called after each.

    Functions that one module calls in another have to be declared there and not be internal.
    """
    _initialise()
    if sum(map(len, texts)) > _LARGE:
        # Code generation should not come on top of what rewriting has freed.
        release_memory()
    objects = [b""] * len(texts)
    order = deque(sorted(range(len(texts)), key=lambda i: -len(texts[i])))
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        with suppress(IndexError):  # no module is left
            while True:
                index = order.popleft()
                try:
                    objects[index] = compile_module(texts[index], features)
                    ended.put(None)
                except BaseException as e:
                    ended.put(e)

    # LLVM serves no interrupt, so this thread only waits. The others are daemons: a process that
    # is interrupted does not wait for a module that nobody wants any more.
    try:
        for _ in range(min(jobs or _jobs or available_threads(), len(texts))):
            Thread(target=work, name="monograph-compile", daemon=True).start()
        for _ in texts:
            if (failure := _next_end(ended)) is not None:
                raise failure
            if finished is not None:
                finished()
    finally:
        order.clear()
    return objects


def _next_end(ended: SimpleQueue[BaseException | None]) -> BaseException | None:
    """Wait for a thread; an interrupt that comes just before the wait does not end it by itself."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=_LOOK_SECONDS)


def assembly(text: str, features: Features) -> str:
    """The machine code of a module, for people and for tests that count spills."""
    return _emit(text, features, False).decode()


class NativeCode:
    """Object code loaded into this process; it goes when this object does.

    Symbols that no module defines (expf, sched_yield) come from the process.
    """

    def __init__(self, objects: Sequence[bytes], names: Sequence[str]) -> None:
        _initialise()
        builder = llvm.JITLibraryBuilder().add_current_process()
        for data in objects:
            builder.add_object_img(data)
        for name in names:
            builder.export_symbol(name)
        try:
            self._engine = llvm.create_lljit_compiler(_machine("generic", ""))
            self._library = builder.link(self._engine, "monograph")
        except RuntimeError as error:
            raise CodegenError(
                f"object code does not load: {error}",
                hint="a function it calls may be defined nowhere",
            ) from None
        self._addresses = {name: int(self._library[name]) for name in names}

    def address(self, name: str) -> int:
        """Return the address of a function that was named when the code was loaded."""
        return self._addresses[name]

    def keep(self) -> None:
        """Never frees this code: for threads that may run it until the process ends."""
        self._library.detach()
        self._engine.detach()


def _machine(cpu: str, flags: str) -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=flags, opt=_LEVEL, codemodel="jitdefault", jit=True
    )


def _emit(text: str, features: Features, as_object: bool) -> bytes:
    """Machine code of a module, in an LLVM context of its own: other threads may do the same."""
    _initialise()
    context = llvm.create_context()
    with _parse(text, context) as module:
        try:
            module.verify()
        except RuntimeError as error:
            raise _verify_error(text, str(error)) from None
        machine = _machine(features.cpu, features.flags)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        emit = _unlocked("LLVMPY_TargetMachineEmitToMemory")
        with ffi.OutputString() as failure:
            buffer = emit(machine, module, int(as_object), failure)
            if not buffer:
                raise CodegenError(f"code generation failed: {failure}")
        try:
            size = ffi.lib.LLVMPY_GetBufferSize(buffer)
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _parse(text: str, context: Any) -> Any:
    parse = _unlocked("LLVMPY_ParseAssembly")
    with ffi.OutputString() as failure:
        module = llvm.ModuleRef(parse(context, ctypes.c_char_p(text.encode()), failure), context)
        if failure:
            module.close()
            raise _parse_error(text, str(failure))
    return module


def _unlocked(name: str) -> Any:
    """A function of llvmlite's library without its lock, which lets one thread in at a time.

    LLVM itself needs no lock between contexts. The two functions where the time goes are called
    like this; where llvmlite hides them, compilation is right but serial.
    """
    function = getattr(ffi.lib, name)
    plain = getattr(function, "_cfn", function)

    def call(*arguments: Any) -> Any:
        with _inside_llvm:
            return plain(*arguments)

    return call


def _parse_error(text: str, message: str) -> CodegenError:
    found = _PLACE.search(message)
    if found is None:
        return CodegenError(f"LLVM text does not parse: {message}")
    line = int(found[1])
    return CodegenError(
        f"LLVM text does not parse: {found[2]}",
        given=f"line {line}: {text.splitlines()[line - 1].strip()}",
    )


def _verify_error(text: str, message: str) -> CodegenError:
    """LLVM prints the instruction at fault but not where it is; the text is searched for it."""
    reason, *shown = [line.strip() for line in message.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for instruction in shown:
        if instruction in lines:
            place = f"line {lines.index(instruction) + 1}: {instruction}"
            return CodegenError(f"LLVM text is not valid: {reason}", given=place)
    return CodegenError(f"LLVM text is not valid: {reason}", given="; ".join(shown) or None)
