"""One process-wide pool of native threads that run compiled functions.

Workers never enter Python and hold no lock of it. They spin for a millisecond after a launch, then
sleep (and yield before that where they outnumber the cores), so that runs in a row start in about a
microsecond and an idle process costs nothing. Who is woken on the core of who woke it goes to
another.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import threading
import time

from monograph.codegen.llvm.module.features import host_features
from monograph.errors import ExecutionError
from monograph.runtime.cache.object_cache import DiskCache, make_key
from monograph.runtime.cpu import pool_cells, pool_code
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.cpu.pool_cores import THREAD
from monograph.runtime.cpu.threads import MAX_THREADS, available_threads

_SPIN_SECONDS = 1e-3
"""Longer than the next run is away where runs follow each other: a core that sleeps, a virtual one
above all, may take as long to come back as a small model takes. At barriers it is a quarter."""
_TRIAL_TURNS = 2000
_LINE = 128
_OBJECT = "object"
_EXPORTS = ("launch", "share", "run_alone", "worker", "spin")
# Faults belong to the thread that made them; every other signal is for Python's threads.
_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT"}


class ThreadPool:
    """Native threads, started when first needed and asleep when not.

    A compiled function is `void f(ptr context, i64 tid, i64 threads)`. For a launch on several
    threads, the context begins with the state of a barrier (codegen/llvm/barrier.py).
    """

    def __init__(self, cache: DiskCache | None = None) -> None:
        """cache: keeps the native half, whose compilation takes longer than to load a model."""
        code = NativeCode([_native_half(cache)], _EXPORTS)
        pointer = ctypes.c_void_p
        launch = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
        self._launch, self._share = launch(code.address("launch")), launch(code.address("share"))
        self._run_alone = ctypes.CFUNCTYPE(None, pointer, pointer)(code.address("run_alone"))
        self._spin = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int32)(code.address("spin"))
        self._worker = code.address("worker")
        # Workers run this code until the process is gone, even past the interpreter's end.
        code.keep()
        self.forget_threads()

    def forget_threads(self) -> None:
        """Starts anew in a forked child, which has none of its parent's threads."""
        self._lock = threading.Lock()
        self._state = 0
        self.size = 1
        self._expected = 0

    def launch(self, function: int, context: int, threads: int) -> None:
        """Runs a function on so many threads, the caller being the first; returns when all did.

        Its threads may wait for each other. Such launches from several Python threads go one after
        another, in the order in which they came.
        """
        if threads == 1:
            self._run_alone(function, context)
            return
        if threads > self.size:
            self.reserve(threads)
        self._launch(self._state, function, context, threads)

    def share(self, function: int, context: int, parts: int) -> None:
        """Run a function of so many parts on the caller and on idle workers.

        Launches from several Python threads run at once. A lone caller gets a worker for every
        other part; callers that run at once divide the cores, down to one for each. The numbers do
        not depend on it.
        """
        if parts > self.size:
            self.reserve(parts)
        self._share(self._state, function, context, parts)

    def expect(self, callers: int) -> None:
        """Add to the number of threads that share launches again and again; below 0, subtract.

        Two or more divide the cores evenly, also while one of them is between two launches: parts
        of a run then wait for no worker that another run has delayed.
        """
        with self._lock:
            self._expected += callers
            if self._state:
                self._write(pool_code.EXPECTED, self._expected)

    def reserve(self, threads: int) -> None:
        """Starts threads until there are so many, the caller counted."""
        if threads > MAX_THREADS:
            raise ExecutionError("too many threads", expected=f"<= {MAX_THREADS}", given=threads)
        with self._lock:
            if not self._state:
                self._state = self._make_state()
            while self.size < threads:
                self._start(self.size)
                self.size += 1
                self._write(pool_code.SIZE, self.size)

    def _write(self, place: int, number: int) -> None:
        ctypes.c_int32.from_address(self._state + place).value = number

    def _make_state(self) -> int:
        """The pool's memory. It is never freed, because sleeping workers refer to it."""
        calloc = ctypes.CDLL(None).calloc
        calloc.restype, calloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
        found = calloc(1, pool_code.SLOTS + (MAX_THREADS + 1) * pool_code.SLOT_BYTES)
        if not found:
            raise ExecutionError("no memory for the thread pool")
        state = -(-int(found) // _LINE) * _LINE
        for index in range(pool_cells.RING_CELLS):
            _make_cell(state + pool_cells.RING + index * pool_cells.CELL_BYTES)
        _make_cell(state + pool_cells.MEETING)
        for at, number in (
            (pool_code.SPIN, self._spin_turns(state)),
            (pool_code.CORES, available_threads()),
            (pool_code.EXPECTED, self._expected),
        ):
            ctypes.c_int32.from_address(state + at).value = number
        return state

    def _spin_turns(self, state: int) -> int:
        """Turns of a waiting loop that take about as long as a worker should spin.

        Measured, because one turn is 1 to 50 ns from one core to another.
        """
        best = 1.0
        for _ in range(3):
            start = time.perf_counter()
            self._spin(state, _TRIAL_TURNS)
            best = min(best, time.perf_counter() - start)
        return int(_SPIN_SECONDS / max(best / _TRIAL_TURNS, 1e-10))

    def _start(self, index: int) -> None:
        slot = self._state + pool_code.SLOTS + index * pool_code.SLOT_BYTES
        _make_cell(slot)
        ctypes.c_int64.from_address(slot + pool_code.INDEX).value = index
        libc = ctypes.CDLL(None)
        thread = ctypes.c_ulong()
        kept = {getattr(signal, name) for name in _FAULTS}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - kept)
        try:
            failure = libc.pthread_create(
                ctypes.byref(thread), None, ctypes.c_void_p(self._worker), ctypes.c_void_p(slot)
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if failure:
            raise ExecutionError(
                f"no thread: {os.strerror(failure)}",
                given=f"{index + 1} threads",
                hint="set MONOGRAPH_THREADS or threads= to a smaller number",
            )
        ctypes.c_uint64.from_address(slot + THREAD).value = thread.value
        libc.pthread_detach(thread)


def _native_half(cache: DiskCache | None) -> bytes:
    """Return the object code of the pool, compiled or found on disk."""
    features = host_features()
    text = pool_code.pool_text(features)
    key = make_key(features, pool=hashlib.sha256(text.encode()).hexdigest())
    found = None if cache is None else cache.get(key)
    if found is not None and _OBJECT in found:
        return bytes(found[_OBJECT])
    made = compile_module(text, features)
    if cache is not None:
        cache.put(key, {_OBJECT: made})
    return made


def _make_cell(address: int) -> None:
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_init(ctypes.c_void_p(address + pool_cells.MUTEX), None)
    libc.pthread_cond_init(ctypes.c_void_p(address + pool_cells.CONDITION), None)


_lock = threading.Lock()
_pool: ThreadPool | None = None
_cache: DiskCache | None = None


def keep_pool_in(cache: DiskCache | None) -> None:
    """Look for the code of the pool in this cache, if the pool has not been made."""
    global _cache
    _cache = cache


def shared_pool() -> ThreadPool:
    """The pool of this process, made when first asked for."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPool(_cache)
    return _pool


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if _pool is not None:
        _pool.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
