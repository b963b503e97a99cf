"""SessionOptions and RunOptions: ONNX Runtime's names, with Monograph's options behind them."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Any, ClassVar

from monograph.config import option_value
from monograph.errors import ConfigError
from monograph.onnxruntime.errors import OrtFail, OrtNotImplemented

_log = logging.getLogger("monograph")
_MAX_KEY = 1024
_MAX_THREADS = 1024
OWN = "monograph."
"""The prefix of config entries that set Monograph's options: `monograph.cache_dir`."""


class NamedNumber(IntEnum):
    """A number whose text is its name, as that of ONNX Runtime's enumerations."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__


class GraphOptimizationLevel(NamedNumber):
    """ONNX Runtime's levels of optimisation. Monograph always optimises."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(NamedNumber):
    """The order of nodes on several threads. Monograph compiles the order in."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(NamedNumber):
    """The order of nodes. Monograph chooses it."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_global_threads = [0]
"""The threads of sessions whose `use_per_session_threads` is False; 0 for all."""


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Set the threads of sessions whose `use_per_session_threads` is False."""
    _global_threads[0] = _as_type("intra_op_num_threads", intra_op_num_threads, int)
    if inter_op_num_threads:
        log_once("inter_op_num_threads has no effect")


@lru_cache(maxsize=1024)
def log_once(text: str) -> None:
    """Log a text the first time that it comes up in this process."""
    _log.info("%s", text)


class _Checked:
    """An object with a fixed set of attributes of fixed types."""

    _types: ClassVar[Mapping[str, type]]

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._types.get(name)
        if kind is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, _as_type(name, value, kind))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _as_type(name: str, value: Any, kind: type) -> Any:
    """Return a value of the type of an attribute; raise TypeError for other types."""
    if isinstance(value, kind):
        return value
    if kind is bool and (value is None or hasattr(type(value), "__bool__")):
        return bool(value)
    if kind is int:
        try:
            return operator.index(value)
        except TypeError:
            pass
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"`{name}` must be of type {kind.__name__}, got {value!r}")


class _Entries:
    """Config entries: texts by key."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.found: dict[str, str] = {}

    def add(self, key: Any, value: Any) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"a config entry must be two strings, got {key!r}, {value!r}")
        if not 0 < len(key) <= _MAX_KEY:
            raise RuntimeError(f"Config key is empty or longer than maximum length {_MAX_KEY}")
        self.found[key] = value

    def get(self, key: str) -> str:
        if key not in self.found:
            raise RuntimeError(f"{self._owner} does not have configuration with key: {key}")
        return self.found[key]


class SessionOptions(_Checked):
    """The options of an InferenceSession. `docs/migration.md` says which have an effect."""

    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    enable_profiling: bool
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    graph_optimization_level: GraphOptimizationLevel
    inter_op_num_threads: int
    intra_op_num_threads: int
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    optimized_model_filepath: str
    profile_file_prefix: str
    use_deterministic_compute: bool
    use_per_session_threads: bool

    _defaults: ClassVar[dict[str, Any]] = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }
    _types = {name: type(value) for name, value in _defaults.items()}
    _effective = (
        "enable_profiling", "intra_op_num_threads", "optimized_model_filepath",
        "profile_file_prefix", "use_per_session_threads",
    )  # fmt: skip

    def __init__(self) -> None:
        self._set(**self._defaults)
        self._set(_entries=_Entries("SessionOptions"), _providers={}, free_dimensions={})

    _entries: _Entries
    _providers: dict[str, dict[str, str]]
    free_dimensions: dict[str, int]
    """Sizes of named dimensions. The model may lack some of the names."""

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a config entry. `monograph.NAME` sets an option of Monograph; others do nothing."""
        self._entries.add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return a config entry that was set."""
        return self._entries.get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give a named dimension of the inputs a size."""
        self.free_dimensions[_as_type("name", name, str)] = _as_type("size", size, int)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Accept a size for dimensions of a denotation, without effect."""
        _as_type("size", size, int)
        log_once(f"sizes by denotation have no effect ({denotation})")

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Add an execution provider, for sessions that are given none."""
        self._providers[_as_type("name", name, str)] = {str(k): str(v) for k, v in options.items()}

    def has_providers(self) -> bool:
        """Return True if providers were added."""
        return bool(self._providers)

    @property
    def added_providers(self) -> list[str | tuple[str, dict[Any, Any]]]:
        """The providers that were added, with their options."""
        return [(name, dict(options)) for name, options in self._providers.items()]

    def register_custom_ops_library(self, path: str) -> None:
        """Refuse a library of kernels."""
        raise OrtFail(
            f"Failed to load library {path}: its kernels are native code for ONNX Runtime",
            hint="express the ops as model-local functions, or add converters to Monograph",
        )

    def add_initializer(self, name: str, value: Any) -> None:
        """Refuse an initialiser that is not in the file."""
        raise OrtNotImplemented(
            f"Monograph reads initialisers from the model file (add_initializer {name!r})",
            hint="write the initialiser into the model with onnx, or make it an input",
        )

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Refuse initialisers that are not in the file."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Refuse initialisers that are not in the file."""
        for name in names:
            self.add_initializer(name, buffers)

    def own_options(self) -> dict[str, Any]:
        """Return Monograph's options for these, and log those without effect."""
        unused = [n for n in self._defaults if n not in self._effective]
        for name in unused:
            if getattr(self, name) != self._defaults[name]:
                log_once(f"the session option {name} has no effect")
        found: dict[str, Any] = {}
        threads = self.intra_op_num_threads
        if threads == 0 and not self.use_per_session_threads:
            threads = _global_threads[0]
        if threads > 0:
            found["threads"] = min(threads, _MAX_THREADS)
        for key, value in self._entries.found.items():
            if not key.startswith(OWN):
                log_once(f"the session config entry {key} has no effect")
                continue
            found[key.removeprefix(OWN)] = _own_option(key.removeprefix(OWN), value)
        return found


def _own_option(name: str, text: str) -> Any:
    try:
        return option_value(name, text)
    except ConfigError as e:
        raise OrtFail(e.message, expected=e.expected, given=e.given, hint=e.hint) from e


def get_default_session_options() -> SessionOptions:
    """Return options with their defaults."""
    return SessionOptions()


class RunOptions(_Checked):
    """The options of one run."""

    log_severity_level: int
    log_verbosity_level: int
    logid: str
    only_execute_path_to_fetches: bool
    terminate: bool

    _defaults: ClassVar[dict[str, Any]] = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }
    _types = {name: type(value) for name, value in _defaults.items()}
    _entries: _Entries

    def __init__(self) -> None:
        self._set(**self._defaults)
        self._set(_entries=_Entries("RunOptions"))

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a config entry. None has an effect."""
        self._entries.add(key, value)
        log_once(f"the run config entry {key} has no effect")

    def get_run_config_entry(self, key: str) -> str:
        """Return a config entry that was set."""
        return self._entries.get(key)

    def add_active_adapter(self, adapter: Any) -> None:
        """Refuse a LoRA adapter."""
        raise OrtNotImplemented("Monograph does not apply adapters", hint="merge it into the model")


def check_run_options(options: Any) -> None:
    """Raise TypeError for other objects, and OrtFail if the run is to be terminated."""
    if not isinstance(options, RunOptions):
        raise TypeError(f"`run_options` must be RunOptions, got {options!r}")
    if options.terminate:
        raise OrtFail("Exiting due to terminate flag being set to true.")
