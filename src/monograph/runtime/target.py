"""The Target protocol: what compiles a session's graphs, and how its runs take data.

The implementations are `ReferenceTarget`, `CpuBackend`, `GpuBackend` and `CrossCompiler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from monograph.errors import UnsupportedError
from monograph.ir import Graph
from monograph.ir.sizes import SizeScope
from monograph.runtime.cache.any_shape_artefact import AnyShapeArtefact
from monograph.runtime.cache.artefact import Artefact, Weights
from monograph.runtime.executable import CompiledArtefact, Executable, Feeds
from monograph.runtime.feeds import Port, arrays_of
from monograph.runtime.outputs import check_out
from monograph.runtime.shape_code import ShapeCode


class Target(Protocol):
    """A target of one session. Members with a default hold for runs on arrays of the host."""

    evaluates: bool = False
    """True if graphs are evaluated op by op; False if they are compiled."""
    enqueues: bool = False
    """True if runs are enqueued on streams of a device; False if a thread of the host runs them."""
    array_types: tuple[type, ...] = (np.ndarray,)
    """The types of arrays that executables take without a conversion."""
    threads: int = 0
    """The number of CPU threads that code is compiled for."""

    @property
    def architecture(self) -> str:
        """The name of the GPU architecture that code is compiled for; "" for other targets."""
        return ""

    def import_feeds(self, feeds: Feeds) -> Feeds:
        """Return the feeds with arrays or tensors in place of what DLPack describes."""
        return arrays_of(feeds)

    def describe_feeds(self, feeds: Feeds, limit: int = -1) -> Feeds:
        """Return arrays of the same types and shapes as the feeds; the feeds if they are arrays.

        limit: the values of integer feeds with at most so many elements are read.
        """
        return feeds

    def executable_feeds(self, feeds: Feeds, checked: dict[str, Any]) -> dict[str, Any]:
        """Return what an executable takes, given feeds and the checked arrays for them."""
        return checked

    def check_outputs(
        self,
        ports: Sequence[Port],
        feeds: Feeds,
        checked: Feeds,
        out: Feeds,
        donate: Mapping[str, str],
        returned: Feeds,
    ) -> dict[str, Any]:
        """Return the memory for outputs by name: `out`, and donated state that was returned."""
        return check_out(ports, checked, out, donate, returned)

    def optimise(self, graph: Graph) -> Graph:
        """Return a graph of known shapes after the passes of this target."""

    def compile(self, graph: Graph) -> Executable:
        """Compile an optimised graph of known shapes."""

    def compile_any_shape(self, graph: Graph, scope: SizeScope) -> ShapeCode:
        """Compile an optimised graph with open sizes.

        Raises UnsupportedError for a graph whose sizes have to be known.
        """
        raise UnsupportedError("this target compiles for one set of shapes")

    def load(
        self, artefact: CompiledArtefact, compile_again: Callable[[], Executable]
    ) -> Executable:
        """Return the executable of an artefact; `compile_again` makes it from the model."""

    def open_variant(self, artefact: CompiledArtefact) -> ShapeCode:
        """Return code for any shape that was found on disk or in a package."""
        raise UnsupportedError("this target compiles for one set of shapes")

    def store_options(
        self, dims: Mapping[str, int], donate: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the options that decide what code a cache holds; None if it holds none."""
        return None

    def read_artefact(self, members: Mapping[str, memoryview], weights: Weights) -> Any:
        """Return the artefact of exact code that members hold; `weights` finds constants."""
        return Artefact.of(members, weights)

    def read_variant(self, members: Mapping[str, memoryview], weights: Weights) -> Any:
        """Return the artefact of code for any shape that members hold."""
        return AnyShapeArtefact.of(members, weights)

    def accepts(self, artefact: CompiledArtefact) -> bool:
        """Return True if what was found on disk is what would be compiled now."""
        return True

    def package_options(self, dims: Mapping[str, int], donate: Mapping[str, str]) -> dict[str, Any]:
        """Return the options that decide what code a package holds."""

    def stats(self, executables: Sequence[Executable]) -> dict[str, Any]:
        """Return statistics that only this target has."""
        return {}
