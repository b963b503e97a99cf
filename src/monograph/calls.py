"""What a session does with feeds: checks them once, finds what runs them, hands outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

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
from monograph.ir import Array, Graph, evaluate
from monograph.runtime.counts import REQUIRE, why_not_one_launch
from monograph.runtime.cpu.donation_fast_path import Again, again
from monograph.runtime.cpu.launch import fresh
from monograph.runtime.dlpack import arrays_of
from monograph.runtime.feeds import Port, check_feeds, clashing_sizes
from monograph.runtime.outputs import NOTHING, DonatedArrays, check_out, deliver, wanted_outputs
from monograph.runtime.pending import Pending, Worker, ready

if TYPE_CHECKING:
    from monograph.bindings import Executable, Key

Start: TypeAlias = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Pending]
"""Starts a run: an executable, its feeds, and places for outputs."""


@dataclass(frozen=True)
class _Begun:
    """A run that was started, and where its outputs go."""

    pending: Pending
    places: Mapping[str, Any]
    asked: frozenset[str]
    """The outputs that the caller named places for."""
    executable: Any
    feeds: Mapping[str, Any]


class Calls:
    """The runs of a session. They may be made from several threads at once."""

    def __init__(self, bindings: Bindings, config: Config) -> None:
        self.config = config
        self._bindings = bindings
        self._donate = bindings.donate
        self._states = DonatedArrays()
        self._by_signature: dict[Key, tuple[Executable, Callable[[], None]]] = {}
        self._last: Any = None
        """On a GPU, the executable of the last run: it may have a short way for the next."""
        self._again: Again | None = None
        """On a CPU, what is known of state that the last run was given."""
        self._worker = Worker()
        """Made here, so that threads which start their first runs at once share it."""
        self._runs = 0
        signature = bindings.signature
        self.inputs: tuple[Port, ...] = signature.inputs
        self.outputs: tuple[Port, ...] = signature.outputs
        self.optional_inputs: tuple[Port, ...] = signature.optional
        """Inputs that the model has a value for: fed, they take the place of that value."""
        self._names = [p.name for p in self.inputs]

    def run(
        self,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> list[Any]:
        """Runs the model once; the outputs as fresh arrays, in model order.

        feeds: an array for every input, by name; for optional inputs there may be one. On a GPU
            also torch tensors: then the outputs are torch tensors on that GPU.
        outputs: the names of the outputs to return, in this order; all of them by default.
        out: arrays to write outputs into, by name; they are what is returned for those outputs. A
            donated output may be given the array of its input, which is then updated in place.
        """
        try:
            last = None if self._donate else self._last
            if last is not None and outputs is None and out is None and feeds.__class__ is dict:
                found: list[Any] | None = last.hot(feeds)
                if found is None:
                    found = last.warm(feeds)
                if found is not None:
                    return found
            self._worker.wait()
            known = self._again  # another thread may change it
            if outputs is None and known is not None:
                found = known.run(feeds, out)
                if found is not None:
                    return found
            if outputs is None:
                found = self._run_known(feeds) if out is None else self._run_in_place(feeds, out)
                if found is not None:
                    return found
            return self._run_checked(feeds, outputs, out)
        except InferError as e:
            raise _failed_on_data(e) from e

    def run_async(
        self,
        feeds: Mapping[str, Any],
        stream: Any = None,
        out: Mapping[str, Any] | None = None,
    ) -> Pending:
        """Starts a run and returns at once; its `result()` are the outputs, in model order.

        Arrays on the host may be changed as soon as this returns. Runs of a session come one after
        the other, and outputs stay as they are while later runs go on.

        stream: on a GPU, the stream to work on (of torch, or a number as drivers have it); the
            current one by default. Tensors are ordered by it, as by any other work there.
        out: as for `run`; arrays are written to before `result` returns.
        """
        if self._bindings.gpu is not None:
            try:
                return self._start_on_gpu(feeds, stream, out)
            except InferError as e:
                raise _failed_on_data(e) from e
        if stream is not None:
            raise ConfigError(
                "only a GPU has streams",
                given=f"stream={stream!r} on {self.config.target}",
                hint="leave stream out: runs come one after the other",
            )
        mine = self._taken(feeds, out)

        def work() -> list[Any]:
            try:
                return self._run_checked(mine, None, out)
            except InferError as e:
                raise _failed_on_data(e) from e

        return self._worker.start(work)

    def _taken(self, feeds: Any, out: Any) -> dict[str, Any]:
        """Feeds that a caller may change from now on; what is wrong with them is told now."""
        if not isinstance(feeds, Mapping):
            raise _no_mapping(feeds)
        feeds = self._imported(feeds)
        checked = self._checked(feeds)
        returned = self._states.returned(feeds, self._donate)
        places = self._places(feeds, checked, {} if out is None else out, returned).values()
        # What is written in place is left alone by its caller; anything else may change.
        return {n: x if any(x is w for w in places) else fresh(x) for n, x in checked.items()}

    def _start_on_gpu(self, feeds: Mapping[str, Any], stream: Any, out: Any) -> Pending:
        """A run that is enqueued in the caller's thread: so it is in the order of their stream."""
        from monograph.runtime.gpu import ports

        last = self._last
        plain = feeds.__class__ is dict and (out is None or out.__class__ is dict)
        if last is not None and plain:
            returned = out
            if out is None:
                returned = self._states.returned(feeds, self._donate) if self._donate else NOTHING
            if returned.keys() == self._donate.keys():
                pending: Pending | None = last.start_hot(feeds, returned, stream)
                if pending is not None:
                    return pending

        def start(found: Any, given: Mapping[str, Any], places: Mapping[str, Any]) -> Pending:
            return ports.run_async(found, given, stream, places)

        begun = self._begin(feeds, out, start)
        return begun.pending.then(lambda made: list(self._delivered(begun, made).values()))

    def _run_known(self, feeds: Any) -> list[Any] | None:
        """A run on feeds like those of an earlier one, with nothing checked twice; None for others.

        On a GPU the last executable looks by itself whether it can take them.
        """
        if self._donate:
            last = self._last
            if last is None or feeds.__class__ is not dict:
                return None
            returned = self._states.returned(feeds, self._donate)
            made: list[Any] | None = None
            if len(returned) == len(self._donate):
                made = last.hot(feeds, returned)
            return made
        known = self._known_executable(feeds)
        if known is None:
            return None
        if self._bindings.gpu is not None:
            self._last = known if hasattr(known, "hot") else None
        return known.run(feeds)

    def _run_in_place(self, feeds: Any, out: Any) -> list[Any] | None:
        """On a GPU, such a run where all that is named are places for donated outputs."""
        last = self._last
        if last is None or feeds.__class__ is not dict or out.__class__ is not dict:
            return None
        if not self._donate or out.keys() != self._donate.keys():
            return None
        found: list[Any] | None = last.hot(feeds, out)
        return found

    def _run_checked(self, feeds: Any, outputs: Any, out: Any) -> list[Any]:
        """A run on feeds of which nothing is known yet."""
        wanted = wanted_outputs(self.outputs, outputs)

        def start(found: Any, given: Mapping[str, Any], places: Mapping[str, Any]) -> Pending:
            return ready(self._results(found, given, places))

        begun = self._begin(feeds, out, start)
        results = self._delivered(begun, begun.pending.result())
        self._again = self._known_states(begun)
        return [results[n] for n in wanted]

    def _known_states(self, begun: _Begun) -> Again | None:
        """What the next run need not look at again, if it brings the same state."""
        if self.config.target != "cpu" or self._bindings.values_decide:
            return None
        use = self._bindings.use_of(dict(begun.feeds))
        return again(begun.executable, begun.feeds, begun.places, self._donate, begun.asked, use)

    def _begin(self, feeds: Any, out: Any, start: Start) -> _Begun:
        """Checks what a run is given, and starts it."""
        if not isinstance(feeds, Mapping):
            raise _no_mapping(feeds)
        feeds = self._imported(feeds)
        checked = self._checked(feeds)
        returned = self._states.returned(feeds, self._donate)
        asked = {} if out is None else out
        places = self._places(feeds, checked, asked, returned)
        executable, given = self._executable_for(feeds, checked)
        pending = start(executable, given, places)
        return _Begun(pending, places, frozenset(asked), executable, given)

    def _imported(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The feeds, with what other libraries hold (DLPack) as tensors or arrays."""
        if self._bindings.gpu is None:
            return arrays_of(feeds)
        from monograph.runtime.gpu import tensor_checks

        return {name: tensor_checks.imported(x) for name, x in feeds.items()}

    def _delivered(self, begun: _Begun, made: list[Any]) -> dict[str, Any]:
        """The outputs by name, those with a place in it; new state is known from now on."""
        names = [p.name for p in self.outputs]
        states = {n: x for n, x in begun.places.items() if n in self._donate}
        self._states.count(names, made, states)
        results = dict(zip(names, deliver(names, made, begun.places), strict=True))
        for name in self._donate:
            if name not in begun.asked:
                self._states.add(results[name])
        return results

    def _places(
        self,
        feeds: Mapping[str, Any],
        checked: dict[str, Any],
        out: Any,
        returned: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What outputs are written into: the caller's arrays, and state that was returned."""
        if self._bindings.gpu is None or not isinstance(out, Mapping):
            return check_out(self.outputs, checked, out, self._donate, returned)
        from monograph.runtime.gpu import ports

        place = self._bindings.gpu.place
        return ports.check_places(self.outputs, feeds, checked, out, self._donate, returned, place)

    def _executable_for(
        self, feeds: Mapping[str, Any], checked: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """What makes a run on checked feeds, and what it is given: on a GPU tensors as they are."""
        if self.config.target == "reference":
            return None, checked
        found: Any = self._bindings.executable(checked)
        self._last = None
        if self.config.capture == REQUIRE:
            _require_one_launch(found)
        given = checked
        if self._bindings.gpu is not None:
            from monograph.runtime.gpu import ports

            given = {**checked, **ports.tensors_in(feeds)}
            if not ports.is_alone(found):  # the host between its parts does not know of tensors
                return found, given
        self._remember(given, found, checked)
        return found, given

    def _results(
        self, executable: Any, feeds: Mapping[str, Any], out: Mapping[str, Array]
    ) -> list[Any]:
        """All outputs of a run on checked feeds; fresh, unless they were computed into `out`."""
        if self._bindings.gpu is not None:
            from monograph.runtime.gpu import ports

            return ports.run(executable, feeds, out)
        if executable is not None:
            return list(executable.run(feeds, out))
        try:
            made = evaluate(self._graph_for(dict(feeds)), dict(feeds))
        except (ExecutionError, InferError):
            # One graph serves all sizes: it is not known to take these until it is bound to them.
            self._bindings.bound(dict(feeds))
            raise
        self._runs += 1
        try:
            return [fresh(x) for x in made]
        except MemoryError:
            # Up to here a repeated element may have taken no memory.
            raise ExecutionError(
                "out of memory for the outputs", given=", ".join(map(str, self.outputs))
            ) from None

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if self._bindings.gpu is None:
            return check_feeds(self.inputs, feeds, self.optional_inputs)
        from monograph.runtime.gpu import ports

        checked = check_feeds(self.inputs, ports.stand_ins(feeds), self.optional_inputs)
        if not ports.tensors_in(feeds) or self._bindings.knows(checked):
            return checked
        # What small integers hold may decide ranks: only then it is worth to wait for them.
        from monograph.model import DECISIVE_ELEMENTS

        known = ports.stand_ins(feeds, DECISIVE_ELEMENTS)
        return check_feeds(self.inputs, known, self.optional_inputs)

    def _known_executable(self, feeds: Any) -> Executable | None:
        """The executable of an earlier run on arrays of the same shapes and types, if any."""
        if not self._by_signature:
            return None
        try:
            if len(feeds) != len(self._names):
                return None
            key = tuple([_described(feeds[n]) for n in self._names])
        except (AttributeError, IndexError, KeyError, TypeError):  # no mapping of arrays
            return None
        found = self._by_signature.get(key)
        if found is None:
            return None
        executable, use = found
        try:
            use()
        except KeyError:  # others have been used more since
            return None
        return executable

    def _remember(
        self, feeds: dict[str, Any], executable: Executable, bound: dict[str, Any]
    ) -> None:
        """Lets the next run on such feeds skip every check: they have just been made."""
        kinds = (np.ndarray,) if self._bindings.gpu is None else (np.ndarray, _tensor_type())
        if self._bindings.values_decide or not all(isinstance(x, kinds) for x in feeds.values()):
            return
        if len(feeds) != len(self._names):  # optional inputs among them
            return
        key = tuple([_described(feeds[n]) for n in self._names])
        ready = self._bindings.made()
        kept = {k: e for k, e in self._by_signature.items() if e[0] in ready}
        self._by_signature = {**kept, key: (executable, self._bindings.use_of(bound))}
        self._last = executable if hasattr(executable, "hot") else None

    def _graph_for(self, feeds: dict[str, Any]) -> Graph:
        plain = self._bindings.model.imported and not self.config.optimise
        shapes = {n: x.shape for n, x in feeds.items() if isinstance(x, np.ndarray)}
        # The graph for all shapes takes sizes of one name for one size.
        if plain and len(feeds) == len(self.inputs) and not clashing_sizes(self.inputs, shapes):
            return self._bindings.model.graph
        return self._bindings.optimised(feeds)


def _failed_on_data(error: InferError) -> MonographError:
    """The error of a run in which data decide what an op does, and decide what it cannot do."""
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


def _no_mapping(feeds: Any) -> FeedError:
    return FeedError("feeds are a mapping from names to arrays", given=type(feeds).__name__)


def _require_one_launch(executable: Any) -> None:
    """Refuses what is more than one launch, where the caller wants one."""
    if reason := why_not_one_launch(executable):
        raise ExecutionError(
            "the run cannot be captured",
            given=reason,
            hint='capture="auto" runs it all the same',
        )


def _described(array: Any) -> tuple[Any, ...]:
    """What tells whether an executable can take an array as it is.

    The type is part of it: a scalar of numpy has a shape and a dtype too, but no memory of its own.
    """
    return array.__class__, array.shape, array.dtype


def _tensor_type() -> type:
    import torch

    kind: type = torch.Tensor
    return kind
