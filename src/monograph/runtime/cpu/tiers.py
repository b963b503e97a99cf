"""Two tiers of CPU code: code for any shape from the first run, exact code where it pays.

A set of shapes that keeps coming back is compiled exactly in the background. The exact code takes
over between two runs, by one assignment.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from monograph.errors import MonographError
from monograph.runtime.cpu.background import CompileJob, CompileReply, background
from monograph.runtime.executable import (
    ANY_SHAPE,
    DonatedRun,
    FastPath,
    Feeds,
    Outputs,
    Stream,
    WrappedExecutable,
)
from monograph.runtime.outputs import NOTHING

if TYPE_CHECKING:
    from monograph.runtime.cpu.any_shape import AnyShapeExecutable
    from monograph.runtime.cpu.launch import NativeExecutable

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

EXPECTED_GAIN = 0.15
"""The part of a run's time that exact code is expected to save, before any was measured."""
LEAST_GAIN = 0.02
"""Gains below this do not repay any compilation."""
EXPECTED_SECONDS = 3.0
"""The time of a compilation, before one was measured."""
LEAST_RUNS = 8
"""A set of shapes with fewer runs is not specialised, however long they took."""
LOOK_AFTER = 2
"""The runs of a set of shapes after which exact code is looked for on disk."""
COMPARED_RUNS = 30
"""The runs of exact code after which its gain is known."""
_log = logging.getLogger("monograph")


@dataclass
class TierPolicy:
    """Decides when a set of shapes is worth exact code.

    So far it has taken some seconds in code for any shape. It is assumed to take as long again; so
    exact code is worth its compilation once the expected saving of that time is as long as the
    compilation. Whatever comes, the choice costs at most twice the best one.
    """

    seconds: float = EXPECTED_SECONDS
    """The time of one compilation."""
    gain: float = EXPECTED_GAIN
    """The part of a run's time that exact code saves: an average of the measured ones."""
    weight: int = 2
    """The number of measurements that the expected gain counts for, and those made since."""

    @property
    def due(self) -> float:
        """The seconds in code for any shape after which exact code is worth its compilation."""
        return self.seconds / self.gain if self.gain > LEAST_GAIN else float("inf")

    def learn_gain(self, before: float, after: float) -> None:
        """Take the least run times of both tiers into account."""
        gain = max(0.0, 1 - after / before) if before > 0 else 0.0
        self.weight += 1
        self.gain += (gain - self.gain) / self.weight


class TieredExecutable(WrappedExecutable):
    """The executable of one set of shapes: code for any shape, later perhaps exact code.

    Each run reads `inner` once, so it is one tier's as a whole.
    """

    inner: NativeExecutable

    def __init__(
        self, inner: AnyShapeExecutable, shapes: Shapes, dtypes: Mapping[str, str], tiers: Tiers
    ) -> None:
        super().__init__(inner)
        self.shapes, self.dtypes = shapes, dtypes
        self.seconds = 0.0
        """The time of runs in the tier that is in use."""
        self._tiers = tiers
        self._runs = self._copies = 0
        self._least = float("inf")
        self._due = 0.0
        """The seconds at which something is decided; infinity when all is."""
        self._looked = False

    @property
    def runs(self) -> int:
        return self._runs + self.inner.runs

    @property
    def copies(self) -> int:
        return self._copies + self.inner.copies

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        started = time.perf_counter()
        found = self.inner.run(feeds, out)
        self.spent(time.perf_counter() - started)
        return found

    def try_run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        started = time.perf_counter()
        found = self.inner.try_run(feeds, out)
        if found is not None:
            self.spent(time.perf_counter() - started)
        return found

    def run_full(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        started = time.perf_counter()
        found = self.inner.run_full(feeds, out)
        self.spent(time.perf_counter() - started)
        return found

    def state_fast_path(self, run: DonatedRun) -> FastPath | None:
        inner = self.inner
        path = inner.state_fast_path(run)
        return None if path is None else _StatePath(self, inner, path)

    def take_over(self, exact: NativeExecutable) -> None:
        """Let exact code serve all runs from the next one on."""
        before = self.inner
        self._before, self._least = self._least, float("inf")
        self._runs, self._copies = self._runs + before.runs, self._copies + before.copies
        self.seconds, self._due = 0.0, 0.0
        self.inner = exact

    def spent(self, seconds: float) -> None:
        """Count the time of a run. Threads may lose each other's counts, which does not matter."""
        self._least = min(self._least, seconds)
        self.seconds += seconds
        if self.seconds >= self._due:
            self._decide()

    def _decide(self) -> None:
        runs = self.inner.runs
        if self.tier == ANY_SHAPE and not self._looked:
            if runs >= LOOK_AFTER:
                self._looked = True
                self._due = float("inf") if self._tiers.find(self) else self._tiers.policy.due
        elif self.tier == ANY_SHAPE:
            self._due = self._tiers.policy.due
            if self.seconds >= self._due and runs >= LEAST_RUNS:
                self._due = float("inf")
                self._tiers.specialise(self)
        elif runs >= COMPARED_RUNS:
            self._due = float("inf")
            self._tiers.policy.learn_gain(self._before, self._least)


class _StatePath:
    """The fast path on donated state, as long as the code that it belongs to is in use."""

    def __init__(self, owner: TieredExecutable, inner: NativeExecutable, path: FastPath) -> None:
        self._owner, self._inner, self._path = owner, inner, path

    def try_run(self, feeds: Feeds, out: Feeds | None) -> Outputs | None:
        """Run in place; None where the state has moved, or other code has taken over."""
        if self._owner.inner is not self._inner:
            return None
        started = time.perf_counter()
        found = self._path.try_run(feeds, out)
        if found is not None:
            self._owner.spent(time.perf_counter() - started)
        return found

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> None:
        """Decline: a CPU run is not enqueued."""


class ExactCode(Protocol):
    """Exact code of one model, as it is compiled by another process and found on disk."""

    def job(self, shapes: Shapes, dtypes: Mapping[str, str]) -> CompileJob:
        """Return the compilation for a set of shapes."""

    def exists(self, shapes: Shapes) -> bool:
        """Return True if disk has the code for a set of shapes."""

    def load(self, shapes: Shapes, dtypes: Mapping[str, str]) -> NativeExecutable | None:
        """Load the code from disk; None if it is not there."""


class Tiers:
    """The specialisations of one session: requests and their results."""

    def __init__(self, limit: int, code: ExactCode) -> None:
        """limit: the most sets of shapes with exact code."""
        self.policy = TierPolicy()
        self.asked = self.done = self.failed = 0
        self.seconds = 0.0
        """The processor time of compilations in the background."""
        self.reasons: list[str] = []
        """The reasons of failures, each once."""
        self._limit = limit
        self._code = code
        self._closed = False

    def find(self, wanted: TieredExecutable) -> bool:
        """Load exact code for a set of shapes if disk has it, in the background."""
        return self._code.exists(wanted.shapes) and self._submit(wanted, None)

    def specialise(self, wanted: TieredExecutable) -> None:
        """Ask for exact code for a set of shapes. Nobody waits for it."""
        if self.asked < self._limit:
            self._submit(wanted, self._code.job(wanted.shapes, wanted.dtypes))

    def _submit(self, wanted: TieredExecutable, job: CompileJob | None) -> bool:
        if self._closed or self.asked >= self._limit:
            return False
        self.asked += 1
        # What waits for a compilation keeps neither the session nor its code alive.
        ended = partial(_ended, weakref.ref(self), weakref.ref(wanted))
        if reason := background.submit(job, ended):
            self._fail(reason)
        return not reason

    def stats(self) -> dict[str, Any]:
        """Return what was asked for and what came of it, as plain data."""
        waiting = self.asked - self.done - self.failed
        reasons = list(self.reasons)
        return {"done": self.done, "waiting": waiting, "failed": self.failed, "reasons": reasons}

    def close(self) -> None:
        """Ignore compilations that end from now on."""
        self._closed = True

    def ended(self, wanted: TieredExecutable, reply: CompileReply) -> None:
        """Let the exact code take over, or count a failure. A thread of its own calls this."""
        self.seconds += reply.seconds
        if reply.seconds:
            self.policy.seconds = reply.seconds
        if self._closed:
            return
        if reply.error:
            self._fail(reply.error)
            return
        try:
            exact = self._code.load(wanted.shapes, wanted.dtypes)
        except MonographError as e:
            self._fail(str(e))
            return
        if exact is None:
            self._fail("the exact code could not be stored, or was deleted")
            return
        wanted.take_over(exact)
        self.done += 1
        _log.info("exact code has taken over for %s", dict(wanted.shapes))

    def _fail(self, reason: str) -> None:
        self.failed += 1
        if reason not in self.reasons:
            self.reasons.append(reason)
            _log.warning("code for any shape stays in use: %s", reason)


def _ended(
    tiers: weakref.ref[Tiers], wanted: weakref.ref[TieredExecutable], reply: CompileReply
) -> None:
    owner, executable = tiers(), wanted()
    if owner is not None and executable is not None:
        owner.ended(executable, reply)
