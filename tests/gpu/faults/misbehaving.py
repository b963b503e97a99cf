"""A driver's graphs, real or fake, with calls that fail on purpose or do something besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from monograph.runtime.gpu.bound_program import GpuProgram
from monograph.runtime.gpu.capture.capture import every_record
from monograph.runtime.gpu.capture.control import ConditionalLaunch
from monograph.runtime.gpu.driver.graphs import GraphError, Handle

QUERIES = frozenset({"abort", "capturing", "capturing_now", "current", "guard", "here", "using"})
"""Methods that are no calls to a driver, or that only clear up: they are never made to fail."""

LOCAL = frozenset({"function", "kind", "nodes", "used_on"})
"""Calls that no driver need be asked for."""


class Misbehaving:
    """Passes everything on to other graphs; what is asked for goes wrong."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self._faults: dict[str, tuple[int, Exception, bool]] = {}
        self._dead: Exception | None = None
        self._hooked: list[list[bool]] = []

    def fail(
        self, call: str, after: int = 0, error: Exception | None = None, done: bool = False
    ) -> None:
        """The call after so many others of its name raises, once.

        `done`: only when it has been carried out; what it has made is nobody's then.
        """
        found = error or GraphError(f"{call} fails on purpose")
        self._faults[call] = after, found, done

    def die(self, error: Exception) -> None:
        """Every call raises from now on, as after an error that a device does not recover from."""
        self._dead = error

    def well(self) -> None:
        """Nothing fails any more, and nothing is hooked."""
        self._faults.clear()
        self._dead = None
        vars(self).pop("add_kernel", None)  # it holds on to the record, and that to memory

    def hooking(self) -> list[bool]:
        """Return a list in which a hook reports that it ran."""
        happened: list[bool] = []
        self._hooked.append(happened)
        return happened

    @property
    def missed(self) -> int:
        """Return how many hooks there were that no launch in a capture has come by."""
        return sum(not happened for happened in self._hooked)

    @property
    def waiting(self) -> bool:
        """Tell whether a failure that was asked for has not happened yet."""
        return bool(self._faults)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return that of the others: what is quick with torch's graphs is quick here."""
        return type(self.inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name.startswith("_") or not callable(found) or name in QUERIES:
            return found

        def called(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return self._called(name, lambda: found(*arguments, **options))

        return called

    def _called(self, name: str, carry_out: Callable[[], Any]) -> Any:
        if self._dead is not None and name not in LOCAL:
            raise self._dead
        if name not in self._faults:
            return carry_out()
        after, error, done = self._faults.pop(name)
        if after:
            self._faults[name] = after - 1, error, done
            return carry_out()
        if done:
            made = carry_out()
            if isinstance(made, Handle):
                made.close()
        raise error


def kernels_of(executable: GpuProgram) -> list[Any]:
    """All launches of an executable, those inside branches and loops included."""
    return [r for r in every_record(executable.records) if not isinstance(r, ConditionalLaunch)]


def hook(replay: Any, number: int, what: Callable[[], None]) -> None:
    """Has something happen before a launch becomes a node, once.

    A launch that nobody records does not count: that of an eager run, or the first one of a
    library, on scratch memory. `rig.fault` fails a test whose hooks no capture has come by.
    """
    record, graphs = kernels_of(replay.executable)[number], replay.graphs
    happened = graphs.hooking()

    def once() -> None:
        if not happened:
            happened.append(True)
            what()

    launch, add = record.launch, graphs.add_kernel

    def hooked(stream: int) -> None:
        if not happened and stream and graphs.capturing(stream):  # the default one never does
            once()
        launch(stream)

    def added(graph: Any, other: Any, *rest: Any) -> Any:
        if other is record:
            once()
        return add(graph, other, *rest)

    record.launch, graphs.add_kernel = hooked, added
