"""The cost model of this host: copy bandwidth, arithmetic rate and barrier time, measured once.

The measurement takes some ten milliseconds, before the first compilation with a cache directory.
The directory keeps the result, so that all processes that share it rewrite models alike. Rates are
those of one core, because other processes disturb several; figures are rounded to powers of two
around `CPU_COST`, so that noise seldom changes them. Without a cache directory, or where nothing
can be measured, `CPU_COST` is used.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from monograph.codegen.llvm.module.features import Features, choose_features
from monograph.config import Config
from monograph.errors import MonographError
from monograph.rewrite.cost import CPU_COST, CostModel, LinearCost
from monograph.runtime.cache.object_cache import make_key, open_cache
from monograph.runtime.cpu.native import NativeCode, compile_module
from monograph.runtime.cpu.threads import choose_threads

_log = logging.getLogger("monograph")
TRIALS = 4
"""The repetitions of each measurement; the best one counts."""
COPIED = 8 << 20
"""The bytes of a copy: more than the caches of one core hold."""
TURNS = 1 << 15
"""The rounds of the arithmetic loop."""
CHAINS = 10
"""The independent chains of multiply-adds: as many as a core needs to be busy."""
MEETINGS = 256
SPINS = 1 << 17
"""The most times that a thread looks for the other; a busy machine runs one after the other."""
REACHED = 0.5
"""The part of both rates that kernels reach."""
CALL_SECONDS = 0.2e-6
"""The time of a kernel besides its barrier: its call, the start and the end of its loops."""
WIDEST = 3
"""The largest distance of a figure from its default, in powers of two."""

_TEXT = """
define void @copy(ptr %to, ptr %from, i64 %bytes) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @meet(ptr %place, i64 %me, i64 %rounds, i64 %spins) {
start:
  br label %look
look:
  %left = phi i64 [ %spins, %start ], [ %less, %wait ], [ %left, %mine ]
  %done = phi i64 [ 0, %start ], [ %done, %wait ], [ %more, %mine ]
  %seen = load atomic i64, ptr %place acquire, align 8
  %parity = and i64 %seen, 1
  %turn = icmp eq i64 %parity, %me
  br i1 %turn, label %mine, label %wait
mine:
  %next = add i64 %seen, 1
  store atomic i64 %next, ptr %place release, align 8
  %more = add i64 %done, 1
  %all = icmp eq i64 %more, %rounds
  br i1 %all, label %end, label %look
wait:
  %less = sub i64 %left, 1
  %tired = icmp eq i64 %less, 0
  br i1 %tired, label %end, label %look
end:
  ret void
}
"""


@dataclass(frozen=True)
class Measured:
    """The rates of one core, and the time in which two threads meet."""

    bytes_per_second: float
    flops_per_second: float
    barrier_seconds: float | None
    """None for one thread, or on a machine too busy to tell."""


def host_cost(config: Config) -> CostModel:
    """Return the cost model of this host for the threads of a configuration."""
    store = open_cache(config)
    if store is None:
        return CPU_COST
    features, threads = choose_features(config.cpu_isa), choose_threads(config.threads)
    key = make_key(features, host=platform.node(), cpu=processor(), threads=str(threads))
    kept = store.get(key)
    if kept is not None:
        return LinearCost(**json.loads(bytes(kept["cost"])))
    found = _measured(features, threads)
    if found is None:
        return CPU_COST
    cost = rounded(found, threads)
    _log.info("measured %s: %s", found, cost)
    store.put(key, {"cost": json.dumps(asdict(cost)).encode()})
    return cost


def rounded(found: Measured, threads: int) -> LinearCost:
    """Return a cost model whose figures are powers of two times those of `CPU_COST`.

    Threads share memory: their bandwidth counts as that of one core.
    """
    launch = CPU_COST.launch_seconds
    if found.barrier_seconds is not None:
        launch = _near(launch, CALL_SECONDS + found.barrier_seconds)
    return replace(
        CPU_COST,
        launch_seconds=launch,
        flops_per_second=_near(
            CPU_COST.flops_per_second, REACHED * found.flops_per_second * threads
        ),
        bytes_per_second=_near(CPU_COST.bytes_per_second, REACHED * found.bytes_per_second),
    )


def _near(default: float, given: float) -> float:
    steps = round(math.log2(given / default))
    return default * 2.0 ** max(-WIDEST, min(WIDEST, steps))


def _measured_now(features: Features, threads: int) -> Measured | None:
    """Measure; None where code cannot be compiled or memory is short."""
    try:
        return measure(features, threads)
    except (MonographError, OSError, MemoryError) as e:
        _log.info("the host cannot be measured: %s", e)
        return None


_measured = cache(_measured_now)


def measure(features: Features, threads: int) -> Measured:
    """Measure the rates of one core, and the barrier if there are several threads."""
    code = NativeCode(
        [compile_module(_TEXT + _arithmetic(features), features)], ("copy", "meet", "multiply")
    )
    copy, meet, multiply = (
        ctypes.CFUNCTYPE(None, *kinds)(code.address(name))
        for name, kinds in (
            ("copy", (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
            ("meet", (ctypes.c_void_p, *(ctypes.c_int64,) * 3)),
            ("multiply", (ctypes.c_void_p, ctypes.c_int64)),
        )
    )
    sums = np.zeros(1 << 10, np.float32)
    best = _best(lambda: multiply(sums.ctypes.data, TURNS))
    flops = 2.0 * TURNS * CHAINS * features.lanes(32) / best
    memory = np.ones((2, COPIED), np.uint8)
    to, source = (part.ctypes.data for part in memory)
    moved = 2.0 * COPIED / _best(lambda: copy(to, source, COPIED))
    return Measured(moved, flops, _barrier(meet) if threads > 1 else None)


def _best(work: Callable[[], None]) -> float:
    found = math.inf
    for _ in range(TRIALS):
        start = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - start)
    return found


def _barrier(meet: Callable[..., None]) -> float | None:
    """Return the time in which two threads meet; None if they did not run side by side."""
    found = math.inf
    for _ in range(TRIALS):
        place = np.zeros(8, np.int64)
        spans = [0.0, 0.0]

        def turn(me: int, place: Any = place, spans: list[float] = spans) -> None:
            start = time.perf_counter()
            meet(place.ctypes.data, me, MEETINGS, SPINS)
            spans[me] = time.perf_counter() - start

        other = threading.Thread(target=turn, args=(1,))
        other.start()
        turn(0)
        other.join()
        if int(place[0]) == 2 * MEETINGS:
            found = min(found, min(spans) / MEETINGS)
    return found if math.isfinite(found) else None


def _arithmetic(features: Features) -> str:
    """Return a function of independent chains of multiply-adds on whole registers."""
    kind = f"<{features.lanes(32)} x float>"
    chains = range(CHAINS)
    first = "\n".join(
        f"  %a{i} = phi {kind} [ zeroinitializer, %start ], [ %c{i}, %turn ]" for i in chains
    )
    steps = "\n".join(
        f"  %b{i} = fmul contract {kind} %a{i}, %k\n  %c{i} = fadd contract {kind} %b{i}, %k"
        for i in chains
    )
    ends = "\n".join(
        f"  %p{i} = getelementptr {kind}, ptr %sums, i64 {i}\n"
        f"  store {kind} %c{i}, ptr %p{i}, align 4"
        for i in chains
    )
    return f"""
define void @multiply(ptr %sums, i64 %turns) {{
start:
  %k = load {kind}, ptr %sums, align 4
  br label %turn
turn:
  %n = phi i64 [ 0, %start ], [ %m, %turn ]
{first}
{steps}
  %m = add i64 %n, 1
  %all = icmp eq i64 %m, %turns
  br i1 %all, label %end, label %turn
end:
{ends}
  ret void
}}
"""


@cache
def processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if "model name" in line)
            return next(names, platform.processor())
    except OSError:
        return platform.processor()
