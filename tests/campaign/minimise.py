"""Makes a failing case small: fewer runs, outputs, nodes, attributes and elements, plainer numbers.

A candidate is kept where it fails on the same side in the same way. Every one is judged by a
worker, so that a case which ends the process can be made small too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import monograph
from tests.campaign.case import Case, Feeds, element_type, tensor

Fails = Callable[[Case], bool]
MOST_TRIES = 250


def minimise(case: Case, fails: Fails, run: int = 0, tries: int = MOST_TRIES) -> Case:
    """A smaller case that still fails, from which nothing more can be taken, or nearly so."""
    left = tries
    for steps in (_runs(run), _outputs, _cuts, _nodes, _details, _sizes, _declared, _numbers):
        smaller = True
        while smaller and left > 0:
            smaller = False
            for candidate in steps(case):
                left -= 1
                if left < 0:
                    return case
                if _size(candidate) < _size(case) and fails(candidate):
                    case, smaller = candidate, True
                    break
    return case


def _size(case: Case) -> tuple[float, ...]:
    """Return how large a case is, what matters most first."""
    graph = case.model.graph
    arrays = [x for feeds in case.runs for x in feeds.values()]
    arrays += [numpy_helper.to_array(t) for t in graph.initializer]
    open_sizes = sum(d.HasField("dim_param") for i in graph.input for d in _dims(i))
    details = sum(len(n.attribute) + sum(map(bool, n.input)) for n in graph.node)
    return (len(case.runs), len(graph.node), len(graph.output), len(graph.input), details,
            sum(x.size + x.ndim for x in arrays), open_sizes,
            sum(map(_plainness, arrays)))  # fmt: skip


def _plainness(x: np.ndarray) -> float:
    """Return how far an array is from small whole numbers."""
    if x.dtype.kind in "Ob" or x.size == 0:
        return 0.0
    wide = np.nan_to_num(x.astype(np.float64), nan=0.5, posinf=0.5, neginf=0.5)
    whole = np.count_nonzero(wide != np.round(wide))
    return float(whole) + float(np.count_nonzero(wide)) * 0.01


def _dims(info: onnx.ValueInfoProto) -> Any:
    return info.type.tensor_type.shape.dim


def _copy(case: Case) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    return model


def _runs(run: int) -> Callable[[Case], Iterator[Case]]:
    """The failing run alone, or what came before it with it."""

    def steps(case: Case) -> Iterator[Case]:
        if len(case.runs) > 1 and run < len(case.runs):
            yield case.with_model(case.model, [case.runs[run]])
            yield case.with_model(case.model, case.runs[: run + 1])
        for i in range(len(case.runs) if len(case.runs) > 1 else 0):
            yield case.with_model(case.model, [r for j, r in enumerate(case.runs) if j != i])

    return steps


def _outputs(case: Case) -> Iterator[Case]:
    for i in range(len(case.model.graph.output)):
        model = _copy(case)
        kept = [model.graph.output[i]]
        del model.graph.output[:]
        model.graph.output.extend(kept)
        yield _pruned(case, model, case.runs)


def _cuts(case: Case) -> Iterator[Case]:
    """A value is fed instead of being computed."""
    if len(case.model.graph.node) < 2:
        return
    known = values(case)
    for node in reversed(case.model.graph.node):
        names = [n for n in node.output if n in known]
        if len(names) != len([n for n in node.output if n]):
            continue
        model = _copy(case)
        at = list(case.model.graph.node).index(node)
        del model.graph.node[at]
        if {o.name for o in model.graph.output} & set(names):
            continue
        for name in names:
            x = known[name][0]
            shapes = {a.shape for a in known[name]}
            dims = list(x.shape) if len(shapes) == 1 else [f"{name}_{i}" for i in range(x.ndim)]
            info = helper.make_tensor_value_info(name, element_type(x), dims)
            model.graph.input.append(info)
        runs = [{**f, **{n: known[n][i] for n in names}} for i, f in enumerate(case.runs)]
        yield _pruned(case, model, runs)


def values(case: Case) -> dict[str, list[np.ndarray]]:
    """Every value of the graph in every run, by the reference."""
    model = _copy(case)
    present = {o.name for o in model.graph.output}
    names = [n for node in model.graph.node for n in node.output if n and n not in present]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    found: dict[str, list[np.ndarray]] = {}
    try:
        session = monograph.load(model, "reference")
        with np.errstate(all="ignore"):
            for feeds in case.runs:
                made = zip([p.name for p in session.outputs], session.run(feeds), strict=True)
                for name, x in made:
                    found.setdefault(name, []).append(np.asarray(x))
    except Exception:
        return {}
    return found


def _nodes(case: Case) -> Iterator[Case]:
    """A node is left out: what reads its result reads one of its operands."""
    for i, node in enumerate(case.model.graph.node):
        for operand in dict.fromkeys(n for n in node.input if n):
            model = _copy(case)
            del model.graph.node[i]
            for other in model.graph.node:
                for j, name in enumerate(other.input):
                    if name == node.output[0]:
                        other.input[j] = operand
            if not {o.name for o in model.graph.output} & set(node.output):
                yield _pruned(case, model, case.runs)


def _details(case: Case) -> Iterator[Case]:
    """Attributes and optional operands go."""
    for i, node in enumerate(case.model.graph.node):
        for j in range(len(node.attribute)):
            model = _copy(case)
            del model.graph.node[i].attribute[j]
            yield _pruned(case, model, case.runs)
        for j in range(len(node.input)):
            model = _copy(case)
            model.graph.node[i].input[j] = ""
            inputs = model.graph.node[i].input
            while inputs and not inputs[-1]:
                inputs.pop()
            yield _pruned(case, model, case.runs)


def _sizes(case: Case) -> Iterator[Case]:
    """Dimensions of one size become smaller everywhere, then one at a time."""
    arrays = _arrays(case)
    for size in sorted({n for x in arrays.values() for n in x.shape if n > 1}, reverse=True):
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1)):
            if smaller < size:
                yield _cut_all(case, arrays, size, smaller)
    for name, x in arrays.items():
        for axis, size in enumerate(x.shape):
            if size > 1:
                yield _with_arrays(case, {name: np.take(x, range(size - 1), axis)})


def _arrays(case: Case) -> dict[str, np.ndarray]:
    """The arrays of a case: initialisers by their names, feeds by their runs and names."""
    made = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
    return made | {f"{i}:{n}": x for i, f in enumerate(case.runs) for n, x in f.items()}


def _cut_all(case: Case, arrays: dict[str, np.ndarray], size: int, smaller: int) -> Case:
    changed = {}
    for name, x in arrays.items():
        if size in x.shape:
            changed[name] = x[tuple(slice(smaller) if n == size else slice(None) for n in x.shape)]
    return _with_arrays(case, changed)


def _with_arrays(case: Case, changed: dict[str, np.ndarray]) -> Case:
    """The case with other arrays; fixed sizes of its inputs follow."""
    model, runs = _copy(case), [dict(f) for f in case.runs]
    for name, x in changed.items():
        run, _, label = name.partition(":")
        if label:
            runs[int(run)][label] = np.ascontiguousarray(x).reshape(x.shape)
    for i, t in enumerate(case.model.graph.initializer):
        if t.name in changed:
            model.graph.initializer[i].CopyFrom(tensor(np.ascontiguousarray(changed[t.name]),
                                                       t.name))  # fmt: skip
    for info in model.graph.input:
        for d, n in zip(_dims(info), runs[0][info.name].shape, strict=False):
            if d.HasField("dim_value"):
                d.dim_value = n
    return case.with_model(model, runs)


def _declared(case: Case) -> Iterator[Case]:
    """Open dimensions become fixed, where all runs agree."""
    model = _copy(case)
    for info in model.graph.input:
        shapes = {f[info.name].shape for f in case.runs}
        if len(shapes) == 1:
            for d, n in zip(_dims(info), next(iter(shapes)), strict=True):
                d.dim_value = n
    for info in model.graph.output:
        info.ClearField("type")
    yield case.with_model(model, case.runs)


def _numbers(case: Case) -> Iterator[Case]:
    """Arrays of plainer numbers, all at once and one by one."""
    arrays = {n: x for n, x in _arrays(case).items() if x.dtype.kind in "fV" and x.size}
    for plain in (np.zeros_like, np.ones_like, _counted, _rounded):
        yield _with_arrays(case, {n: plain(x) for n, x in arrays.items()})
        for name, x in arrays.items():
            yield _with_arrays(case, {name: plain(x)})


def _counted(x: np.ndarray) -> np.ndarray:
    return np.arange(1, x.size + 1).reshape(x.shape).astype(x.dtype)


def _rounded(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.round(x.astype(np.float64)).astype(x.dtype)


def _pruned(case: Case, model: onnx.ModelProto, runs: Any) -> Case:
    """The case without what its outputs do not need."""
    from tests.campaign.graphs.grower import needed

    graph = model.graph
    nodes, used = needed(list(graph.node), [o.name for o in graph.output])
    infos = [i for i in graph.input if i.name in used]
    constants = [t for t in graph.initializer if t.name in used]
    for target, kept in ((graph.node, nodes), (graph.input, infos), (graph.initializer, constants)):
        copies = [type(k).FromString(k.SerializeToString()) for k in kept]
        del target[:]  # type: ignore[attr-defined]
        target.extend(copies)  # type: ignore[attr-defined]
    names = {i.name for i in infos}
    feeds: list[Feeds] = [{n: x for n, x in f.items() if n in names} for f in runs]
    return case.with_model(model, feeds)
