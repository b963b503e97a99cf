"""The runs of a session: feeds are checked, an executable is found, and outputs are returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Never, NoReturn, Self, TypeAlias

from monograph.bindings import Bindings
from monograph.config import Config
from monograph.errors import (
    ConfigError,
    ExecutionError,
    FeedError,
    InferError,
    MonographError,
    UnknownRankError,
)
from monograph.runtime.counts import REQUIRE, why_not_one_launch
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.executable import (
    Data,
    DonatedRun,
    Executable,
    FastPath,
    Feeds,
    Outputs,
    Stream,
)
from monograph.runtime.fast_path import ClosedPath, KnownFeeds, NoFastPath
from monograph.runtime.feeds import (
    DECISIVE_ELEMENTS,
    Metadata,
    Port,
    check_feeds,
    text_as_objects,
)
from monograph.runtime.outputs import NOTHING, DonatedArrays, deliver, output_names
from monograph.runtime.pending import Pending, Worker, ready

Start: TypeAlias = Callable[[Executable, Feeds, Feeds], Pending]
"""Starts a run: an executable, its feeds, and memory for outputs."""


_THEIR_ARGUMENTS = ("output_names", "input_feed", "run_options", "callback", "user_data")
"""Names of arguments in calls of ONNX Runtime."""
MAX_VARIANTS = 4
"""The most sets of inner values that a session keeps code for."""


@dataclass(frozen=True)
class _StartedRun:
    """A run that was started, and where its outputs go."""

    pending: Pending
    places: Feeds
    named: frozenset[str]
    """The outputs for which the caller gave memory."""


class Calls:
    """The runs of a session. Several threads may run at once."""

    def __init__(self, bindings: Bindings, config: Config) -> None:
        self.config = config
        self._bindings = bindings
        self._target = bindings.target
        self._donate = bindings.donate
        self._donated = DonatedArrays()
        self._worker = Worker()
        """Made here, so that threads which start their first runs at once share it."""
        self._variants: dict[tuple[str, ...], Calls] = {}
        """The same model with other outputs, by the names of these."""
        signature = bindings.signature
        self.inputs: tuple[Port, ...] = signature.inputs
        self.outputs: tuple[Port, ...] = signature.outputs
        self.optional_inputs: tuple[Port, ...] = signature.optional
        """Inputs that the model has a value for: a feed replaces that value."""
        self.metadata: Metadata = signature.metadata
        self._known = KnownFeeds([p.name for p in self.inputs])
        self._fast_path: FastPath = NoFastPath() if self._donate else self._known
        """Asked once by every run, before anything is checked."""

    def run(
        self,
        feeds: Feeds = NOTHING,
        outputs: Sequence[str] | None = None,
        *theirs: Never,
        out: Feeds | None = None,
        **named: Never,
    ) -> Outputs:
        """Run the model once and return the outputs as fresh arrays, in model order.

        feeds: an array for every input, by name; optional inputs may be fed too. On a GPU torch
            tensors are accepted; then the outputs are torch tensors on that GPU.
        outputs: the names of the outputs to return, in this order; all of them by default. Any
            value of the model can be named, which compiles the model again.
        out: arrays to write outputs into, by name; they are returned for those outputs. A donated
            output may be given the array of its input, which is then updated in place.
        """
        if theirs or named:
            _refuse_arguments("run", (feeds, outputs, *theirs), named)
        try:
            self._worker.wait()
            if outputs is None:
                found = self._fast_path.try_run(feeds, out)
                if found is not None:
                    return found
            return self._run_checked(feeds, outputs, out)
        except InferError as e:
            raise _failed_on_data(e) from e

    def run_async(
        self,
        feeds: Feeds = NOTHING,
        stream: Stream = None,
        out: Feeds | None = None,
        *theirs: Never,
        **named: Never,
    ) -> Pending:
        """Start a run and return at once; its `result()` are the outputs, in model order.

        The caller may change arrays on the host as soon as this returns. Runs of a session follow
        each other, and later runs do not change the outputs of earlier ones.

        stream: on a GPU, the stream to work on (of torch, or the driver's number of one); the
            current one by default. Tensors are ordered by it, as by any other work on it.
        out: as for `run`; arrays are written before `result` returns.
        """
        if theirs or named:
            _refuse_arguments("run_async", (feeds, stream, out, *theirs), named)
        if stream is not None:
            _check_order(feeds, stream, "run_async")
        if self._target.enqueues:
            try:
                return self._enqueue(feeds, stream, out)
            except InferError as e:
                raise _failed_on_data(e) from e
        if stream is not None:
            raise ConfigError(
                "only a GPU has streams",
                given=f"stream={stream!r} on {self.config.target}",
                hint="leave stream out: runs come one after the other",
            )
        mine = self._own_feeds(feeds, out)

        def work() -> Outputs:
            try:
                return self._run_checked(mine, None, out)
            except InferError as e:
                raise _failed_on_data(e) from e

        return self._worker.start(work)

    def close(self) -> None:
        """Wait for started runs, and release code and memory; later runs raise an error."""
        self._worker.close()
        self._fast_path = ClosedPath()
        self._variants = {}
        self._known.forget()
        self._bindings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_feeds(self, feeds: Feeds, out: Feeds | None) -> Feeds:
        """Check the feeds, and copy those that the caller may change while the run waits."""
        _check_mapping(feeds, self.inputs)
        feeds = self._target.import_feeds(feeds)
        checked = self._checked(feeds)
        returned = self._donated.returned(feeds, self._donate)
        places = self._places(feeds, checked, {} if out is None else out, returned).values()
        # The caller leaves arrays alone that the run updates in place.
        return {n: x if any(x is w for w in places) else fresh(x) for n, x in checked.items()}

    def _enqueue(self, feeds: Feeds, stream: Stream, out: Feeds | None) -> Pending:
        """Enqueue a run in the caller's thread, so that it is ordered by the caller's stream."""
        pending = self._fast_path.try_start(feeds, out, stream)
        if pending is not None:
            return pending
        run = self._begin(feeds, out, lambda e, given, to: e.start(given, to, stream))
        return run.pending.then(lambda made: list(self._delivered(run, made).values()))

    def _run_checked(
        self, feeds: Feeds, outputs: Sequence[str] | None, out: Feeds | None
    ) -> Outputs:
        """Run on feeds that the fast path has declined."""
        _check_order(feeds, outputs)
        known = {p.name: None for p in self.outputs}
        wanted = list(known) if outputs is None else output_names(outputs)
        if inner := [name for name in wanted if name not in known]:
            return self._with_values(inner).run(feeds, wanted, out=out)
        run = self._begin(feeds, out, lambda e, given, to: ready(e.run_full(given, to)))
        results = self._delivered(run, run.pending.result())
        return [results[n] for n in wanted]

    def _with_values(self, names: Sequence[str]) -> Calls:
        """Return the runs of the same model with values as outputs besides its own."""
        key = tuple(sorted(set(names)))
        if key not in self._variants:
            made = Calls(self._bindings.with_values(key), self.config)
            kept = list(self._variants.items())[1 - MAX_VARIANTS :]
            self._variants = {**dict(kept), key: made}
        return self._variants[key]

    def _begin(self, feeds: Feeds, out: Feeds | None, start: Start) -> _StartedRun:
        """Check the arguments of a run and start it; the next run may take the fast path."""
        _check_mapping(feeds, self.inputs)
        feeds = self._target.import_feeds(feeds)
        checked = self._checked_arrays(feeds)
        returned = self._donated.returned(feeds, self._donate)
        named = {} if out is None else out
        places = self._places(feeds, checked, named, returned)
        executable = self.executable_for(checked)
        if self.config.capture == REQUIRE:
            _require_one_launch(executable)
        checked = text_as_objects(checked, executable.takes_text)
        given = self._target.executable_feeds(feeds, checked)
        run = _StartedRun(start(executable, given, places), places, frozenset(named))
        self._remember(executable, checked, given, run)
        return run

    def executable_for(self, checked: dict[str, Data]) -> Executable:
        """Return the executable for checked feeds."""
        self._known.leave_last()
        return self._bindings.executable(checked)

    def _remember(
        self, executable: Executable, checked: dict[str, Data], given: Feeds, run: _StartedRun
    ) -> None:
        """Let the next run on such feeds take the fast path."""
        if self._target.evaluates or self._bindings.values_decide:
            return
        use = self._bindings.use_of(checked)
        if self._donate:
            done = DonatedRun(given, run.places, run.named, self._donate, self._donated, use)
            self._fast_path = executable.state_fast_path(done) or NoFastPath()
        elif all(isinstance(x, self._target.array_types) for x in given.values()):
            self._known.remember(executable, given, use, self._bindings.made())

    def _delivered(self, run: _StartedRun, made: Outputs) -> dict[str, Data]:
        """Return the outputs by name, in the caller's memory where it was given."""
        names = [p.name for p in self.outputs]
        states = {n: x for n, x in run.places.items() if n in self._donate}
        self._donated.count(names, made, states)
        results = dict(zip(names, deliver(names, made, run.places), strict=True))
        for name in self._donate:
            if name not in run.named:
                self._donated.add(results[name])
        return results

    def _places(self, feeds: Feeds, checked: Feeds, out: Feeds, returned: Feeds) -> dict[str, Data]:
        """Return the memory for outputs: the caller's, and donated state that was returned."""
        ports, donate = self.outputs, self._donate
        return self._target.check_outputs(ports, feeds, checked, out, donate, returned)

    def _checked(self, feeds: Feeds) -> dict[str, Data]:
        """Return the checked arrays, text as objects."""
        return text_as_objects(self._checked_arrays(feeds))

    def _checked_arrays(self, feeds: Feeds) -> dict[str, Data]:
        """Return an array for every feed after all checks; arrays without data for tensors."""
        described = self._target.describe_feeds(feeds)
        checked = check_feeds(self.inputs, described, self.optional_inputs)
        if described is feeds or self._bindings.knows(checked):
            return checked
        # The values of small integers may decide ranks: only for new shapes they are waited for.
        described = self._target.describe_feeds(feeds, DECISIVE_ELEMENTS)
        return check_feeds(self.inputs, described, self.optional_inputs)


def _failed_on_data(error: InferError) -> MonographError:
    """Return the error of a run in which data decide that an op cannot work."""
    if error.internal or isinstance(error, UnknownRankError):
        return error
    return ExecutionError(
        error.message,
        node=error.node,
        op=error.op,
        expected=error.expected,
        given=error.given,
        hint=error.hint,
    )


def _check_order(feeds: object, second: object, call: str = "run") -> None:
    """Raise a FeedError that shows Monograph's call for one in ONNX Runtime's order."""
    if not isinstance(second, Mapping) or isinstance(feeds, Mapping):
        return
    named = f", outputs={feeds!r}" if feeds and call == "run" else ""
    raise FeedError(
        "the feeds are the first argument",
        expected=f"session.{call}(feeds{named})",
        given=f"session.{call}({feeds!r}, feeds)",
        hint="monograph.onnxruntime.InferenceSession takes calls in ONNX Runtime's order",
    )


def _refuse_arguments(call: str, given: Sequence[object], named: Mapping[str, object]) -> NoReturn:
    """Raise a FeedError that shows Monograph's call for ONNX Runtime's arguments."""
    if unknown := [name for name in named if name not in _THEIR_ARGUMENTS]:
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown[0]!r}")
    if not named and isinstance(given[0], Mapping) and given[0]:
        raise TypeError(f"{call}() got {len(given)} arguments without a name; `out` has one")
    names = named.get("output_names", given[0])
    chosen = f", outputs={names!r}" if call == "run" and isinstance(names, (list, tuple)) else ""
    raise FeedError(
        "these are arguments of ONNX Runtime",
        expected=f"session.{call}(feeds{chosen})",
        given=", ".join(named) or f"{len(given)} arguments",
        hint="monograph.onnxruntime.InferenceSession takes ONNX Runtime's arguments",
    )


def _check_mapping(feeds: object, inputs: Sequence[Port]) -> None:
    if not isinstance(feeds, Mapping):
        pairs = ", ".join(f"{port.name!r}: array" for port in inputs)
        raise FeedError(
            "feeds are a mapping from names to arrays",
            expected=f"session.run({{{pairs}}})",
            given=type(feeds).__name__,
        )


def _require_one_launch(executable: Executable) -> None:
    """Refuse an executable whose runs are more than one launch."""
    if reason := why_not_one_launch(executable):
        raise ExecutionError(
            "the run cannot be captured",
            given=reason,
            hint='capture="auto" runs it all the same',
        )
