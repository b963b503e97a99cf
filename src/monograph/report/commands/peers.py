"""Other runtimes on the same model and the same threads, to compare with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from monograph.errors import ConfigError

ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
PEERS = (ONNXRUNTIME, OPENVINO)

PeerModel: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""A model in another runtime: it runs on feeds."""


def check_peers(names: Sequence[str]) -> None:
    if unknown := [p for p in names if p not in PEERS]:
        raise ConfigError("no such peer", expected=" | ".join(PEERS), given=unknown)


def open_peer(name: str, model: Path, threads: int) -> PeerModel:
    """Load a model file in another runtime, with the same number of threads."""
    try:
        module: Any = importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed", hint=f"pip install {name}") from None
    if name == ONNXRUNTIME:
        options = module.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        other = module.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return lambda feeds: other.run(None, dict(feeds))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Its default is bf16 where the machine has it: other numbers, not the same work.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = module.Core().compile_model(str(model), "CPU", settings)
    return lambda feeds: compiled(dict(feeds))


def peer_run(name: str, model: Path, feeds: Mapping[str, Any], threads: int) -> Callable[[], Any]:
    """Return a function that runs a model file on these feeds in another runtime."""
    opened = open_peer(name, model, threads)
    return lambda: opened(feeds)


def refusal(error: Exception) -> str:
    """Return the first line of another runtime's error: its errors share no base class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
