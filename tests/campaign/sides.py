"""The sides of a campaign: what runs a case, and what came of each run.

The reference is the oracle, ONNX Runtime a second opinion. The CPU target takes turns through the
host's instruction sets and numbers of threads; a model meets one of them, or two.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import onnx

import monograph
from monograph.errors import MonographError
from tests.campaign.case import Case, Feeds

SIDES = (
    "reference", "cpu", "cpu-any", "interpreter", "interpreter-any", "gpu", "gpu-any",
    "onnxruntime",
)  # fmt: skip
"""On the sides "...-any" one compilation serves all shapes that its guards allow."""
THREADS = (1, 2, 4)
SHOWN = 12
"""Frames of an unforeseen error that are kept."""
PLAIN = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "O", "c8", "c16"}
"""Element types that ONNX Runtime takes from numpy and gives back."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run: outputs, or an error."""

    outputs: dict[str, Any] | None = None
    error: str = ""
    fault: bool = False
    """True if the error is a fault, not a judgement about the model or its feeds."""
    unable: bool = False
    """True if the side says nothing about such a model: an op or a type that it lacks."""


@cache
def machines() -> tuple[tuple[str, int], ...]:
    """The instruction sets of this host with numbers of threads, in the order of their turns."""
    from monograph.codegen.llvm.module.features import host_features

    host = host_features()
    names = [host.name]
    if host.name.startswith("avx512"):
        names.append("avx512")
    if host.name.startswith("avx"):
        names += ["avx2", "sse2", "baseline"]
    sets = list(dict.fromkeys(names))
    return tuple((sets[i % len(sets)], THREADS[i // len(sets) % 3]) for i in range(3 * len(sets)))


def run_side(side: str, case: Case, turn: int) -> Iterator[tuple[str, list[Outcome]]]:
    """The outcomes of a side, under a name that tells its configuration."""
    raw = case.model.SerializeToString()
    if side == "onnxruntime":
        yield side, _runs(case, lambda: _runtime(case.model))
    elif side in ("cpu", "cpu-any"):
        every = machines()
        for features, threads in every[turn % len(every) :][:1]:
            specialise = "off" if side == "cpu-any" else "now"
            options = {"cpu_isa": features, "threads": threads, "checked": True}
            options["specialise"] = specialise
            with mock.patch("monograph.runtime.cpu.executable.ALONE_SECONDS", 0.0):
                yield (
                    f"{side} ({features}, {threads} threads, checked)",
                    _runs(case, lambda options=options: _session(raw, "cpu", **options)),
                )
    else:
        target, options = session_options(side)
        yield side, _runs(case, lambda: _session(raw, target, **options))


def session_options(side: str) -> tuple[str, dict[str, Any]]:
    """The target of a side but ONNX Runtime, and the options that make it this side."""
    name = side.removesuffix("-any")
    options: dict[str, Any] = {}
    if name in ("interpreter", "gpu"):
        options = {"tune": "off", "specialise": "off" if side.endswith("-any") else "now"}
    if name == "interpreter":
        options["checked"] = True
    return {"interpreter": "gpu:interpreter"}.get(name, name), options


def _session(raw: bytes, target: str, **options: Any) -> Callable[[Feeds], dict[str, Any]]:
    session = monograph.load(raw, target, cache_dir="", **options)
    names = [p.name for p in session.outputs]

    def run(feeds: Feeds) -> dict[str, Any]:
        return dict(zip(names, session.run(feeds), strict=True))

    return run


def _runs(case: Case, load: Callable[[], Callable[[Feeds], dict[str, Any]]]) -> list[Outcome]:
    """Loads once and runs every set of feeds in turn."""
    with np.errstate(all="ignore"):
        try:
            run = load()
        except Exception as e:
            return [failed(e)] * len(case.runs)
        made = []
        for feeds in case.runs:
            try:
                made.append(Outcome(run(dict(feeds))))
            except Exception as e:
                made.append(failed(e))
        return made


def failed(error: Exception) -> Outcome:
    """An error as an outcome: only ours that are no faults are judgements."""
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, MonographError):
        if not error.internal and not error.message.startswith("out of memory"):
            return Outcome(error=text)
        cause = error.__cause__ or error
    elif type(error).__module__.startswith("onnxruntime") or isinstance(error, UnableError):
        lacks = isinstance(error, (UnableError, *_lacking()))
        return Outcome(error=text, unable=lacks)
    else:
        cause = error
    lines = traceback.format_exception(cause, limit=-SHOWN)
    return Outcome(error=f"{text}\n{''.join(lines)}", fault=True)


class UnableError(Exception):
    """A side lacks an element type."""


def _lacking() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (state.NotImplemented,)


def _runtime(model: onnx.ModelProto) -> Callable[[Feeds], dict[str, Any]]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # What it would fuse is not what the model says: scales of f64 products become f32, for one.
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    typed = _typed(model)
    session = onnxruntime.InferenceSession(
        typed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    if odd := [o.type for o in session.get_outputs() if "float8" in o.type or "int4" in o.type
               or "bfloat16" in o.type]:  # fmt: skip
        raise UnableError(f"numpy has no {odd[0]}")

    def run(feeds: Feeds) -> dict[str, Any]:
        for x in feeds.values():
            if x.dtype.str[1:] not in PLAIN and x.dtype != object:
                raise UnableError(f"numpy has no {x.dtype}")
        return dict(zip(names, session.run(None, feeds), strict=True))

    return run


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of its outputs, which ONNX Runtime wants to be told."""
    if all(o.HasField("type") for o in model.graph.output):
        return model
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:
        return model


os.environ.setdefault("OMP_NUM_THREADS", "1")
