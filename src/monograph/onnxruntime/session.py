"""InferenceSession: ONNX Runtime's session in front of Monograph's."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monograph.errors import FeedError, MonographError
from monograph.onnxruntime.allocators import HOST, OrtMemoryInfo
from monograph.onnxruntime.binding import IOBinding
from monograph.onnxruntime.errors import (
    InvalidArgument,
    NoSuchFile,
    OrtError,
    load_error,
    run_error,
)
from monograph.onnxruntime.feeds import FeedReader
from monograph.onnxruntime.model_file import write_model
from monograph.onnxruntime.options import RunOptions, SessionOptions, check_run_options, log_once
from monograph.onnxruntime.providers import CPU, ChosenTarget, Provider, choose_target
from monograph.onnxruntime.values import OrtDevice, OrtValue, type_text
from monograph.runtime.atomic_write import replacing_named

if TYPE_CHECKING:
    from monograph.runtime.feeds import Port
    from monograph.session import Session


NO_VERSION = (1 << 63) - 1
"""The version of a model that has none, as ONNX Runtime reports it."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


@dataclass(frozen=True)
class ModelMetadata:
    """The texts that a model file says about itself."""

    custom_metadata_map: dict[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


class InferenceSession:
    """A model that is ready to run."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)) or path_or_bytes == "":
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"`sess_options` must be SessionOptions, got {sess_options!r}")
        self._source = path_or_bytes
        self._model_path = None if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._options = sess_options or SessionOptions()
        self._threads: ThreadPoolExecutor | None = None
        self._profile = _Profile() if self._options.enable_profiling else None
        for name in kwargs.keys() - {"enable_fallback"}:
            log_once(f"the argument {name} of InferenceSession has no effect")
        if self._options.has_providers():
            if providers:
                warnings.warn("`providers` replaces those of the SessionOptions", stacklevel=2)
            providers = providers or self._options.added_providers
        try:
            choice = choose_target(providers, provider_options)
        except (ValueError, RuntimeError) as e:
            if int(kwargs.get("enable_fallback", 1)) != 1:
                raise
            warnings.warn(f"{e}. Falling back to ['{CPU}'].", stacklevel=2)
            choice = choose_target([CPU], None)
        self._open(choice)

    def _open(self, choice: ChosenTarget) -> None:
        """Load the model for a target."""
        if self._model_path is not None and not os.path.exists(self._model_path):
            path = self._model_path
            raise NoSuchFile(
                f"Load model from {path} failed:Load model {path} failed. File doesn't exist"
            )
        options = {"target": choice.target} | self._options.own_options()
        try:
            self._session = _load(self._source, self._options.free_dimensions, options)
            if self._options.optimized_model_filepath:
                write_model(self._source, self._options.optimized_model_filepath)
        except MonographError as e:
            raise load_error(e, self._model_path, self._source) from e
        self._choice = choice
        self._reader = FeedReader(self._session)
        self._inputs_meta = [node_arg(port) for port in self._session.inputs]
        self._outputs_meta = [node_arg(port) for port in self._session.outputs]
        self._optional_meta = [node_arg(port) for port in self._session.optional_inputs]
        self._positions = {arg.name: i for i, arg in enumerate(self._outputs_meta)}
        self.input_names = {a.name for a in (*self._inputs_meta, *self._optional_meta)}
        """The names of everything that can be fed."""

    def get_session_options(self) -> SessionOptions:
        """Return the options of the session."""
        return self._options

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that must be fed."""
        return list(self._inputs_meta)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return list(self._outputs_meta)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have an initialiser, which a feed replaces."""
        return list(self._optional_meta)

    def get_modelmeta(self) -> ModelMetadata:
        """Return the texts that the model file says about itself."""
        found = self._session.metadata
        return ModelMetadata(
            dict(found.properties),
            found.description,
            found.domain,
            found.graph_description,
            found.graph_name,
            found.producer,
            NO_VERSION if found.version is None else found.version,
        )

    def get_providers(self) -> list[str]:
        """Return the providers in use, the CPU last."""
        return list(self._choice.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of the providers in use."""
        return {name: dict(options) for name, options in self._choice.options.items()}

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        """Load the model again for other providers."""
        self._open(choose_target(providers, provider_options))

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the kind of memory of each input: that of the host, which every target reads."""
        return [HOST] * len(self._inputs_meta)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the kind of memory of each output."""
        return [HOST] * len(self._outputs_meta)

    def get_tuning_results(self) -> list[Any]:
        """Return no results: Monograph keeps measurements in its cache."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Accept results of a tuner, without effect."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accept options of providers, without effect."""
        for name in options:
            log_once(f"the dynamic option {name} has no effect")

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accept the call, without effect: a session releases its graph when it is closed."""

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """Allocate a tensor. Its elements are zeros."""
        make = OrtValue.ortvalue_from_shape_and_type
        return make(shape, element_type, device_type, device_id, vendor_id)

    def enable_fallback(self) -> None:
        """Accept the call, without effect: runs do not change providers."""

    def disable_fallback(self) -> None:
        """Accept the call, without effect: runs do not change providers."""

    @property
    def gpu(self) -> OrtDevice | None:
        """The GPU that runs the model, None for the CPU."""
        number = self._choice.gpu
        return None if number is None else OrtDevice.make("cuda", number)

    @property
    def monograph_session(self) -> Session:
        """Monograph's session behind this one."""
        return self._session

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model and return the named outputs, or all of them."""
        if run_options is not None:
            check_run_options(run_options)
        wanted = self._wanted(output_names) if output_names else None
        results = self.run_feeds(input_feed)
        return results if wanted is None else [results[i] for i in wanted]

    def run_feeds(
        self, feeds: Mapping[str, Any], memory: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return all outputs; `memory` holds arrays to write some of them into."""
        start = 0 if self._profile is None else time.perf_counter_ns()
        try:
            for data in feeds.values():
                if data.__class__ is list:
                    feeds = self._reader.read(feeds)
                    break
            try:
                results = self._session.run(feeds, None, out=memory)
            except FeedError:
                # Feeds that only ONNX Runtime accepts are converted; others get its errors.
                results = self._session.run(self._reader.read(feeds), out=memory)
        except MonographError as e:
            raise run_error(e) from e
        if self._profile is not None:
            self._profile.add("model_run", start)
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model on another thread; `callback` gets outputs, `user_data` and an error."""
        self._reader.check_names(input_feed)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "monograph-onnxruntime")

        def work() -> None:
            try:
                results, problem = self.run(output_names, input_feed, run_options), ""
            except Exception as e:
                results, problem = [], e.reason if isinstance(e, OrtError) else str(e)
            callback(results, user_data, problem)

        self._threads.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run the model on values and return values."""
        feeds = {name: value.content for name, value in input_dict_ort_values.items()}
        return [OrtValue(x) for x in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        """Return an object that binds inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run the model on what is bound."""
        if not iobinding.belongs_to(self):
            raise ValueError("IOBinding must be used with the session that created it.")
        if run_options is not None:
            check_run_options(run_options)
        iobinding.run()

    def end_profiling(self) -> str:
        """Write the profile and return the name of its file; "" if profiling is not enabled."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write(self._options.profile_file_prefix)

    def get_profiling_start_time_ns(self) -> int:
        """Return the time at which the profile begins, 0 without one."""
        return 0 if self._profile is None else self._profile.start

    def _wanted(self, names: Sequence[str]) -> list[int]:
        if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
            raise TypeError(f"`output_names` must be a list of names, got {names!r}")
        for name in names:
            if name not in self._positions:
                raise InvalidArgument(f"Invalid output name:{name}")
        return [self._positions[name] for name in names]


def _load(source: Any, free: Mapping[str, int], options: Mapping[str, Any]) -> Session:
    """Load a model, with sizes for those of the named dimensions that it has."""
    # Imported here: `import monograph.onnxruntime` takes a fraction of the time of the compiler.
    from monograph.session import load

    session = load(source, **options)
    symbols = {d for port in session.inputs for d in port.shape or () if isinstance(d, str)}
    dims = {name: size for name, size in free.items() if name in symbols}
    return load(source, dims=dims, **options) if dims else session


def node_arg(port: Port) -> NodeArg:
    """Return an input or output in ONNX Runtime's terms."""
    from monograph.ir import OptionalType, TensorType

    inner = port.type
    while isinstance(inner, OptionalType):
        inner = inner.element
    shape = (inner.shape or ()) if isinstance(inner, TensorType) else ()
    # A symbol of Monograph's own names a size that the file does not name.
    sizes = [None if isinstance(d, str) and d.startswith("~") else d for d in shape]
    return NodeArg(port.name, type_text(port.type), sizes)


class _Profile:
    """The times of runs, as a file that trace viewers read."""

    def __init__(self) -> None:
        self.start = time.monotonic_ns()
        self._offset = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self.add("session_initialization", self._offset)

    def add(self, name: str, start: int) -> None:
        """Add what began at a time of `time.perf_counter_ns` and ends now."""
        self._events.append(
            {
                "cat": "Session",
                "pid": os.getpid(),
                "tid": 0,
                "dur": (time.perf_counter_ns() - start) // 1000,
                "ts": (start - self._offset) // 1000,
                "ph": "X",
                "name": name,
                "args": {},
            }
        )

    def write(self, prefix: str) -> str:
        """Write the file and return its name."""
        name = f"{prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        lines = ",\n".join(json.dumps(event) for event in self._events)
        with replacing_named(Path(name), "the profile") as file:
            file.write(f"[\n{lines}\n]\n".encode())
        return name
