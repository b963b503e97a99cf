"""The two sides of `monograph diff`: how each is written, and what it computes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from monograph.config import TARGETS
from monograph.errors import ConfigError, FeedError
from monograph.ir import Array
from monograph.program.lowering import lower
from monograph.report.commands.execute import ONNXRUNTIME, REFERENCE, run_onnxruntime
from monograph.report.commands.input_files import INPUT_PREFIX, OUTPUT_PREFIX, read_archive
from monograph.report.diff.points import TensorPoint, match, record_points, reference_of
from monograph.report.diff.tensors import OnnxTensors, float_twin, read_tensors
from monograph.runtime.cache.store import is_package
from monograph.runtime.numerics.stepwise import StepCheck
from monograph.session import Session, load

TWIN = "float"
FORMS = (
    "MODEL, MODEL@TARGET, MODEL@TARGET,OPTION=VALUE, @TARGET, PACKAGE.mono, ARRAYS.npz,"
    f" {ONNXRUNTIME} or {TWIN}"
)
_OPTIONS = ("precision", "threads", "cpu_isa", "tf32", "optimise")


@dataclass(frozen=True)
class Side:
    """One way to run a model."""

    text: str
    """The side as the user wrote it."""
    kind: str
    """A target, or "onnxruntime", "float", "package" or "arrays"."""
    model: Path | None = None
    """The model file; for arrays and packages their own file."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> bool:
        """True if its steps can be run one by one."""
        return self.kind == "cpu"

    def load(self, dims: Mapping[str, int]) -> Session:
        assert self.model is not None
        target = None if self.kind == "package" else self.kind
        return load(self.model, target, dims=dims, **self.options)


def parse_sides(first: str, second: str) -> tuple[Side, Side]:
    """Return the sides of two texts; what one leaves out is that of the other."""
    a, b = _parse(first), _parse(second)
    if a.model is None and b.model is None:
        raise ConfigError(
            "one side must name a model", expected=FORMS, given=f"{first} and {second}"
        )
    return _completed(a, b), _completed(b, a)


def _completed(side: Side, other: Side) -> Side:
    return side if side.model is not None else replace(side, model=other.model)


def _parse(text: str) -> Side:
    if text in (ONNXRUNTIME, TWIN):
        return Side(text, text)
    path, at, rest = text.rpartition("@")
    if not at:
        path, rest = text, ""
    if path.endswith(".npz"):
        return Side(text, "arrays", Path(path))
    target, *pairs = rest.split(",") if rest else ["cpu"]
    kinds = (*TARGETS, ONNXRUNTIME, TWIN)
    if target.partition(":")[0] not in kinds:
        raise ConfigError("no such side", expected=FORMS, given=text)
    file = Path(path) if path else None
    if file is not None and not file.exists():
        raise ConfigError("no such model, package or archive", expected=FORMS, given=text)
    if file is not None and is_package(file):
        return Side(text, "package", file)
    return Side(text, target, file, dict(_option(text, pair) for pair in pairs))


def _option(text: str, pair: str) -> tuple[str, Any]:
    name, _, value = pair.partition("=")
    if name not in _OPTIONS or not value:
        raise ConfigError("no such option of a side", expected=", ".join(_OPTIONS), given=text)
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if value.isdecimal() else value


@dataclass(frozen=True)
class Observed:
    """The results of a side: tensors by name, in the order of the file."""

    side: Side
    points: Mapping[str, TensorPoint]
    checks: tuple[StepCheck, ...] = ()
    """Its steps, held to the reference."""
    session: Session | None = None
    rounds: bool = True
    """False if it is the reference, which rounds once per op."""
    alike: Mapping[str, TensorPoint] = field(default_factory=dict)
    """Tensors that a lossy rewrite may have changed."""
    graph: OnnxTensors | None = None
    """The graph that it computes, if that is not the file's."""


def observe(side: Side, tensors: OnnxTensors, dims: Mapping[str, int]) -> Observed:
    """Run a side on the inputs of `tensors`, the tensors of its own model."""
    if side.kind == REFERENCE:
        return Observed(side, _reference_points(tensors), rounds=False)
    if side.kind == TWIN:
        twin = float_twin(tensors)
        return Observed(side, _reference_points(twin), rounds=False, graph=twin)
    if side.kind == "arrays":
        return Observed(side, _recorded(side, tensors))
    if side.kind == ONNXRUNTIME:
        return Observed(side, _onnxruntime(side, tensors))
    session = side.load(dims)
    names = [p.name for p in session.outputs]
    if side.steps:
        recorder, outputs = record_points(session, tensors)
        found = recorder.points | _named(names, outputs, recorder.points | recorder.alike)
        alike = {n: p for n, p in recorder.alike.items() if n not in found}
        return Observed(side, found, tuple(recorder.checker.checks), session, alike=alike)
    if side.kind == "package":
        return Observed(side, _named(names, session.run(tensors.feeds), {}))
    wanted = stored_tensors(session, tensors)
    made = session.run(tensors.feeds, outputs=[*dict.fromkeys([*wanted, *names])])
    found = _named([*dict.fromkeys([*wanted, *names])], made, {})
    return Observed(side, found, session=session)


def _reference_points(tensors: OnnxTensors) -> dict[str, TensorPoint]:
    found = {n: tensors.reference[v] for n, v in tensors.values.items()}
    return {n: TensorPoint(n, x) for n, x in found.items() if isinstance(x, np.ndarray)}


def _named(
    names: list[str], arrays: list[Any], points: Mapping[str, TensorPoint]
) -> dict[str, TensorPoint]:
    """Return outputs as points; a step that is known to make one stays with it."""
    made = {}
    for name, array in zip(names, arrays, strict=True):
        if isinstance(array, np.ndarray) and _is_floating(array):
            known = points.get(name)
            made[name] = TensorPoint(name, array, None if known is None else known.check)
    return made


def _is_floating(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def _recorded(side: Side, tensors: OnnxTensors) -> dict[str, TensorPoint]:
    """Return recorded tensors: under their names, or under out:NAME."""
    assert side.model is not None
    arrays = read_archive(side.model)
    named = {k.removeprefix(OUTPUT_PREFIX): x for k, x in arrays.items()}
    found = {n: TensorPoint(n, x) for n, x in named.items() if n in tensors.values}
    if not found:
        raise FeedError(
            "the file holds no tensor of the model",
            expected=f"keys such as {', '.join([*tensors.values][:3])}",
            given=", ".join(sorted(arrays)[:5]) or "an empty archive",
            hint="write one with `monograph diff MODEL --record FILE.npz`",
        )
    return found


def recorded_feeds(side: Side) -> dict[str, Any]:
    """Return the inputs in a file of recorded arrays."""
    assert side.model is not None
    found = read_archive(side.model)
    cut = len(INPUT_PREFIX)
    return {k[cut:]: x for k, x in found.items() if k.startswith(INPUT_PREFIX)}


def _onnxruntime(side: Side, tensors: OnnxTensors) -> dict[str, TensorPoint]:
    """Run ONNX Runtime with every tensor as an output; integers become what they stand for."""
    assert side.model is not None
    proto = onnx.load(str(side.model), load_external_data=True)
    own = {o.name for o in proto.graph.output}
    for name in (n for n in tensors.values if n not in own):
        proto.graph.output.add(name=name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(proto, str(path), save_as_external_data=proto.ByteSize() > 1 << 30)
        made, _ = run_onnxruntime(path, tensors.feeds)
    made |= {n: tensors.decoded(n, x) for n, x in made.items() if n in tensors.codes}
    return {n: TensorPoint(n, x) for n, x in made.items() if n in tensors.values}


def stored_tensors(session: Session, tensors: OnnxTensors) -> list[str]:
    """Return the tensors that the steps of a GPU program leave in memory.

    As outputs of a run they change no fusion.
    """
    from monograph.codegen.triton.module.select import GpuTarget

    lowered = lower(session.optimised_graph(tensors.feeds), GpuTarget())
    if lowered.split is not None or lowered.states:
        return []
    right = reference_of(lowered.program, tensors.feeds)
    found = []
    for step in lowered.program.steps:
        for value in step.region.outputs:
            array = right.get(value)
            if isinstance(array, np.ndarray) and array.dtype.kind not in "iu":
                known = match(array, step, tensors)
                found += [known.tensor] if known is not None and known.exact else []
    return found


def read_side(side: Side, feeds: Mapping[str, Any], dims: Mapping[str, int]) -> OnnxTensors:
    """Return the tensors of a side's model on these inputs."""
    assert side.model is not None
    return read_tensors(side.model, feeds, dims)
