"""Session: a model on a target, ready to run."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from monograph.bindings import NOTHING_OPEN, Bindings
from monograph.calls import Calls
from monograph.config import Config, make_config
from monograph.errors import ConfigError, ExecutionError
from monograph.ir import Graph, TensorType
from monograph.runtime.cache.store import UnreadModel
from monograph.runtime.counts import Counts, Stats
from monograph.runtime.executable import ANY_SHAPE, EXACT, constant_bytes, described
from monograph.runtime.progress import Progress, check_progress, silent

if TYPE_CHECKING:
    import onnx

    from monograph.ir.sizes import SizeScope
    from monograph.program.dynamic.batch_proof import BatchProof
    from monograph.runtime.dynamic.stage_compiler import Compiler
    from monograph.runtime.executable import Executable
    from monograph.runtime.gpu.cross_compiler import CrossCompiler
    from monograph.runtime.gpu.target import GpuBackend
    from monograph.runtime.numerics.tolerance import Tolerance

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
    """Load a model for a target.

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
    _check_names("dims maps names to sizes", dims or {})
    names = [name for pair in (donate or {}).items() for name in pair]
    _check_names("donate maps names of outputs to names of inputs", names)
    check_progress(progress)
    return Session(UnreadModel(source), config, dict(dims or {}), dict(donate or {}), progress)


_HABITS = {
    "get_inputs": "session.inputs",
    "get_outputs": "session.outputs",
    "get_overridable_initializers": "session.optional_inputs",
    "get_modelmeta": "session.metadata",
    "get_session_options": "session.config",
    "get_providers": "session.config.target",
    "get_provider_options": "session.config",
    "set_providers": 'monograph.load(..., target="gpu")',
    "io_binding": "session.run(feeds, out={name: array})",
    "run_with_iobinding": "session.run(feeds, out={name: array})",
    "run_with_ort_values": "session.run(feeds)",
    "end_profiling": "`monograph profile model.onnx`",
}
"""Members of ONNX Runtime's sessions, and the same in Monograph."""


class Session(Calls):
    """A loaded model. `run` may be called from several threads at once."""

    def __getattr__(self, name: str) -> NoReturn:
        ours = _HABITS.get(name)
        hint = f": use {ours}, or monograph.onnxruntime (docs/migration.md)" if ours else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __init__(
        self,
        source: UnreadModel,
        config: Config,
        dims: dict[str, int],
        donate: dict[str, str],
        progress: Progress | None = None,
    ) -> None:
        sizes = {name: _size(name, size) for name, size in dims.items()}
        super().__init__(Bindings(source, config, sizes, donate, progress or silent), config)

    @property
    def graph(self) -> Graph:
        """The imported graph, symbolic dimensions and all."""
        return self._bindings.model.graph

    @property
    def gpu(self) -> GpuBackend | CrossCompiler | None:
        """The GPU target: its device and how kernels were chosen; None on other targets."""
        return self._bindings.gpu

    @property
    def arch(self) -> str:
        """The architecture of the GPU that is compiled for; "" for other targets."""
        return self._target.architecture

    @property
    def donate(self) -> Mapping[str, str]:
        """The outputs that are written into the memory of an input; empty without state."""
        return dict(self._donate)

    @property
    def packaged_sizes(self) -> list[dict[str, int]]:
        """The sets of dimension sizes that a package has code for; empty for a model."""
        return self._bindings.packaged_sizes

    @property
    def threads(self) -> int:
        """The number of threads that CPU code is compiled for; `stats` shows how many are used."""
        return self._target.threads

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ExecutionError(
            "a session is neither copied nor pickled: it holds native code, memory and threads",
            hint="load the model again; what was compiled is found on disk, or save a package",
        )

    def __repr__(self) -> str:
        """Describe it: `Session(cpu, threads=2: (x: f32[N, 4]) -> (y: f32[N, 4]))`."""
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        target = self.config.target + (f", threads={self.threads}" if self.threads else "")
        return f"Session({target}: ({inputs}) -> ({outputs}))"

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics: runs, shapes compiled, launches and host steps of a run.

        How runs were launched: `captures`, `replays`, `rebinds`, copies that had to be made
        (`staged`) and runs that were more than one launch (`fallbacks`), the last two by reason.
        """
        made, gone, tally = self._bindings.made(), self._bindings.kept.gone, self._bindings.tally
        copies = self._donated.copies + gone["copies"]
        threads = {"threads": max((e.threads for e in made), default=0)} if self.threads else {}
        found = {
            "runs": gone["runs"] + sum(e.runs for e in made),
            "compiled": len(made),
            "from_disk": self._bindings.found + self._bindings.variants.found,
            "specialisations": gone["specialisations"] + sum(e.specialisations for e in made),
            "launches_per_run": max((e.launches for e in made), default=0),
            "kernels_per_run": max((e.kernels for e in made), default=0),
            "bounds_checks": sum(e.bounds_checks for e in made),
            "host_steps": sorted({kind for e in made for kind in e.host_kinds}),
            "host_reasons": dict(sorted(r for e in made for r in e.host_reasons.items())),
            "peak_bytes": max((e.arena_bytes for e in made), default=0),
            "constant_bytes": constant_bytes(made),
            "donation_copies": copies + sum(e.copies for e in made),
            **(Counts() if tally is None else tally.total()).as_dict(),
            **threads,
            **self._any_shape_stats(),
        }
        return Stats(found | self._target.stats(made))

    def _any_shape_stats(self) -> dict[str, Any]:
        """Return the statistics of both tiers, where code for any shape was asked for."""
        bindings = self._bindings
        variants, tiers = bindings.variants, bindings.tiers
        wanted = bindings.any_shape and variants.exact_reason != NOTHING_OPEN
        if not wanted and not variants.codes:
            return {}
        return {
            "variants": len(variants.codes),
            "guards": [code.guards for code in variants.codes],
            "variant_reasons": list(variants.reasons),
            "exact_reason": variants.exact_reason,
            "shapes_seen": bindings.kept.added,
            "shapes": [described(e) for e in bindings.made()],
            "compile_seconds": {
                ANY_SHAPE: variants.seconds,
                EXACT: bindings.seconds,
                "background": 0.0 if tiers is None else tiers.seconds,
            },
            "background": bindings.one_tier_reason if tiers is None else tiers.stats(),
        }

    def tolerances(
        self, feeds: Mapping[str, Any], *, reference: bool = False
    ) -> dict[str, Tolerance]:
        """Return how far each element of a run on these feeds may be from other implementations.

        A file may allow others a lower precision; the reference makes no use of that. A session
        that was asked to compute in one lies farther from the rest.
        """
        from monograph.runtime.numerics.spread import tolerances
        from monograph.runtime.numerics.tolerance import allowed_by_file

        narrow = self.config.precision != "f32"
        graph = self.optimised_graph(feeds) if narrow else self.bound_graph(feeds)
        allowed = 0.0 if reference else allowed_by_file(self._bindings.model.file)
        checked = self._checked(feeds)
        return tolerances(graph, checked, allowed, tf32=self.config.tf32, narrowed=narrow)

    def graph_for(self, feeds: Mapping[str, Any]) -> Graph:
        """Return the graph that the reference evaluates; `graph` for most models."""
        return self._bindings.evaluated(self._checked(feeds))

    def bound_graph(self, feeds: Mapping[str, Any]) -> Graph:
        """Return the imported graph with its dimensions bound to the sizes of these feeds."""
        return self._bindings.bound(self._checked(feeds))

    def optimised_graph(self, feeds: Mapping[str, Any]) -> Graph:
        """Return the graph that the target compiles for these feeds, after the passes."""
        return self._bindings.optimised(self._checked(feeds))

    def opened_graph(self, feeds: Mapping[str, Any]) -> tuple[Graph, SizeScope]:
        """Return the graph of code for any shape after the passes, and its open sizes.

        The hints of the sizes are those of these feeds.
        """
        arrays = {n: x for n, x in self._checked(feeds).items() if isinstance(x, np.ndarray)}
        return self._bindings.opened({name: x.shape for name, x in arrays.items()})

    def executable(self, feeds: Mapping[str, Any]) -> Executable:
        """Return the executable of a run on these feeds; it is compiled now if it is new."""
        return self.executable_for(self._checked(feeds))

    def has_code(self, feeds: Mapping[str, Any]) -> bool:
        """Return True if a run on these feeds compiles nothing: code is in memory or on disk."""
        return self._bindings.has_code(self._checked(feeds))

    def batch_axes(self) -> BatchProof:
        """Return the batch axis of each input and output, or the node that mixes rows.

        Rows along a batch axis are independent: rows of several requests may share a run.
        """
        from monograph.program.dynamic.batch_proof import BatchProof

        ports = self.inputs
        types = {p.name: p.type for p in ports if isinstance(p.type, TensorType)}
        if len(types) != len(ports) or any(t.shape is None for t in types.values()):
            return BatchProof({}, {}, "an input has no shape")
        if self._donate:
            return BatchProof({}, {}, "the model has state")
        if self._bindings.packaged:
            return BatchProof({}, {}, "a package holds no graph")

        def bind(shapes: Mapping[str, tuple[int, ...]]) -> Graph:
            empty = {n: np.zeros((), types[n].dtype.numpy) for n in shapes}
            return self.bound_graph({n: np.broadcast_to(x, shapes[n]) for n, x in empty.items()})

        found = BatchProof.from_json(self._bindings.note("batch axes"))
        if found is None:
            from monograph.program.dynamic.batch_axis import find_batch_axis

            found = find_batch_axis(types, bind)
            self._bindings.keep_note("batch axes", found.to_json())
        return found

    def compiler(self) -> Compiler:
        """Return what compiles the graphs of this session for the CPU."""
        return self._bindings.compiler()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was compiled so far into a file that `load` accepts instead of the model."""
        self._bindings.save(Path(path))


def _check_names(rule: str, given: Iterable[Any]) -> None:
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ConfigError(rule, expected="str", given=", ".join(map(repr, wrong)))


def _size(name: str, given: Any) -> int:
    """Return the size of a dimension, given any kind of integer."""
    try:
        size = operator.index(given)
    except TypeError:
        size = -1
    if size < 0 or isinstance(given, bool):
        raise ConfigError(
            "a dimension is a size", expected="an integer >= 0", given=f"{name}: {given!r}"
        )
    return size
