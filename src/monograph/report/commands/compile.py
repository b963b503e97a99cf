"""The commands `monograph compile` and `monograph tune`: compile ahead of time, measure kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from monograph.config import Config
from monograph.errors import ConfigError, FeedError
from monograph.report.commands.execute import Notes, RunRequest, about_sizes, advising, check_folder
from monograph.report.render.console import table
from monograph.report.render.tables import count_text
from monograph.runtime.assumed_sizes import TRIED_SIZES
from monograph.runtime.cache.store import is_package
from monograph.runtime.executable import Executable
from monograph.runtime.progress import silent, until_ready
from monograph.session import Session


@dataclass(frozen=True)
class Compiled:
    """A written package."""

    path: Path
    sets: list[dict[str, tuple[int, ...]]]
    """The shapes of inputs, for each set of sizes."""
    kernels: int
    threads: int
    """The number of threads; 0 for a GPU."""
    arch: str
    """The GPU architecture, or ""."""
    nbytes: int
    seconds: float
    from_disk: bool
    """True if the code came from the cache."""
    variants: int = 0
    """The number of variants of code for any shape; 0 if all code is exact."""

    def as_json(self) -> dict[str, Any]:
        return {
            "output": str(self.path),
            "shapes": {name: list(shape) for name, shape in self.sets[0].items()},
            "sets": [{name: list(shape) for name, shape in s.items()} for s in self.sets],
            "variants": self.variants,
            "kernels": self.kernels,
            **({"arch": self.arch} if self.arch else {"threads": self.threads}),
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "from_cache": self.from_disk,
        }


def compile_model(
    requests: Sequence[RunRequest], output: Path, note: Notes, **options: Any
) -> Compiled:
    """Compile a model for the shapes of requests that differ in sizes only; write a package."""
    first = requests[0]
    if output.suffix != ".mono":
        raise ConfigError(
            "a package must be a .mono file", given=output, hint=f"name it {output}.mono"
        )
    if is_package(first.model):
        raise ConfigError(
            "`compile` needs a model, not a package",
            given=str(first.model),
            hint="compile the model that it was made from",
        )
    check_folder(output)  # before minutes of compilation, not after
    started = time.perf_counter()
    session, sets, executables = _any_shape(requests, note, options) or _exact(
        requests, note, options
    )
    session.save(output)
    stats = session.stats
    variants = stats.get("variants", 0)
    return Compiled(
        output,
        sets,
        executables[0].kernels,
        0 if session.config.on_gpu else max(e.threads for e in executables),
        session.arch,
        output.stat().st_size,
        time.perf_counter() - started,
        stats["from_disk"] == (variants or len(sets)),
        variants,
    )


_Made: TypeAlias = tuple[Session, list[dict[str, tuple[int, ...]]], list[Executable]]


def _exact(requests: Sequence[RunRequest], note: Notes, options: Mapping[str, Any]) -> _Made:
    """Compile exact code for the shapes of each request."""
    session = _open(requests, {**_NOW, **options})
    if session.config.target == "reference":
        raise ConfigError("`compile` needs a target that compiles", expected="cpu | gpu")
    sets, executables = [], []
    for request in requests:
        # The inputs of one set of sizes are drawn for a session with these sizes.
        own = session if len(requests) == 1 else request.load(**{**_NOW, **options})
        made = request.inputs(own, about_sizes(note))
        with advising(made):
            executables.append(session.executable(made.feeds))
        sets.append({name: x.shape for name, x in made.feeds.items()})
    return session, sets, executables


_NOW = {"specialise": "now"}
_MOST_ONES = 4
"""The most open dimensions for which variants of size 1 are compiled one by one."""


def _any_shape(
    requests: Sequence[RunRequest], note: Notes, options: Mapping[str, Any]
) -> _Made | None:
    """Compile code for any shape if sizes are left open; None if exact code is wanted."""
    session = _open(requests, {"specialise": "auto", **options})
    if session.config.target != "cpu" or session.config.specialise == "now":
        return None
    ports = (*session.inputs, *session.optional_inputs)
    shared = set.intersection(*(set(r.dims or {}) for r in requests))
    names = {d for p in ports for d in p.shape or () if isinstance(d, str)} - shared
    given = any(r.archive is not None or r.given for r in requests)
    listed = {name for r in requests for name in r.dims or {}}
    if given or not names or names <= listed:
        return None
    sets, executables = [], []
    for request in requests:
        left = sorted(names - set(request.dims or {}))
        for made in (_general(session, request, left), *_ones(session, request, left)):
            if made is not None and session.stats["exact_reason"]:
                note(f"exact code is compiled: {session.stats['exact_reason']}")
                return None
            if made is not None:
                executables.append(made)
                sets.append({n: tuple(s) for n, s in made.input_shapes.items()})
    return (session, sets, executables) if executables else None


def _general(session: Session, request: RunRequest, names: Sequence[str]) -> Executable | None:
    """Compile for open dimensions of two and more; None if no size was found that fits."""
    for size in TRIED_SIZES:
        made = _executable(session, request, dict.fromkeys(names, size))
        if made is not None:
            return made
    return None


def _ones(
    session: Session, request: RunRequest, names: Sequence[str]
) -> Iterator[Executable | None]:
    """Compile for each open dimension of size 1 by itself, and for all of them."""
    ones = [{name} for name in names[:_MOST_ONES]] + ([set(names)] if len(names) > 1 else [])
    for chosen in ones:
        for size in TRIED_SIZES:
            sizes = {name: 1 if name in chosen else size for name in names}
            made = _executable(session, request, sizes)
            if made is not None:
                yield made
                break


def _executable(
    session: Session, request: RunRequest, sizes: Mapping[str, int]
) -> Executable | None:
    """Return code for some sizes; None if the model cannot take them."""
    own = replace(request, dims={**(request.dims or {}), **sizes}, progress=silent)
    try:
        made = own.inputs(own.load(**{**_NOW, "cache_dir": ""}), lambda _: None)
        return session.executable(made.feeds)
    except FeedError:
        return None


def _open(requests: Sequence[RunRequest], options: Mapping[str, Any]) -> Session:
    """Load the model with the sizes that all requests share."""
    sizes = [set((request.dims or {}).items()) for request in requests]
    shared = dict(set.intersection(*sizes))
    kept = {"max_cached_shapes": len(requests)} if len(requests) > Config.max_cached_shapes else {}
    return replace(requests[0], dims=shared).load(**options, **kept)


def show_compiled(out: Console, model: str, found: Compiled) -> None:
    """Print the kernels, shapes and size of the package."""
    listed = [", ".join(f"{name} {list(shape)}" for name, shape in s.items()) for s in found.sets]
    shapes = "; ".join(listed)
    if found.variants:
        shapes = f"any shape in {count_text(found.variants, 'variant')}"
    origin = "found in the cache" if found.from_disk else "compiled"
    where = found.arch or count_text(found.threads, "thread")
    out.print(
        f"{model}: {found.kernels} kernels for {shapes or 'no inputs'} on {where},"
        f" {origin} in {found.seconds:.2f} s",
        highlight=False,
    )
    out.print(f"{found.path}: {found.nbytes:,} bytes", highlight=False)


LABEL = 60
"""The longest problem in the table, in characters."""


@dataclass(frozen=True)
class TuningChoice:
    """A problem and the kernel chosen for it."""

    problem: str
    winner: str
    default: str
    us: float
    default_us: float | None
    """None if the default kernel fails."""
    rivals: int
    steps: int
    """The number of steps with this problem."""

    @property
    def saved(self) -> float:
        """The microseconds per run that the choice saves."""
        return 0.0 if self.default_us is None else self.steps * (self.default_us - self.us)


@dataclass(frozen=True)
class Tuned:
    """The kernels chosen for a model."""

    device: str
    cache: Path | None
    choices: tuple[TuningChoice, ...]
    measured: int
    """The number of problems that were measured now."""
    seconds: float
    streams: tuple[dict[str, Any], ...] = ()
    """The time of a whole run on one or more streams, and the choice."""

    @property
    def chosen_us(self) -> float:
        return sum(c.steps * c.us for c in self.choices)

    @property
    def default_us(self) -> float:
        return sum(c.steps * (c.default_us or c.us) for c in self.choices)

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "cache": None if self.cache is None else str(self.cache),
            "measured": self.measured,
            "seconds": self.seconds,
            "chosen_us": self.chosen_us,
            "default_us": self.default_us,
            "streams": list(self.streams),
            "problems": [vars(c) | {"saved_us": c.saved} for c in self.choices],
        }


def tune_model(request: RunRequest, note: Notes) -> Tuned:
    """Measure the kernels of a model that the tuning cache does not hold."""
    _check(request)
    started = time.perf_counter()
    with until_ready(request.progress):
        session = request.load()
        feeds = request.inputs(session, about_sizes(note)).feeds
        session.run(feeds)  # also what data decide the sizes of
    from monograph.runtime.gpu.build.tune import problem_key
    from monograph.runtime.gpu.target import GpuBackend

    side = session.gpu
    if not isinstance(side, GpuBackend) or not side.device.measures:
        raise ConfigError(
            "nothing can be measured on this target", expected="gpu | gpu:N", given=request.target
        )
    count: dict[str, int] = {}
    for program in session.executable(feeds).programs:
        for step in program.steps:
            key = problem_key(program, step, session.config.tf32)
            count[key] = count.get(key, 0) + 1
    choices = [
        TuningChoice(
            entry["problem"],
            entry["winner"],
            entry["default"],
            entry["us"][entry["winner"]],
            entry["us"].get(entry["default"]),
            len(entry["us"]),
            count[key],
        )
        for key, entry in side.used_measurements().items()
        if key in count
    ]
    choices.sort(key=lambda c: -c.steps * c.us)
    path, taken = side.tuner.cache.path, time.perf_counter() - started
    streams = () if side.streams is None else tuple(side.streams.used.values())
    return Tuned(side.device.name, path, tuple(choices), side.tuner.measured, taken, streams)


def _check(request: RunRequest) -> None:
    mode = request.options.get("tune")
    if mode not in ("fast", "full"):
        raise ConfigError("this command measures", expected="--tune fast | full", given=mode)
    if not str(request.target).startswith("gpu"):
        raise ConfigError(
            "only GPUs have kernels to choose among", expected="gpu | gpu:N", given=request.target
        )


def show_tuned(out: Console, model: str, found: Tuned) -> None:
    """Print the choices, the slowest problems first."""
    columns = ("problem", "steps", "chosen", "us", "default", "us", "of")
    rows = table(f"{model} on {found.device}", *columns, right=(1, 3, 5, 6))
    for c in found.choices:
        default = "the same" if c.winner == c.default else c.default
        us = "fails" if c.default_us is None else f"{c.default_us:.1f}"
        rows.add_row(
            c.problem[:LABEL], str(c.steps), c.winner, f"{c.us:.1f}", default, us, str(c.rivals)
        )
    out.print(rows)
    known = len(found.choices) - found.measured
    gain = found.default_us / found.chosen_us if found.chosen_us else 1.0
    out.print(
        f"{found.chosen_us:.0f} us a run in these steps instead of {found.default_us:.0f} by the"
        f" defaults: {gain:.2f}x as fast; {found.measured} problems measured,"
        f" {max(known, 0)} known before, {found.seconds:.1f} s",
        highlight=False,
    )
    for entry in found.streams:
        us = ", ".join(f"{name} {taken:.1f} us" for name, taken in entry["us"].items())
        out.print(f"{entry['problem']}: {entry['winner']} chosen ({us})", highlight=False)
    if found.cache is not None:
        out.print(f"kept in {found.cache}", highlight=False)
