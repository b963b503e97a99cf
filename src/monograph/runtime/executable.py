"""The Executable protocol: compiled code for one set of input shapes, on any target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from monograph.ir import Array
from monograph.runtime.outputs import NOTHING, DonatedArrays
from monograph.runtime.pending import Pending, ready

if TYPE_CHECKING:
    from monograph.program.program import Program, Step
    from monograph.runtime.cache.object_cache import Buffer

Data: TypeAlias = Any
"""An input or output: a numpy array, a torch tensor on a GPU, or a list of a sequence type."""
Feeds: TypeAlias = Mapping[str, Data]
"""Inputs by name, or memory for outputs by name."""
Outputs: TypeAlias = list[Data]
"""The outputs of a run, in model order."""
Stream: TypeAlias = Any
"""A torch stream, or the driver's number of one; None is the current stream."""

EXACT, ANY_SHAPE = "exact", "any shape"
"""The tiers of code: for one set of shapes, and for all that its guards allow."""


class CompiledArtefact(Protocol):
    """The parts of an executable that a file can hold."""

    @property
    def whole(self) -> bool:
        """True if the artefact is all that a run needs."""

    @property
    def weights(self) -> Mapping[str, Array]:
        """The large constants by digest, which artefacts of a model share."""

    def members(self) -> dict[str, Buffer]:
        """Return the members of the file by name, without the weights."""


class FastPath(Protocol):
    """Runs on feeds that need no checks, because an earlier run was like this one."""

    def try_run(self, feeds: Feeds, out: Feeds | None) -> Outputs | None:
        """Run and return the outputs, or return None if the feeds need the checked path."""

    def try_start(self, feeds: Feeds, out: Feeds | None, stream: Stream) -> Pending | None:
        """Enqueue the same run, or return None if the feeds need the checked path."""


@dataclass(frozen=True)
class DonatedRun:
    """A finished run of a model that donates inputs, for the fast path of the next run."""

    feeds: Feeds
    places: Feeds
    """The arrays that outputs were written into, by output."""
    named: frozenset[str]
    """The outputs for which the caller gave arrays."""
    donate: Mapping[str, str]
    arrays: DonatedArrays
    use: Callable[[], None]
    """Reports a use of the executable; raises KeyError if the session has dropped it."""


class Executable(Protocol):
    """Compiled code for one set of input shapes. Several threads may run it at once.

    A class that implements the protocol inherits from it. Members with a default hold for an
    executable that is one program without steps on the host.
    """

    @property
    def runs(self) -> int:
        """The number of runs so far."""

    @property
    def copies(self) -> int:
        """The number of inputs copied because a donated output overwrites them."""

    @property
    def threads(self) -> int:
        """The number of CPU threads of a run."""
        return 1

    @property
    def launches(self) -> int:
        """The number of launches of one run."""

    @property
    def kernels(self) -> int:
        """The number of kernels of one run."""

    @property
    def flops(self) -> float:
        """The floating-point operations of one run; NaN if data decide them."""

    @property
    def moved(self) -> float:
        """The bytes that the steps of one run read and write."""

    @property
    def bounds_checks(self) -> int:
        """The number of addresses that no proof covers; every run checks them."""

    @property
    def arena_bytes(self) -> int:
        """The bytes of the temporaries of one run."""

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants."""

    @property
    def shared_bytes(self) -> Mapping[str, int]:
        """The bytes of constants that other executables may read too, by digest."""
        return {}

    @property
    def own_bytes(self) -> int:
        """The bytes of device memory that the executable holds, without constants."""
        return 0

    @property
    def syncs(self) -> int:
        """The number of times that the host has waited to read a condition."""
        return 0

    @property
    def streams(self) -> int:
        """The number of device streams whose kernels may run side by side."""
        return 1

    def takes_text(self, name: str) -> bool:
        """Return True if an input may be numpy's text of fixed width; else it is objects."""
        return False

    @property
    def host_kinds(self) -> tuple[str, ...]:
        """The kinds of the steps that run on the host, in order."""
        return ()

    @property
    def host_reasons(self) -> Mapping[str, str]:
        """The reason why each kind of host step runs on the host."""
        return {}

    @property
    def host_steps(self) -> list[Step]:
        """The steps that run on the host."""
        return []

    @property
    def programs(self) -> list[Program]:
        """The programs of a run, in order; empty if only machine code is known."""
        return []

    @property
    def stages(self) -> Sequence[Executable]:
        """The executables compiled so far, if data decide sizes; empty for one program."""
        return ()

    @property
    def stops(self) -> Sequence[str]:
        """The ops after which the host must read sizes; empty for one program."""
        return ()

    @property
    def specialisations(self) -> int:
        """The number of programs compiled for sizes that data decided."""
        return 0

    @property
    def input_shapes(self) -> dict[str, list[int]]:
        """The shapes of the inputs by name; empty if they are not known as plain data."""
        return {}

    @property
    def tier(self) -> str:
        """The kind of code: `EXACT`, or `ANY_SHAPE` for code that others share."""
        return EXACT

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        """Run once on feeds that fit; outputs are fresh or the arrays given in `out`."""

    def try_run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs | None:
        """Run if feeds and `out` fit without any change, else return None at little cost.

        The caller makes sure that there are as many feeds as inputs.
        """
        return None

    def run_full(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        """Run as `run` does, but do not ask `try_run`, which has returned None."""
        return self.run(feeds, out)

    def start(self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None) -> Pending:
        """Enqueue a run without asking `try_start`. Without a device the run has ended."""
        return ready(self.run(feeds, out))

    def try_start(
        self, feeds: Feeds, out: Feeds = NOTHING, stream: Stream = None
    ) -> Pending | None:
        """Enqueue a run if `try_run` could make it, else return None."""
        return None

    def state_fast_path(self, run: DonatedRun) -> FastPath | None:
        """Return the fast path for runs on the donated state of this run, if there is one."""
        return None

    def artefact(self) -> CompiledArtefact | None:
        """Return what a file can hold of the executable; None if nothing."""
        return None


def described(executable: Executable) -> dict[str, Any]:
    """Return the shapes of an executable, its tier and its runs, as plain data."""
    return {"shapes": executable.input_shapes, "tier": executable.tier, "runs": executable.runs}


def constant_bytes(executables: Iterable[Executable]) -> int:
    """Return the bytes of the constants of executables; what they share counts once."""
    shared: dict[str, int] = {}
    own = 0
    for executable in executables:
        own += executable.constant_bytes - sum(executable.shared_bytes.values())
        shared |= executable.shared_bytes
    return own + sum(shared.values())


class WrappedExecutable(Executable):
    """An executable that runs another one in its own way and describes itself as that one."""

    def __init__(self, inner: Executable) -> None:
        self.inner = inner

    @property
    def runs(self) -> int:
        return self.inner.runs

    @property
    def copies(self) -> int:
        return self.inner.copies

    @property
    def threads(self) -> int:
        return self.inner.threads

    @property
    def launches(self) -> int:
        return self.inner.launches

    @property
    def kernels(self) -> int:
        return self.inner.kernels

    @property
    def flops(self) -> float:
        return self.inner.flops

    @property
    def moved(self) -> float:
        return self.inner.moved

    @property
    def bounds_checks(self) -> int:
        return self.inner.bounds_checks

    @property
    def arena_bytes(self) -> int:
        return self.inner.arena_bytes

    @property
    def constant_bytes(self) -> int:
        return self.inner.constant_bytes

    @property
    def shared_bytes(self) -> Mapping[str, int]:
        return self.inner.shared_bytes

    @property
    def own_bytes(self) -> int:
        return self.inner.own_bytes

    @property
    def syncs(self) -> int:
        return self.inner.syncs

    @property
    def streams(self) -> int:
        return self.inner.streams

    @property
    def host_kinds(self) -> tuple[str, ...]:
        return self.inner.host_kinds

    @property
    def host_reasons(self) -> Mapping[str, str]:
        return self.inner.host_reasons

    @property
    def host_steps(self) -> list[Step]:
        return self.inner.host_steps

    @property
    def programs(self) -> list[Program]:
        return self.inner.programs

    @property
    def stages(self) -> Sequence[Executable]:
        return self.inner.stages

    @property
    def stops(self) -> Sequence[str]:
        return self.inner.stops

    @property
    def specialisations(self) -> int:
        return self.inner.specialisations

    @property
    def input_shapes(self) -> dict[str, list[int]]:
        return self.inner.input_shapes

    @property
    def tier(self) -> str:
        return self.inner.tier

    def takes_text(self, name: str) -> bool:
        return self.inner.takes_text(name)

    def artefact(self) -> CompiledArtefact | None:
        return self.inner.artefact()
