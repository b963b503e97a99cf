"""The target of a session: what its configuration compiles for, and with which passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from monograph.config import Config
from monograph.ir import Graph
from monograph.runtime.counts import RunCounters
from monograph.runtime.cpu.backend import CpuBackend
from monograph.runtime.forking import import_whole
from monograph.runtime.progress import Progress, silent
from monograph.runtime.reference import ReferenceTarget
from monograph.runtime.target import Target

if TYPE_CHECKING:
    from monograph.runtime.gpu.cross_compiler import CrossCompiler
    from monograph.runtime.gpu.target import GpuBackend

REWRITES = ("monograph.passes.base", "monograph.pipeline", "monograph.rewrite")
"""Modules that are imported when a model is first rewritten."""


def open_target(
    config: Config, progress: Progress, tally: RunCounters | None
) -> tuple[Target, GpuBackend | CrossCompiler | None]:
    """Return the target of a configuration, and the same once more if it is a GPU."""
    optimise = partial(optimise_for, config, progress=progress)
    if config.on_gpu:
        gpu = _open_gpu(config, optimise, progress, tally)
        return gpu, gpu
    if config.target == "cpu":
        return CpuBackend(config, optimise, progress, tally), None
    return ReferenceTarget(optimise), None


def _open_gpu(
    config: Config,
    optimise: Callable[[Graph], Graph],
    progress: Progress,
    tally: RunCounters | None,
) -> GpuBackend | CrossCompiler:
    """Return the GPU target of a session; torch and triton are imported only where they exist."""
    from monograph.runtime.gpu.driver.device_discovery import make_ready

    make_ready(config.device)
    from monograph.runtime.gpu.target import open_target

    return open_target(config, optimise, progress, tally)


def optimise_for(config: Config, graph: Graph, progress: Progress = silent) -> Graph:
    """Return a graph of known shapes after the passes of the configuration's target."""
    if config.target == "reference" and not config.optimise:
        return graph
    import_whole(*REWRITES)
    from monograph.passes.base import Environment
    from monograph.pipeline import chosen_passes, optimise, target_cost, target_options

    options = target_options(config)
    count, done = len(chosen_passes(options)), itertools.count(1)
    progress("rewrite", 0, count)
    return optimise(
        graph,
        environment=Environment(target_cost(config)),
        options=options,
        observe=lambda *_: progress("rewrite", next(done), count),
    )
