"""The fast paths of a session: runs on feeds like those of an earlier, checked run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from monograph.errors import ExecutionError
from monograph.runtime.executable import Data, DonatedRun, Executable, Feeds, Outputs, Stream
from monograph.runtime.outputs import NOTHING
from monograph.runtime.pending import Pending

Use: TypeAlias = Callable[[], None]
Signature: TypeAlias = tuple[tuple[type, tuple[int, ...], object], ...]
"""The type, shape and element type of each input."""


class NoFastPath:
    """The fast path of a session that has none: every run is checked."""

    def try_run(self, feeds: Feeds, out: Feeds | None) -> None:
        """Decline."""

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> None:
        """Decline."""


class ClosedPath:
    """The fast path of a session that was closed: every run raises an error."""

    def try_run(self, feeds: Feeds, out: Feeds | None) -> None:
        """Raise the error of a closed session."""
        raise closed()

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> None:
        """Raise the error of a closed session."""
        raise closed()


def closed() -> ExecutionError:
    """Return the error of a closed session."""
    return ExecutionError("the session is closed", hint="load the model again")


class KnownFeeds:
    """Runs on feeds with the signature of an earlier run, for models that donate nothing.

    The executable of the last run is asked first: it compares the feeds with its own inputs, which
    takes less time than to look up a signature.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._count = len(names)
        self._known: dict[Signature, tuple[Executable, Use]] = {}
        self._last: tuple[Executable, Use] | None = None

    def try_run(self, feeds: Feeds, out: Feeds | None) -> Outputs | None:
        """Run on known feeds; None for others, or if the caller gives arrays for outputs."""
        last = self._last  # another thread may change it
        if out is not None:
            return None
        if last is not None and feeds.__class__ is dict and len(feeds) == self._count:
            found = last[0].try_run(feeds)
            if found is not None:
                return found
        return self._run_known(feeds, last)

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> Pending | None:
        """Enqueue a run of the last executable, if it takes the feeds as they are."""
        last = self._last
        if last is None or feeds.__class__ is not dict or len(feeds) != self._count:
            return None
        if out is not None and (out.__class__ is not dict or out):
            return None
        return last[0].try_start(feeds, NOTHING, stream)

    def remember(
        self, executable: Executable, feeds: Feeds, use: Use, ready: Sequence[Executable]
    ) -> None:
        """Let later runs on such feeds skip the checks, which have just been made.

        ready: the executables that the session holds; the others are forgotten.
        """
        if len(feeds) != self._count:  # optional inputs among them
            return
        key = tuple([_described(feeds[n]) for n in self._names])
        held = set(map(id, ready))
        kept = {k: e for k, e in self._known.items() if id(e[0]) in held}
        self._known = {**kept, key: (executable, use)}
        self._last = executable, use

    def forget(self) -> None:
        """Forget all executables."""
        self._known, self._last = {}, None

    def leave_last(self) -> None:
        """Report the use of the last executable before the session looks for another one."""
        last, self._last = self._last, None
        if last is not None:
            with suppress(KeyError):  # the session has dropped it
                last[1]()

    def _run_known(self, feeds: Feeds, last: tuple[Executable, Use] | None) -> Outputs | None:
        """Run the executable of an earlier run on feeds of the same signature, if any."""
        if not self._known:
            return None
        try:
            if len(feeds) != self._count:
                return None
            key = tuple([_described(feeds[n]) for n in self._names])
        except (AttributeError, IndexError, KeyError, TypeError):  # no mapping of arrays
            return None
        found = self._known.get(key)
        if found is None:
            return None
        executable, use = found
        if last is not None and executable is last[0]:
            return executable.run_full(feeds)
        self.leave_last()
        try:
            use()
        except KeyError:  # the session has dropped it
            return None
        self._last = found
        return executable.run(feeds)


class ReturnedState:
    """Runs of one executable on donated state that the caller returns, or names in `out`."""

    def __init__(self, executable: Executable, run: DonatedRun) -> None:
        self._executable = executable
        self._donate: Mapping[str, str] = run.donate
        self._arrays = run.arrays

    def try_run(self, feeds: Feeds, out: Feeds | None) -> Outputs | None:
        """Run in place if all donated state is given back."""
        places = self._places(feeds, out)
        return None if places is None else self._executable.try_run(feeds, places)

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> Pending | None:
        """Enqueue the same run."""
        places = self._places(feeds, out)
        return None if places is None else self._executable.try_start(feeds, places, stream)

    def _places(self, feeds: Feeds, out: Feeds | None) -> Feeds | None:
        """Return the arrays for all donated outputs, or None."""
        if feeds.__class__ is not dict or (out is not None and out.__class__ is not dict):
            return None
        found = self._arrays.returned(feeds, self._donate) if out is None else out
        return found if found.keys() == self._donate.keys() else None


def _described(array: Data) -> tuple[type, tuple[int, ...], object]:
    """Return what decides whether an executable can take an array as it is.

    The class is part of it: a numpy scalar has a shape and a dtype, but no memory of its own.
    """
    return array.__class__, array.shape, array.dtype
