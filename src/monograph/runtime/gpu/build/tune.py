"""The tuner: compiles the candidates of each step side by side and times them on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from monograph.codegen.triton.control.subprograms import programs
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import Call, Candidate, GpuContext
from monograph.codegen.triton.module.launch import ARENA, Arch, Launch
from monograph.codegen.triton.module.layout import Bound, GpuModule, lay_out
from monograph.errors import CodegenError, MonographError
from monograph.ir.sizes import any_open
from monograph.program.memory.buffer_assignment import CONSTANT, TEMPORARY
from monograph.program.program import Program, Step
from monograph.runtime.gpu.build import search
from monograph.runtime.gpu.build.binaries import BinaryCache, Built, CompileRequest, request
from monograph.runtime.gpu.build.compiler import build_all
from monograph.runtime.gpu.build.search import Search, TuningProblem
from monograph.runtime.gpu.build.tuning_cache import (
    FAST,
    FULL,
    Entry,
    SizeBucket,
    TuningCache,
    bucket_of,
    environment_of,
    step_key,
    step_label,
    step_text,
)
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.executable import Chooser, GpuExecutable, compile_program, only_host
from monograph.runtime.gpu.tensors import typed
from monograph.runtime.progress import Progress, silent

TRIED = 8
"""Candidates tried for each problem in the fast mode."""
COPIES = 20
"""Maximum copies of constants that alternate in a measurement."""
_log = logging.getLogger("monograph")


MAX_COUNTS = 16
"""Integer tensors of at most this size are taken for counts or positions, not for data."""


class Tuner:
    """Chooses among the candidates of every step of a program."""

    def __init__(self, device: Device, cache: TuningCache, mode: str = FAST) -> None:
        self.device = device
        self.cache = cache
        self.mode = mode if device.measures else "off"
        self.entries = cache.of(environment_of(device))
        self.measured = 0
        """Problems that were measured here, not found in the cache."""
        self.used: dict[str, Entry] = {}
        """Measurements that chose a kernel here."""

    def tune(self, program: Program, *, tf32: bool = False, progress: Progress = silent) -> None:
        """Measure every problem of a program that the cache does not know."""
        if self.mode == "off":
            return
        self.cache.refresh()
        open_ones = self._open(program, tf32)
        if not open_ones:
            return
        cold = _constant_bytes(program) > self.device.cache_bytes // 2
        seconds = None if self.mode == FULL else search.FAST_SECONDS
        found = Search(self.device, lambda m: self._time(m, cold), progress, seconds)
        found.run(open_ones.values(), requests_of)
        for key, problem in open_ones.items():
            if problem.decided:
                self._put(key, problem)
        self.cache.save()

    def _put(self, key: str, problem: TuningProblem) -> None:
        ordered = dict(sorted(problem.times.items(), key=lambda item: item[1]))
        self.entries[key] = {
            "problem": problem.label,
            "winner": next(iter(ordered)),
            "default": problem.default,
            "mode": self.mode,
            "bucket": problem.bucket.key,
            "sizes": " ".join(map(str, problem.bucket.sizes)),
            "us": {name: round(us, 3) for name, us in ordered.items()},
        }
        self.measured += 1

    def _open(self, program: Program, tf32: bool) -> dict[str, TuningProblem]:
        found: dict[str, TuningProblem] = {}
        for step, part in _steps_of(program).items():
            if only_host(step.region):
                continue
            key = problem_key(part, step, tf32)
            if key in found:
                found[key].count += 1
            bucket = problem_bucket(part, step, tf32)
            if key in found or self._known(key, bucket):
                continue
            candidates = select.candidates(GpuContext(part, step, self.device.arch, tf32))
            if len(candidates) < 2:
                continue
            tried = candidates if self.mode == FULL else candidates[:TRIED]
            found[key] = TuningProblem(step_label(step), candidates[0].name, bucket)
            for candidate in tried:
                found[key].candidates[candidate.name] = lay_out(part, [(step, candidate.make())])
        return found

    def _known(self, key: str, bucket: SizeBucket) -> bool:
        """Return whether the cache has a measurement with enough candidates."""
        if self.mode != FULL:
            return self._find(key, bucket) is not None
        entry = self.entries.get(key)
        return entry is not None and entry.get("mode") == FULL

    def _find(self, key: str, bucket: SizeBucket) -> Entry | None:
        """Return the measurement of a problem, or of the nearest sizes in its bucket."""
        if key in self.entries:
            return self.entries[key]
        alike = [(k, e) for k, e in self.entries.items() if e.get("bucket") == bucket.key]
        if not alike:
            return None
        return min(alike, key=lambda item: (bucket.distance(item[1]), item[0]))[1]

    def chooser(self, program: Program, *, tf32: bool = False) -> Chooser:
        """Return a function that picks the measured winner, or else the default.

        If the winner is not among the given candidates, the fastest of them wins.
        """

        parts = _steps_of(program)

        def choose(step: Step, found: list[Candidate]) -> Candidate:
            key = problem_key(parts[step], step, tf32)
            entry = self._find(key, problem_bucket(parts[step], step, tf32))
            if self.mode == "off" or entry is None:
                return found[0]
            by_name = {c.name: c for c in found}
            for name in entry["us"]:
                if name in by_name:
                    self.used[key] = entry
                    return by_name[name]
            return found[0]

        return choose

    def winners(self, program: Program, *, tf32: bool = False) -> dict[str, str]:
        """Return the measured winner of each problem of a program that was measured."""
        if self.mode == "off":
            return {}
        keys = (problem_key(part, step, tf32) for step, part in _steps_of(program).items())
        return {key: str(self.used[key]["winner"]) for key in keys if key in self.used}

    def _time(self, module: GpuModule, cold: bool) -> float | None:
        """Return the time of one run in us, or None if the candidate cannot run.

        If a model's constants do not stay in the device's cache between runs, enough copies of them
        alternate here that none stays.
        """
        copies = -(-2 * self.device.cache_bytes // module.constants.size) if cold else 1
        try:
            executables = [
                GpuExecutable(module, self.device) for _ in range(min(max(copies, 1), COPIES))
            ]
            ports = {
                f"{b.kind}:{b.name}": _numbers(b.nbytes, self.device.place)
                for b in module.program.places.buffers
                if b.kind in ("input", "output")
            }
            for executable in executables:
                executable.fill(_numbers)
                _fill_counts(module, executable, ports)
            return self.device.measure(*(partial(e.launch, ports) for e in executables))
        except (MonographError, RuntimeError) as e:  # of torch, or of its allocator
            _log.warning("skipping a candidate that failed: %s", e)
            return None


def _steps_of(program: Program) -> dict[Step, Program]:
    """Return all steps, including those in branches and loops, with the program of each."""
    return {step: part for part in programs(program) for step in part.steps}


def _constant_bytes(program: Program) -> int:
    return sum(b.nbytes for b in program.places.buffers if b.kind == CONSTANT)


def problem_key(program: Program, step: Step, tf32: bool) -> str:
    """Return the key of a measurement in the tuning cache."""
    return step_key(program, step) + ("-rounded-tf32" if tf32 else "")


def problem_bucket(program: Program, step: Step, tf32: bool) -> SizeBucket:
    """Return the bucket of sizes that a measurement holds for."""
    return bucket_of(step_text(program, step), "-rounded-tf32" if tf32 else "")


def requests_of(module: GpuModule) -> list[CompileRequest]:
    """Return the compile requests of a module."""
    return [r for bound in module.every for r in requests_of_work(bound)]


def requests_of_work(bound: Bound) -> list[CompileRequest]:
    """Return the compile requests of a work item; none for a call, a branch or a loop.

    A kernel of open sizes is compiled for all of them, and for those that are multiples of 16.
    """
    launch = bound.work
    if not isinstance(launch, Launch):
        return []
    dtypes = tuple(a.dtype for a in bound.arguments)
    aligned = tuple(a.aligned for a in bound.arguments)
    forms = [launch]
    if any_open(launch.sizes) and not all(launch.multiples):
        forms.append(replace(launch, multiples=(True,) * len(launch.sizes)))
    return [request(form, dtypes, aligned, bound.step.region.kind) for form in forms]


def build(
    device: Device,
    modules: Sequence[GpuModule],
    progress: Progress = silent,
    kept: BinaryCache | None = None,
) -> Built:
    """Compile and load the kernels of modules in parallel; return the failures."""
    needed = dict.fromkeys(r for m in modules for r in requests_of(m) if not device.has(r))
    made: Built = {} if kept is None else dict(kept.find(needed))
    missing = [r for r in needed if r not in made]
    made |= build_all(missing, device.arch, lambda n: progress("compile", n, len(missing)))
    failed: Built = {}
    for one, binary in made.items():
        try:
            if isinstance(binary, CodegenError):
                raise binary
            device.load(one, binary)
        except MonographError as e:
            failed[one] = CodegenError(str(e))
    return failed


def prepare(device: Device, modules: Sequence[GpuModule]) -> None:
    """Compile and load the kernels of modules in parallel; raise the first failure."""
    for error in build(device, modules).values():
        assert isinstance(error, CodegenError)
        raise error


def compile_chosen(
    program: Program,
    choose: Chooser,
    compile_all: Callable[[GpuModule], Built],
    arch: Arch,
    *,
    tf32: bool = False,
    libraries: bool = True,
    streams: int = 1,
) -> GpuModule:
    """Return a program's module, all of whose kernels compile.

    A candidate that does not compile is dropped and the next best takes its place. A step without
    any candidate left is an error. `libraries` allows candidates that call other libraries.
    """
    refused: dict[Step, dict[str, str]] = {}
    names: dict[Step, str] = {}

    def among(step: Step, found: list[Candidate]) -> Candidate:
        left = [c for c in found if c.name not in refused.get(step, {})]
        while left:
            chosen = choose(step, left)
            if libraries or not any(isinstance(w, Call) for w in chosen.make()):
                names[step] = chosen.name
                return chosen
            left = [c for c in left if c is not chosen]
        raise _nothing_left(step, refused.get(step, {}))

    while True:
        module = compile_program(program, arch, among, tf32=tf32, streams=streams)
        failed = compile_all(module)
        if not failed:
            return module
        for bound in module.every:
            why = next((failed[r] for r in requests_of_work(bound) if r in failed), None)
            if why is not None:
                step = bound.step
                refused.setdefault(step, {})[names[step]] = str(why)
                _log.warning("dropping kernel %s of step %s: %s", names[step], step, why)


def _nothing_left(step: Step, why: dict[str, str]) -> CodegenError:
    first = next(iter(why.values()), "all candidates are library calls")
    return CodegenError(
        f"no kernel for a step compiles: {step.region.kind}",
        op=step.region.kind,
        node=step.origin or None,
        given=f"{', '.join(why) or 'no candidates'}: {first}",
        hint='load the model with target="cpu", and report this with the model',
    )


def _fill_counts(
    module: GpuModule, executable: GpuExecutable, ports: Mapping[str, torch.Tensor]
) -> None:
    """Set small integer inputs to half of the largest dimension.

    They are counts or positions. Random bytes would make every cache full in every measurement.
    """
    storage = module.program.places.storage
    for step in dict.fromkeys(b.step for b in module.works):
        values = [v for v in step.region.inputs if v in storage]
        half = max((d for v in values for d in v.tensor.static), default=0) // 2
        for value in values:
            place = storage[value]
            if not value.dtype.is_integer or value.dtype.bits < 8 or value.tensor.size > MAX_COUNTS:
                continue
            start = place.offset * value.dtype.itemsize
            if place.buffer.kind == TEMPORARY:
                start += module.offsets.get(place.buffer.id, 0)
                memory = executable.buffers[ARENA]
            elif place.buffer.kind != CONSTANT:
                memory = ports[f"{place.buffer.kind}:{place.buffer.name}"]
            else:
                continue
            flat = typed(memory, start, value.dtype)
            most = torch.iinfo(flat.dtype).max
            flat.as_strided(value.tensor.static, place.strides).fill_(min(half, most))


def _numbers(nbytes: int, place: torch.device) -> torch.Tensor:
    """Return random bytes that are small positive numbers in every float type, never 0 or NaN."""
    return torch.randint(1, 0x3B, (max(nbytes, 1) + 256,), dtype=torch.uint8, device=place)
