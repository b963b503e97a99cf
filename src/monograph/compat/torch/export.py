"""Export of torch modules: to an exported program, then to an ONNX model, then to a session."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from monograph.compat.torch.decompositions import encoder_layer
from monograph.compat.torch.tensors import to_result
from monograph.errors import ConfigError, ModelError
from monograph.frontend.onnx.load import MAX_FILE_BYTES
from monograph.runtime.progress import Progress
from monograph.session import Session, load

DECOMPOSITIONS = {torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer}
"""Ops without a converter, as functions of ops that have one."""
INSTALL = "pip install 'monograph[torch]'"
_NOISY = ("torch.onnx", "onnxscript", "onnx_ir")
"""Loggers that tell how an export goes; what fails is raised."""
MAX_KNOWN = 4096
"""The most combinations of sizes whose check is remembered."""
_schema_of = attrgetter("_schema")


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments or results of a module."""

    name: str | None
    """The name of the tensor in the exported program; None for a constant."""
    constant: Any = None
    number: bool = False
    """True for a size or another integer that torch computes as a Python number."""
    pairs: bool = False
    """True for complex numbers: the exporter makes pairs of real numbers of them."""


class SizeGuards:
    """The sizes that an exported program holds for, beyond those that it fixed.

    A branch on a size is decided when a module is exported: sizes that would take the other branch
    need another export.
    """

    def __init__(self, check: Callable[..., Any] | None) -> None:
        self._check = check
        self._known: dict[tuple[Any, ...], str | None] = {}

    @staticmethod
    def of(program: Any) -> SizeGuards:
        """Return the guards of a program of `torch.export`."""
        return SizeGuards(dict(program.module().named_children()).get("_guards_fn"))

    def broken(self, leaves: Sequence[Any]) -> str | None:
        """Return the guard that arguments break; None if they keep all."""
        if self._check is None:
            return None
        key = tuple(x.shape if isinstance(x, torch.Tensor) else x for x in leaves)
        if key not in self._known:
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            try:
                self._check(*leaves)
                self._known[key] = None
            except AssertionError as e:
                self._known[key] = str(e).removeprefix("Guard failed: ")
        return self._known[key]


@dataclass(frozen=True)
class Exported:
    """A session of an exported module, and the leaves of its arguments and results."""

    session: Session
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    spec: Any
    """The tree of the arguments, as torch flattens (args, kwargs)."""
    out_spec: Any
    sizes: tuple[tuple[int | None, ...] | None, ...]
    """The fixed sizes of each argument; None for an open size, and for an argument of no rank."""
    guards: SizeGuards
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Holds the files of a model that is too large for one message."""

    def filled(self, made: Sequence[Any], device: Any) -> list[Any]:
        """Return the leaves of the results: outputs of a run in order, constants between them."""
        left = iter(made)
        return [
            leaf.constant
            if leaf.name is None
            else to_result(next(left), device, leaf.number, leaf.pairs)
            for leaf in self.results
        ]

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return True if arguments have the sizes that the export fixed."""
        return all(
            sizes is None
            or not isinstance(given, torch.Tensor)
            or (
                len(sizes) == given.ndim
                and all(s is None or s == n for s, n in zip(sizes, given.shape, strict=True))
            )
            for sizes, given in zip(self.sizes, leaves, strict=True)
        )


def export_module(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    *,
    opset: int | None,
    options: Mapping[str, Any],
    refuse: Callable[[Any], None],
    target: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Export a module with its parameters as constants and load it for a target.

    refuse: raises an error for an exported program that must not be compiled.
    """
    _check_installed()
    with _quiet():
        program, guards = _export(module, args, kwargs, dynamic_shapes)
        refuse(program)
        made = _onnx_program(program, dynamic_shapes, opset)
    arguments = _leaves(program, program.graph_signature.input_specs)
    results = _leaves(program, program.graph_signature.output_specs)
    names = [leaf.name for leaf in arguments if leaf.name is not None]
    _name_inputs(made.model.graph, names)
    source, folder = _model_of(made)
    session = load(source, target, progress=progress, **options)
    if len(names) != len(session.inputs) or len(session.outputs) != _tensors(results):
        raise ModelError(
            "the exporter must keep every input and output of the module",
            expected=f"{len(names)} inputs, {_tensors(results)} outputs",
            given=f"{len(session.inputs)} inputs, {len(session.outputs)} outputs",
            hint="report this with the module",
        )
    sizes = _fixed_sizes(program)
    return Exported(
        session,
        arguments,
        results,
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        tuple(sizes.get(leaf.name or "") for leaf in arguments),
        guards,
        folder,
    )


def _tensors(leaves: Sequence[Leaf]) -> int:
    return sum(leaf.name is not None for leaf in leaves)


def _check_installed() -> None:
    if importlib.util.find_spec("onnxscript") is None:
        raise ConfigError(
            "the exporter of torch needs the package onnxscript",
            given="a Python environment without onnxscript",
            hint=INSTALL,
        )


def _export(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any
) -> tuple[Any, SizeGuards]:
    """Return the exported program and its guards; what torch cannot export is an error."""
    try:
        found = torch.export.export(
            module, tuple(args), dict(kwargs), dynamic_shapes=dynamic, strict=False
        )
        # Afterwards the signature names every buffer and input that the module writes to.
        plain = found.run_decompositions(DECOMPOSITIONS)
        return _without_constants(plain), SizeGuards.of(found)
    except Exception as e:
        raise ModelError(
            f"torch cannot export the module: {_first_line(e)}",
            expected="a forward whose path does not depend on values of tensors",
            given=type(module).__name__,
            hint='torch.compile(module, backend="monograph") compiles the parts that can be'
            " exported and runs the rest eagerly",
        ) from e


def _without_constants(program: Any) -> Any:
    """Return None for results that are no tensors: the exporter cannot; the signature has them."""
    output = program.graph.output_node()
    (results,) = output.args
    output.args = (tuple(x if isinstance(x, torch.fx.Node) else None for x in results),)
    return program


def _onnx_program(program: Any, dynamic_shapes: Any, opset: int | None) -> Any:
    """Return the ONNX program of an exported program; an op without a converter is an error."""
    try:
        return torch.onnx.export(
            program, dynamo=True, verbose=False, opset_version=opset, dynamic_shapes=dynamic_shapes
        )
    except Exception as e:
        raise ModelError(
            f"torch cannot write the module as an ONNX model: {_first_line(_root(e))}",
            expected="ops that torch.onnx has converters for",
            hint='torch.compile(module, backend="monograph") runs such a module eagerly',
        ) from e


def _name_inputs(graph: Any, names: Sequence[str]) -> None:
    """Give inputs the names of the arguments; the exporter renames what it also returns."""
    for value, name in zip(graph.inputs, names, strict=False):
        if value.name != name:
            for result in graph.outputs:
                result.name = f"{name}_out" if result.name == name else result.name
            value.name = name


def _root(error: BaseException) -> BaseException:
    """Return the error that all others followed from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _model_of(made: Any) -> tuple[bytes | Path, tempfile.TemporaryDirectory[str] | None]:
    """Return an ONNX program as bytes, or as a file with external data if it is too large."""
    weights = sum(v.const_value.nbytes for v in made.model.graph.initializers.values())
    if weights < MAX_FILE_BYTES // 2:
        return made.model_proto.SerializeToString(), None
    folder = tempfile.TemporaryDirectory(prefix="monograph-torch-")
    path = Path(folder.name) / "model.onnx"
    made.save(path, external_data=True)
    return path, folder


def _leaves(program: Any, specs: Sequence[Any]) -> tuple[Leaf, ...]:
    """Return the arguments or results of the user's, without parameters and new buffers."""
    complexes = {
        node.name
        for node in program.graph.nodes
        if isinstance(value := node.meta.get("val"), torch.Tensor) and value.is_complex()
    }
    return tuple(
        _leaf(spec.arg, complexes)
        for spec in specs
        if spec.kind.name in ("USER_INPUT", "USER_OUTPUT")
    )


def _leaf(argument: Any, complexes: Collection[str]) -> Leaf:
    kinds = torch.export.graph_signature
    if isinstance(argument, kinds.ConstantArgument):
        return Leaf(None, argument.value)
    name = argument.name
    number = not isinstance(argument, kinds.TensorArgument)
    return Leaf(name, number=number, pairs=name in complexes)


def _fixed_sizes(program: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the sizes of the placeholders of a program: an int where the export fixed it."""
    found = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            found[node.name] = tuple(s if isinstance(s, int) else None for s in value.shape)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own warnings and progress from the user's screen."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.ERROR)
    try:
        # Tensors that were made in inference mode cannot be traced.
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def random_ops(program: Any) -> list[str]:
    """Return the names of the ops of an exported program that draw random numbers."""
    called = [n for n in program.graph.nodes if n.op == "call_function"]
    return sorted({str(node.target) for node in called if _draws(node)})


def _draws(node: Any) -> bool:
    """Return True if an op draws numbers. Attention and dropout do with a probability above 0."""
    op = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return False
    declared = _schema_of(op).arguments
    given = {a.name: a.default_value for a in declared}
    given |= {a.name: x for a, x in zip(declared, node.args, strict=False)} | dict(node.kwargs)
    return given.get("dropout_p", 1.0) != 0.0 and given.get("train", True) is not False


def mutated(program: Any) -> list[str]:
    """Return the names of the inputs and buffers that an exported program writes to."""
    signature = program.graph_signature
    return sorted(
        {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    )
