"""Session: what users hold. A model on a target, ready to run."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from monograph.bindings import Bindings
from monograph.config import Config, make_config
from monograph.errors import ConfigError, ExecutionError, FeedError, did_you_mean
from monograph.ir import Array, Graph, evaluate
from monograph.runtime.feeds import Port, check_feeds
from monograph.runtime.launch import fresh
from monograph.runtime.outputs import States, check_out, deliver
from monograph.runtime.progress import Progress, silent
from monograph.runtime.source import Source

if TYPE_CHECKING:
    import onnx

    from monograph.bindings import Executable, Key
    from monograph.runtime import staged
    from monograph.runtime.gpu.target import GpuSide, OfflineSide
    from monograph.runtime.tolerance import Tolerance

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def load(
    source: ModelSource,
    target: str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    donate: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Session:
    """Loads a model for a target.

    source: the path of an ONNX file, the bytes of one, or a ModelProto.
    target: what runs it; "cpu" compiles the model to native code for this machine; "gpu" to kernels
        for its GPU ("gpu:1": for its second); "reference" evaluates with numpy and is right, not
        fast.
    dims: sizes for named dimensions of the inputs, e.g. {"batch": 1}.
    donate: outputs that are written into an input's memory, e.g. {"present": "past"}.
    progress: called with (stage, done, total) while the model is compiled.
    options: see `monograph.config.Config`.
    """
    config = make_config(target=target, **options)
    for name, given in {"dims": dims, "donate": donate}.items():
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{name} is a mapping", expected="a dict", given=repr(given))
    if progress is not None and not callable(progress):
        raise ConfigError("progress is a function", given=repr(progress))
    return Session(Source(source), config, dict(dims or {}), dict(donate or {}), progress)


class Session:
    """A loaded model. `run` may be called from several threads at once."""

    def __init__(
        self,
        source: Source,
        config: Config,
        dims: dict[str, int],
        donate: dict[str, str],
        progress: Progress | None = None,
    ) -> None:
        sizes = {name: _size(name, size) for name, size in dims.items()}
        self.config = config
        self._bindings = Bindings(source, config, sizes, donate, progress or silent)
        self._donate = self._bindings.donate
        self._states = States()
        self._by_signature: dict[Key, tuple[Executable, Callable[[], None]]] = {}
        self._runs = 0
        signature = self._bindings.signature
        self.inputs: tuple[Port, ...] = signature.inputs
        self.outputs: tuple[Port, ...] = signature.outputs
        self.optional_inputs: tuple[Port, ...] = signature.optional
        """Inputs that the model has a value for: fed, they take the place of that value."""
        self._names = [p.name for p in self.inputs]

    @property
    def graph(self) -> Graph:
        """The imported graph, symbolic dimensions and all."""
        return self._bindings.model.graph

    @property
    def gpu(self) -> GpuSide | OfflineSide | None:
        """The session's GPU: its device, and how kernels were chosen; None on other targets."""
        return self._bindings.gpu

    @property
    def arch(self) -> str:
        """The architecture of the GPU that is compiled for; "" for other targets."""
        return "" if self._bindings.gpu is None else self._bindings.gpu.arch.name

    @property
    def packaged_sizes(self) -> list[dict[str, int]]:
        """The sizes of dimensions that a package has code for, set by set; none of a model."""
        return self._bindings.packaged_sizes

    @property
    def threads(self) -> int:
        """Threads that CPU code is compiled for; a small program uses fewer, as `stats` tells."""
        return self._bindings.threads

    def __repr__(self) -> str:
        """What it runs: `Session(cpu, threads=2: (x: f32[N, 4]) -> (y: f32[N, 4]))`."""
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        target = self.config.target + (f", threads={self.threads}" if self.threads else "")
        return f"Session({target}: ({inputs}) -> ({outputs}))"

    @property
    def stats(self) -> dict[str, Any]:
        """What the session has done: runs, shapes compiled, launches and host steps of a run."""
        made, gone = self._bindings.made(), self._bindings.gone
        copies = self._states.copies + gone["copies"]
        threads = {"threads": max((e.threads for e in made), default=0)} if self.threads else {}
        return {
            "runs": self._runs + gone["runs"] + sum(e.runs for e in made),
            "compiled": len(made),
            "from_disk": self._bindings.found,
            "specialisations": gone["specialisations"] + sum(e.specialisations for e in made),
            "launches_per_run": max((e.launches for e in made), default=0),
            "kernels_per_run": max((e.kernels for e in made), default=0),
            "host_steps": sorted({kind for e in made for kind in e.host_kinds}),
            "host_reasons": dict(sorted(r for e in made for r in e.host_reasons.items())),
            "peak_bytes": max((e.arena_bytes for e in made), default=0),
            "constant_bytes": sum(e.constant_bytes for e in made),
            "donation_copies": copies + sum(e.copies for e in made),
            **threads,
        } | ({} if self._bindings.gpu is None else self._bindings.gpu.stats(made))

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
        plain = outputs is None and out is None and not self._donate
        if plain and (known := self._known_executable(feeds)) is not None:
            return known.run(feeds)
        if not isinstance(feeds, Mapping):
            raise FeedError("feeds are a mapping from names to arrays", given=type(feeds).__name__)
        names = {p.name: None for p in self.outputs}
        wanted = list(names) if outputs is None else _names(outputs)
        if unknown := [n for n in wanted if n not in names]:
            raise FeedError(
                "the model has no such output",
                expected=list(names),
                given=unknown,
                hint=did_you_mean(unknown, names),
            )
        checked = self._checked(feeds)
        returned = self._states.returned(feeds, self._donate)
        asked = {} if out is None else out
        given = self._places(feeds, checked, asked, returned)
        made = self._results(feeds, checked, given)
        self._states.count(names, made, {n: x for n, x in given.items() if n in self._donate})
        results = dict(zip(names, deliver(list(names), made, given), strict=True))
        for name in self._donate:
            if name not in asked:
                self._states.add(results[name])
        return [results[n] for n in wanted]

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

    def _results(
        self, feeds: Mapping[str, Any], checked: dict[str, Any], out: Mapping[str, Array]
    ) -> list[Any]:
        """All outputs of a run on checked feeds; fresh, unless they were computed into `out`."""
        if self.config.target == "cpu":
            executable = self._bindings.executable(checked)
            self._remember(checked, executable, checked)
            return executable.run(checked, out)
        if self._bindings.gpu is not None:
            from monograph.runtime.gpu import ports
            from monograph.runtime.gpu.running import Running

            found: Any = self._bindings.executable(checked)
            given = {**checked, **ports.tensors_in(feeds)}
            alone = isinstance(found, Running)
            if alone:  # no host between its parts, which would have to know of tensors
                self._remember(given, found, checked)
            return ports.run(found, given, out)
        made = evaluate(self._graph_for(checked), checked)
        self._runs += 1
        try:
            return [fresh(x) for x in made]
        except MemoryError:
            # Up to here a repeated element may have taken no memory.
            raise ExecutionError(
                "out of memory for the outputs", given=", ".join(map(str, self.outputs))
            ) from None

    def tolerances(
        self, feeds: Mapping[str, Any], *, reference: bool = False
    ) -> dict[str, Tolerance]:
        """How far each output of a run on these feeds may lie from what others compute.

        A file may allow others a lower precision; the reference makes no use of that. A session
        that was asked to compute in one lies farther from the rest.
        """
        from monograph.runtime.tolerance import allowed_by_file, derive

        narrow = self.config.precision != "f32"
        graph = self.optimised_graph(feeds) if narrow else self.bound_graph(feeds)
        allowed = 0.0 if reference else allowed_by_file(self._bindings.model.file)
        return derive(graph, allowed, tf32=self.config.tf32)

    def graph_for(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph that a run on these feeds evaluates; `graph` itself for most models."""
        return self._graph_for(self._checked(feeds))

    def bound_graph(self, feeds: Mapping[str, Any]) -> Graph:
        """The imported graph with its dimensions bound to the sizes of these feeds."""
        return self._bindings.bound(self._checked(feeds))

    def optimised_graph(self, feeds: Mapping[str, Any]) -> Graph:
        """The graph that the target compiles for these feeds: bound, and through the passes."""
        return self._bindings.optimised(self._checked(feeds))

    def executable(self, feeds: Mapping[str, Any]) -> Executable:
        """What a run on these feeds executes on the CPU target: compiled now, if not before."""
        return self._bindings.executable(self._checked(feeds))

    def compiler(self) -> staged.Compiler:
        """How the CPU target compiles the graphs of this session."""
        return self._bindings.compiler()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was compiled so far into a file that `load` takes instead of the model."""
        self._bindings.save(Path(path))

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
        except (AttributeError, KeyError, TypeError):
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

    def _graph_for(self, feeds: dict[str, Any]) -> Graph:
        plain = self._bindings.model.imported and not self.config.optimise
        if plain and len(feeds) == len(self.inputs):
            return self.graph
        return self._bindings.optimised(feeds)


def _described(array: Any) -> tuple[Any, ...]:
    """What tells whether an executable can take an array as it is.

    The type is part of it: a scalar of numpy has a shape and a dtype too, but no memory of its own.
    """
    return array.__class__, array.shape, array.dtype


def _tensor_type() -> type:
    import torch

    kind: type = torch.Tensor
    return kind


def _size(name: str, given: Any) -> int:
    """The size of a dimension, from any kind of integer."""
    try:
        size = operator.index(given)
    except TypeError:
        size = -1
    if size < 0 or isinstance(given, bool):
        raise ConfigError(
            "a dimension is a size", expected="an integer >= 0", given=f"{name}: {given!r}"
        )
    return size


def _names(outputs: Any) -> list[str]:
    """Names of outputs, given as a sequence: the letters of one name are none."""
    if isinstance(outputs, (str, bytes)) or not isinstance(outputs, Iterable):
        raise FeedError(
            "outputs are chosen by a sequence of names",
            expected=f"[{outputs!r}]" if isinstance(outputs, str) else "a list of names",
            given=repr(outputs),
        )
    found = list(outputs)
    if bad := [n for n in found if not isinstance(n, str)]:
        raise FeedError("outputs are chosen by a sequence of names", given=bad)
    return found
