"""The backend of `torch.compile(model, backend="monograph")`.

torch hands over graphs of its compiler. A graph is exported and loaded on its first run, when the
values of its parameters are known. What cannot be compiled runs eagerly, and the reason is logged
once and counted (`counters`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from monograph.compat.torch.counters import COUNTERS
from monograph.compat.torch.export import Exported, export_module, mutated, random_ops
from monograph.compat.torch.freeze import (
    GraphInputs,
    Stamp,
    classify,
    frozen_module,
    is_written,
    open_axes,
    result_nodes,
    shared_results,
    views_of_inputs,
)
from monograph.compat.torch.tensors import target_of, to_feed
from monograph.config import make_config
from monograph.errors import ModelError, MonographError

MAX_EXPORTS = 8
"""The most exports of one graph; each holds the values of its parameters and numbers."""
GRADIENTS = (
    "gradients are recorded and Monograph compiles inference; call the model in torch.no_grad()"
)


def monograph(module: Any, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """Compile a graph of torch's compiler; torch calls this.

    given: `options` of `torch.compile`, a dict of the options of `monograph.load`, such as
        {"target": "cpu", "threads": 2}. `mode` is accepted and changes nothing.
    """
    options = dict(given.get("options") or {})
    make_config(**options)  # a wrong option is the caller's mistake, not a reason to run eagerly
    COUNTERS.count("graphs")
    return CompiledGraph(module, options)


@dataclass(frozen=True)
class _Variant:
    """One export of a graph, and the arguments that it is valid for."""

    exported: Exported
    frozen: Mapping[int, Stamp]
    numbers: Mapping[int, str]
    """Python floats by their exact text."""
    views: Callable[..., Any]
    """Computes the results that are views of inputs, by torch."""
    shared: Callable[..., Any]
    """Computes the results that are views of computed tensors, by torch."""

    def accepts(self, inputs: GraphInputs, args: Sequence[Any]) -> bool:
        """Return True if the export computes the graph's results for these arguments."""
        kept = [args[i] for i in inputs.kept]
        leaves = zip(self.exported.arguments, kept, strict=True)
        return (
            all(stamp.holds(args[i]) for i, stamp in self.frozen.items())
            and all(_text(args[i]) == value for i, value in self.numbers.items())
            and all(leaf.name is not None or leaf.constant == x for leaf, x in leaves)
            and self.exported.fits(kept)
            and self.exported.guards.broken(kept) is None
        )


class CompiledGraph:
    """A graph of torch's compiler. It is called with the graph's arguments."""

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self._module = module
        self._options = options
        self._inputs = classify(module.graph)
        self._axes = open_axes(module.graph)
        results = result_nodes(module.graph)
        views = set(views_of_inputs(module.graph))
        nodes = {i for i, n in enumerate(results) if isinstance(n, torch.fx.Node)}
        self._constants = {i: x for i, x in enumerate(results) if i not in nodes}
        passed = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._passed = {i: passed.index(results[i]) for i in views if results[i] in passed}
        """Results that are arguments: the positions of both."""
        self._views = sorted(views - set(self._passed))
        """A view of an argument stays one: the caller may write through it."""
        shared = shared_results(module.graph)
        self._shared = sorted(shared)
        """So does a view of a computed tensor that is a result too, or has another view."""
        self._owners = [*dict.fromkeys(shared[i] for i in self._shared)]
        self._computed = {i: results[i] for i in sorted(nodes - views - set(shared))}
        self._wanted = [*dict.fromkeys([*self._computed.values(), *self._owners])]
        self._variants: list[_Variant] = []
        self._reason: str | None = None
        if any(map(is_written, self._owners)):
            self._reason = "results share memory that the graph writes to"
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """Return the results of the graph as torch returns them."""
        reason = self._reason or _refused(args)
        if reason is None and self._wanted:
            try:
                variant = self._variant(args)
            except Exception as e:
                reason = self._reason = _why(e)
            else:
                try:
                    return self._run(variant, args)
                except Exception as e:
                    reason = _why(e)  # of these arguments: others may run
        if reason is not None:
            COUNTERS.count_eager(reason)
        return self._module.forward(*args)

    def _run(self, variant: _Variant, args: Sequence[Any]) -> tuple[Any, ...]:
        exported = variant.exported
        kept = [args[i] for i in self._inputs.kept]
        leaves = zip(exported.arguments, kept, strict=True)
        given = [to_feed(x, leaf.pairs) for leaf, x in leaves if leaf.name is not None]
        names = (p.name for p in exported.session.inputs)
        made = exported.session.run(dict(zip(names, given, strict=True)))
        device = next((x.device for x in kept if isinstance(x, torch.Tensor)), None)
        computed = dict(zip(self._wanted, exported.filled(made, device), strict=True))
        results = self._constants | {i: computed[n] for i, n in self._computed.items()}
        if self._views:
            results |= zip(self._views, variant.views(*kept), strict=True)
        if self._shared:
            owners = (computed[n] for n in self._owners)
            results |= zip(self._shared, variant.shared(*kept, *owners), strict=True)
        results |= {i: args[position] for i, position in self._passed.items()}
        COUNTERS.count("runs")
        return tuple(results[i] for i in range(len(results)))

    def _variant(self, args: Sequence[Any]) -> _Variant:
        """Return the export for these arguments; a new one if parameters or numbers changed."""
        with self._lock:
            for variant in self._variants:
                if variant.accepts(self._inputs, args):
                    return variant
            if len(self._variants) == MAX_EXPORTS:
                raise ModelError(
                    f"parameters, numbers or sizes of a graph changed {MAX_EXPORTS} times",
                    hint="mark sizes as dynamic, and compile after the last change of parameters",
                )
            self._variants.append(self._exported(args))
            return self._variants[-1]

    def _exported(self, args: Sequence[Any]) -> _Variant:
        inputs, nodes = self._inputs, result_nodes(self._module.graph)
        module = frozen_module(self._module, inputs, args, self._wanted)
        options = dict(self._options)
        target = options.pop("target", None) or target_of(args)
        with torch.inference_mode(False):
            examples = [_example(args[i]) for i in inputs.kept]
        exported = export_module(
            module,
            examples,
            {},
            tuple(self._axes[i] for i in inputs.kept),
            opset=None,
            options=options,
            refuse=_refuse,
            target=target,
        )
        COUNTERS.count("exports")
        frozen = {i: Stamp.of(args[i]) for i in inputs.parameters}
        numbers = {i: _text(args[i]) for i in inputs.numbers}
        # The export has refused graphs that write to their inputs.
        views = frozen_module(
            self._module, inputs, args, [nodes[i] for i in self._views], pure=True
        )
        shared = frozen_module(
            self._module,
            inputs,
            args,
            [nodes[i] for i in self._shared],
            pure=True,
            given=self._owners,
        )
        return _Variant(exported, frozen, numbers, views, shared)


def _text(number: Any) -> str:
    return float(number.item()).hex()


def _example(given: Any) -> Any:
    # The export reads shapes and types; a tensor of inference mode cannot be traced.
    return torch.empty_like(given) if isinstance(given, torch.Tensor) else given


def _refused(args: Sequence[Any]) -> str | None:
    """Return the reason why a run with these arguments must be torch's own."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in args
    ):
        return GRADIENTS
    return None


def _refuse(program: Any) -> None:
    """Raise an error for a graph whose meaning is more than its results."""
    if written := mutated(program):
        raise ModelError(f"the graph writes to its inputs ({', '.join(written[:3])})")
    if drawn := random_ops(program):
        raise ModelError(f"the graph draws random numbers ({', '.join(drawn[:3])})")


def _why(error: Exception) -> str:
    """Return the reason for an eager run in one line."""
    text = (
        error.message if isinstance(error, MonographError) else f"{type(error).__name__}: {error}"
    )
    return (text.splitlines() or [type(error).__name__])[0]
