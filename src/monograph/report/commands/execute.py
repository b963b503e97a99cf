"""The commands `monograph run` and `monograph verify`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from monograph.errors import (
    ConfigError,
    ExecutionError,
    FeedError,
    MonographError,
    did_you_mean,
    some_of,
)
from monograph.ir import Graph, OptionalType
from monograph.model import check_dims
from monograph.program.legalise.lower_random import random_op_names
from monograph.report.commands.input_files import (
    INPUT_PREFIX,
    OUTPUT_PREFIX,
    draw_inputs,
    read_archive,
    split_archive,
)
from monograph.runtime.atomic_write import replacing_named
from monograph.runtime.cache.store import is_package
from monograph.runtime.cpu.instrumented import OpenGraph
from monograph.runtime.inputs import Chosen, Inputs
from monograph.runtime.numerics.compare import (
    Difference,
    compare,
    compare_outputs,
    flatten,
    match_rows,
)
from monograph.runtime.numerics.tolerance import Tolerance
from monograph.runtime.progress import Progress, silent
from monograph.session import Session, load

Notes = Callable[[str], None]
"""A function that shows a note to the user."""
RANDOM = "random inputs"
"""The beginning of the note that lists random inputs."""

REFERENCE, ONNXRUNTIME = "reference", "onnxruntime"
SIDES = (REFERENCE, ONNXRUNTIME)
ROWS_TRIED = 2000
"""The largest number of rows to try in another order for a hint; the work is quadratic."""


@dataclass(frozen=True)
class RunRequest:
    """A model, a target and inputs."""

    model: Path
    target: str | None = None
    dims: Mapping[str, int] | None = None
    given: Mapping[str, Any] | None = None
    archive: Path | None = None
    seed: int = 0
    progress: Progress = silent
    """Receives the progress of a compilation."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `monograph.config.Config`."""
    chosen: Chosen = field(default_factory=Chosen)
    """Ranges and values of inputs without an array."""

    @property
    def any_shape(self) -> bool:
        """True for code for any shape: `dims` are sizes of this run, and stay open."""
        return self.options.get("specialise") == "off"

    def load(self, **options: Any) -> Session:
        chosen = {**self.options, **options}
        dims = None if self.any_shape else self.dims
        session = load(self.model, self.target, dims=dims, progress=self.progress, **chosen)
        if self.any_shape and self.dims:
            check_dims(self.dims, session.inputs)
        return session

    def inputs(
        self, session: Session, note: Notes, recorded: Mapping[str, Any] | None = None
    ) -> Inputs:
        """Return the inputs, and note every assumption.

        Single arrays override those of the archive, and these override `recorded` ones.
        """
        given = dict(recorded or {})
        if self.archive is not None:
            given |= _read_feeds(session, self.archive)
        given |= self.given or {}
        if recorded is not None:
            _check_recorded(session, given)
        packaged = session.packaged_sizes
        sizes = self.dims if self.any_shape else None
        made = draw_inputs(session, given, self.seed, chosen=self.chosen, sizes=sizes)
        if made.random:
            note(f"{RANDOM} (seed {self.seed}): {', '.join(map(made.described, made.random))}")
        assumed = {k: v for k, v in made.assumed.items() if k not in (sizes or {})}
        if assumed:
            listed = ", ".join(f"{k}={v}" for k, v in assumed.items())
            advice = "; change them with --dim NAME=SIZE"
            if packaged:
                sets = "sets of sizes, chosen with --dim"
                others = f" ({len(packaged)} {sets})" if len(packaged) > 1 else ""
                advice = f", which the package was compiled for{others}"
            note(f"open dimensions were set: {listed}{advice}")
        return made


@dataclass(frozen=True)
class RunResult:
    """The outputs of a run, and the seconds it took."""

    target: str
    seed: int
    inputs: Inputs
    outputs: dict[str, Any]
    load_seconds: float
    run_seconds: list[float]
    first_run: str = ""
    """The work that the first run included: compilation, or loading of compiled code."""


@dataclass(frozen=True)
class VerifyResult:
    """The result of a comparison."""

    target: str
    against: str
    seed: int
    inputs: Inputs
    differences: list[Difference]
    absent: list[str]
    """Outputs that the file lacks; they count as differences."""
    left_out: list[str]
    """Outputs that the user did not choose."""
    random: list[str]
    seconds: dict[str, float]
    hints: list[str]
    """Possible causes of the differences, and remedies."""

    @property
    def ok(self) -> bool:
        return all(d.ok for d in self.differences) and not self.absent


def about_sizes(note: Notes) -> Notes:
    """Drop the note on random inputs, for commands that show no outputs."""

    def chosen(line: str) -> None:
        if not line.startswith(RANDOM):
            note(line)

    return chosen


@contextmanager
def advising(inputs: Inputs) -> Iterator[None]:
    """Add a hint to an error that random inputs may have caused."""
    try:
        yield
    except ConfigError:
        raise
    except FeedError as e:
        # What was made at random fits, if its sizes do.
        if inputs.assumed:
            listed = ", ".join(f"{k}={v}" for k, v in inputs.assumed.items())
            e.hint = (
                f"open dimensions were set: {listed}; choose sizes with --dim NAME=SIZE,"
                " or give arrays with --inputs FILE.npz"
            )
        raise
    except MonographError as e:
        if inputs.random and e.hint is None:
            e.hint = (
                f"random inputs may be invalid for the model: {some_of(inputs.random)};"
                " choose sizes with --dim NAME=SIZE, or give arrays with --inputs FILE.npz"
            )
        raise


def check_folder(path: Path | None) -> None:
    """Refuse a file in a missing directory, before the work that fills it."""
    if path is not None and not path.parent.is_dir():
        raise ConfigError("the directory of the output file does not exist", given=str(path.parent))


def run_model(request: RunRequest, note: Notes, repeat: int = 1) -> RunResult:
    """Load a model and run it `repeat` times on the same inputs."""
    started = time.perf_counter()
    session = request.load()
    loaded = time.perf_counter() - started
    inputs = request.inputs(session, note)
    seconds = []
    outputs: dict[str, Any] = {}
    for _ in range(max(1, repeat)):
        outputs, taken = _run(session, inputs)
        seconds.append(taken)
    included = _first_run(session, request.model)
    return RunResult(
        session.config.target, request.seed, inputs, outputs, loaded, seconds, included
    )


def _first_run(session: Session, model: Path) -> str:
    """Return the work that the first run of a session included besides computing; "" for none."""
    if session.config.target == "reference":
        return ""
    if is_package(model):
        return "loading of the package's code included"
    if session.stats["from_disk"]:
        return "loading of code from the cache included"
    return "compilation included"


def verify_model(
    request: RunRequest,
    against: str | None,
    note: Notes,
    rtol: float | None = None,
    atol: float | None = None,
    any_order: Collection[str] = (),
    only: Collection[str] = (),
) -> VerifyResult:
    """Run a model once per side and compare all outputs, or those in `only`."""
    session = request.load()
    target = session.config.target
    other = against or REFERENCE
    _check_sides(session, other, {*any_order, *only})
    recorded: dict[str, Any] | None = None
    expected: dict[str, Any] = {}
    if other not in SIDES:
        recorded, expected = _read_recording(session, Path(other))
    inputs = request.inputs(session, note, recorded)
    with advising(inputs):
        graph = session.graph_for(inputs.feeds)
    drawn = random_op_names(graph)
    if drawn:
        note(f"the model draws random numbers ({', '.join(drawn)}): the sides may differ")
    given, taken = _run(session, inputs)
    seconds = {target: taken}
    if other == REFERENCE:
        expected, seconds[other] = _run(
            replace(request, target=REFERENCE, options={}).load(), inputs
        )
    elif other == ONNXRUNTIME:
        expected, seconds[other] = run_onnxruntime(request.model, inputs.feeds)
    wanted = [p.name for p in session.outputs if not only or p.name in only]
    compared = [name for name in wanted if name in expected]
    given, expected = ({n: side[n] for n in compared} for side in (given, expected))
    derived = session.tolerances(inputs.feeds, reference=other == REFERENCE)
    tolerances = {n: _override(t, rtol, atol) for n, t in derived.items()}
    differences = compare_outputs(given, expected, tolerances, any_order)
    return VerifyResult(
        target,
        other,
        request.seed,
        inputs,
        differences,
        absent=[n for n in wanted if n not in expected],
        left_out=[p.name for p in session.outputs if p.name not in wanted],
        random=drawn,
        seconds=seconds,
        hints=_hints(differences, given, expected),
    )


def _hints(
    differences: list[Difference], given: Mapping[str, Any], expected: Mapping[str, Any]
) -> list[str]:
    """Return hints for outputs that differ."""
    hints = []
    beyond = [d for d in differences if not d.ok and d.worst is not None]
    left, right = flatten(given), flatten(expected)
    for d in beyond:
        ours, theirs = left[d.place], right[d.place]
        if max(np.shape(ours)[-2:-1], default=0) > ROWS_TRIED:
            continue
        if compare(d.place, match_rows(ours, theirs), theirs, d.tolerance).ok:
            hints.append(
                f"the rows of {d.name} agree in another order:"
                f" --any-order {d.place.output} allows that"
            )
            beyond = [other for other in beyond if other is not d]
    if floats := [d.name for d in beyond if d.tolerance.rtol > 0 and np.isfinite(d.max_abs)]:
        hints.append(
            f"if {', '.join(floats)} may differ more than rounding explains, say by how much:"
            " --rtol X --atol Y (docs/command-line.md, Tolerances)"
        )
    return hints


def _check_sides(session: Session, other: str, named: Collection[str]) -> None:
    """Refuse wrong sides and names before anything runs."""
    target = session.config.target
    if other not in SIDES and not other.endswith(".npz") and not Path(other).exists():
        raise ConfigError(
            "the side to compare with does not exist",
            expected=f"{' | '.join(SIDES)} | FILE.npz",
            given=other,
            hint=did_you_mean([other], SIDES),
        )
    if other == target:
        raise ConfigError(
            f"the target and the other side must differ, both are {target!r}",
            hint="name another side: --against onnxruntime, or --against FILE.npz",
        )
    if other == ONNXRUNTIME:
        _import_onnxruntime()
    names = [p.name for p in session.outputs]
    if unknown := sorted(set(named) - set(names)):
        raise ConfigError(
            "the model has no such output",
            expected=names,
            given=unknown,
            hint=did_you_mean(unknown, names),
        )


def compiled_graph(session: Session, feeds: Mapping[str, Any]) -> Graph | OpenGraph:
    """Return the graph of the code that serves feeds: with open sizes for any shape."""
    is_open = session.config.specialise == "off" and not session.stats["exact_reason"]
    return OpenGraph(*session.opened_graph(feeds)) if is_open else session.optimised_graph(feeds)


def _read_feeds(session: Session, path: Path) -> dict[str, Any]:
    """Return the inputs in a file, which must hold at least one."""
    arrays = read_archive(path)
    feeds, _ = split_archive(arrays, session.inputs, session.outputs)
    if not feeds:
        raise FeedError(
            "the file holds no input of the model",
            expected=[INPUT_PREFIX + p.name for p in session.inputs],
            given=sorted(arrays),
        )
    return feeds


def _check_recorded(session: Session, given: dict[str, Any]) -> None:
    """Refuse recorded outputs without their inputs."""
    for port in session.inputs:
        if isinstance(port.type, OptionalType):
            given.setdefault(port.name, None)  # an absent value leaves nothing to record
    if absent := [p.name for p in session.inputs if p.name not in given]:
        raise FeedError(
            "the file with recorded outputs must hold their inputs too",
            expected=", ".join(INPUT_PREFIX + p.name for p in session.inputs),
            given=f"nothing for {', '.join(absent)}",
            hint="record them as in:NAME, or give them with --inputs or --input",
        )


def _read_recording(session: Session, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and outputs in a file, which must hold at least one output."""
    arrays = read_archive(path)
    feeds, expected = split_archive(arrays, session.inputs, session.outputs)
    if not expected:
        raise FeedError(
            "the file holds no output of the model",
            expected=[OUTPUT_PREFIX + p.name for p in session.outputs],
            given=sorted(arrays),
        )
    return feeds, expected


def run_onnxruntime(path: Path, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Run a model with ONNX Runtime on the CPU; return the outputs and the seconds."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        started = time.perf_counter()
        results = session.run(None, dict(feeds))
        taken = time.perf_counter() - started
    except Exception as e:  # its errors share no base class below Exception
        raise ExecutionError(f"ONNX Runtime failed: {e}") from e
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, results, strict=True)), taken


def _import_onnxruntime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise ConfigError(
            "onnxruntime is not installed", hint="pip install onnxruntime, then try again"
        ) from None


def save_archive(path: Path, result: RunResult) -> None:
    """Write inputs and outputs as in:NAME and out:NAME, for `verify --against`."""
    named = {INPUT_PREFIX + k: v for k, v in result.inputs.feeds.items()}
    named |= {OUTPUT_PREFIX + k: v for k, v in result.outputs.items()}
    arrays: dict[str, Any] = {}
    for place, value in flatten(named).items():
        if str(place) in arrays:
            raise ConfigError(
                "every array in the file needs its own key",
                given=str(place),
                hint="an output is called like an element of another one: rename it in the model",
            )
        if value is not None:
            arrays[str(place)] = _storable(value)
    with replacing_named(path) as file:
        np.savez(file, **arrays)


def _storable(x: Any) -> Any:
    """Return an array that .npz can hold without pickling: strings as numpy's type."""
    array = np.asarray(x)
    return array.astype(np.str_) if array.dtype == object else array


def _run(session: Session, inputs: Inputs) -> tuple[dict[str, Any], float]:
    started = time.perf_counter()
    with advising(inputs):
        results = session.run(inputs.feeds)
    taken = time.perf_counter() - started
    return dict(zip((p.name for p in session.outputs), results, strict=True)), taken


def _override(derived: Tolerance, rtol: float | None, atol: float | None) -> Tolerance:
    """Return the given tolerance in numpy's sense, or the derived one."""
    if rtol is None and atol is None:
        return derived
    return Tolerance(rtol or 0.0, atol or 0.0)
