"""`monograph.from_torch`: a torch module, compiled, that takes and returns torch tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from monograph.compat.torch.export import Exported, export_module, mutated, random_ops
from monograph.compat.torch.tensors import target_of, to_feed
from monograph.errors import ConfigError, FeedError, ModelError
from monograph.runtime.progress import Progress
from monograph.session import Session

EVAL = "call module.eval() first: Monograph compiles inference"
Examples: TypeAlias = "torch.Tensor | Sequence[Any] | Mapping[str, Any]"


def from_torch(
    module: torch.nn.Module,
    example_inputs: Examples,
    dynamic_shapes: Any = None,
    *,
    target: str | None = None,
    opset: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TorchModel:
    """Export a torch module and load it for a target; its parameters become constants.

    The result is called like the module, with tensors, and returns what the module returns.

    module: an `nn.Module` in evaluation mode.
    example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
    dynamic_shapes: the open dimensions, as for `torch.export.export`; by argument, e.g.
        {"x": {0: torch.export.Dim("batch")}}, or in the order of the arguments. Sizes are those
        of the examples by default.
    target: as for `monograph.load`; by default "gpu" if an example or a parameter is on one.
    opset: the ONNX opset to export to; by default that of torch.
    progress: called with (stage, done, total) while the model is compiled.
    options: see `monograph.config.Config`.
    """
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            "`module` must be a torch.nn.Module",
            given=type(module).__name__,
            hint="wrap a function in a module that calls it",
        )
    args, kwargs = _arguments(example_inputs)
    if target is None:
        target = target_of([*module.parameters(), *pytree.tree_leaves((args, kwargs))])
    exported = export_module(
        module,
        args,
        kwargs,
        dynamic_shapes,
        opset=opset,
        options=options,
        refuse=lambda program: _refuse(program, module.training),
        target=target,
        progress=progress,
    )
    return TorchModel(exported, inspect.signature(module.forward), args, kwargs)


def _arguments(examples: Examples) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments."""
    if isinstance(examples, torch.Tensor):
        return (examples,), {}
    if isinstance(examples, Mapping):
        if wrong := [name for name in examples if not isinstance(name, str)]:
            raise ConfigError(
                "a dict of `example_inputs` maps names of arguments to tensors",
                given=repr(wrong[0]),
            )
        return (), dict(examples)
    if isinstance(examples, (tuple, list)):
        return tuple(examples), {}
    raise ConfigError(
        "`example_inputs` must be a tensor, a tuple of arguments or a dict of arguments",
        given=type(examples).__name__,
        hint="give the arguments of one call: from_torch(module, (x, mask))",
    )


def _refuse(program: Any, training: bool) -> None:
    """Raise an error for a program that does more than compute results from arguments."""
    if written := mutated(program):
        raise ModelError(
            "the module writes to its inputs or buffers",
            given=", ".join(written[:3]),
            hint=EVAL if training else "return the new state as a result instead",
        )
    if training and (drawn := random_ops(program)):
        raise ModelError(
            "a module in training mode draws random numbers",
            given=", ".join(drawn[:3]),
            hint=EVAL,
        )


class TorchModel:
    """A compiled torch module. Arguments and results are those of the module."""

    def __init__(
        self,
        exported: Exported,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._exported = exported
        self._signature = signature
        self._positional = len(args)
        self._keywords = tuple(kwargs)
        self._expected = _paths(args, kwargs)

    @property
    def session(self) -> Session:
        """The session that runs: its inputs have the names of the module's arguments."""
        return self._exported.session

    def __repr__(self) -> str:
        return f"TorchModel({self.session!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on tensors and return what the module returns."""
        leaves = self._leaves(args, kwargs)
        feeds, given = {}, iter(self.session.inputs)
        for expected, leaf in zip(self._exported.arguments, leaves, strict=True):
            if expected.name is not None:
                feeds[next(given).name] = to_feed(leaf, expected.pairs)
            elif not _same(expected.constant, leaf):
                raise FeedError(
                    "an argument that is no tensor is part of the compiled model",
                    expected=repr(expected.constant),
                    given=repr(leaf),
                    hint="call from_torch again with this argument",
                )
        if self._exported.fits(leaves) and (broken := self._exported.guards.broken(leaves)):
            raise FeedError(
                "the module was exported for other sizes",
                expected=broken,
                given=_sizes(leaves),
                hint="call from_torch again with examples of these sizes",
            )
        device = next((x.device for x in leaves if isinstance(x, torch.Tensor)), None)
        made = self._exported.filled(self.session.run(feeds), device)
        return pytree.tree_unflatten(made, self._exported.out_spec)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves of the arguments in the order of the export."""
        spec = self._exported.spec
        leaves, found = pytree.tree_flatten((args, kwargs))
        if found != spec:
            leaves, found = pytree.tree_flatten(self._as_exported(args, kwargs))
        if found != spec:
            raise FeedError(
                "the arguments must have the structure of the example inputs",
                expected=self._expected,
                given=_paths(args, kwargs),
                hint="call from_torch with examples of this structure",
            )
        return list(leaves)

    def _as_exported(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments given by position or by name as the examples gave them."""
        try:
            bound = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as e:
            raise FeedError(
                f"the arguments do not fit the module: {e}",
                expected=str(self._signature),
                hint="call the model as the module is called",
            ) from None
        names = list(self._signature.parameters)[: self._positional]
        left = {n: x for n, x in bound.items() if n not in names}
        ordered = {n: left.pop(n) for n in self._keywords if n in left}
        return tuple(bound[n] for n in names if n in bound), {**ordered, **left}


def _same(expected: Any, given: Any) -> bool:
    return type(expected) is type(given) and bool(expected == given)


def _sizes(leaves: Sequence[Any]) -> str:
    """Return the sizes of tensors, and numbers as they are."""
    return ", ".join(str([*x.shape]) if isinstance(x, torch.Tensor) else repr(x) for x in leaves)


def _paths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the places of the leaves of arguments, such as "[0], mask, state[1]"."""
    found = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]
    places = [pytree.keystr(path[1:]) for path, _ in found]
    return ", ".join(re.sub(r"^\['(\w+)'\]", r"\1", place) for place in places) or "nothing"
