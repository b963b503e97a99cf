"""Execution providers: ONNX Runtime's names for Monograph's targets."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from monograph.errors import MonographError

Provider: TypeAlias = "str | tuple[str, dict[Any, Any]]"
CPU = "CPUExecutionProvider"
NVIDIA = ("TensorrtExecutionProvider", "CUDAExecutionProvider")
AMD = ("MIGraphXExecutionProvider", "ROCMExecutionProvider")
_OTHERS = (
    "NvTensorRTRTX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "ACL",
    "ArmNN", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure",
)  # fmt: skip
ALL = (*NVIDIA, *AMD, *(f"{name}ExecutionProvider" for name in _OTHERS), CPU)


@dataclass(frozen=True)
class ChosenTarget:
    """The target for a list of providers."""

    target: str
    providers: list[str]
    options: dict[str, dict[str, str]]
    gpu: int | None = None
    """The number of the GPU, None for the CPU."""


@lru_cache(maxsize=1)
def _gpu_providers() -> tuple[str, ...]:
    """Return the providers that Monograph's gpu target stands for on this machine."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "triton")) or _problem(""):
        return ()
    import torch

    return AMD if torch.version.hip is not None else NVIDIA


@lru_cache(maxsize=64)
def _problem(number: str) -> str:
    """Return why the gpu target cannot use the GPU with a number, "" if it can."""
    from monograph.runtime.gpu.driver.device_discovery import make_ready, open_device

    try:
        make_ready(number)
        open_device(number)
    except MonographError as e:
        return str(e)
    return ""


def get_all_providers() -> list[str]:
    """Return the names of all providers that programs may ask for, the CPU last."""
    return list(ALL)


def get_available_providers() -> list[str]:
    """Return the providers of this machine, the fastest first."""
    return [*_gpu_providers(), CPU]


def get_device() -> str:
    """Return "GPU" or "CPU", the best device of this machine."""
    return "GPU" if _gpu_providers() else "CPU"


def check_and_normalize_provider_args(
    providers: Sequence[Provider] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return names of providers and their options as texts; warn of those that are not there."""
    found: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name not in available_provider_names:
            listed = ", ".join(available_provider_names)
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{listed}'",
                stacklevel=4,
            )
        if name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
            continue
        found[name] = {str(key): str(value) for key, value in options.items()}
    return list(found), list(found.values())


def _pairs(
    providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[Any, Any]] | None
) -> list[tuple[str, Mapping[Any, Any]]]:
    """Return providers and their options; raise ValueError for anything else."""
    if providers is None:
        return []
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is None:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(providers) != len(provider_options):
        raise ValueError(
            "'providers' and 'provider_options' should be the same length if both are given."
        )
    if not all(isinstance(options, Mapping) for options in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    names = [provider for provider in providers if isinstance(provider, str)]
    if len(names) != len(providers):
        raise ValueError(
            "Only string values for 'providers' are supported if 'provider_options' is given."
        )
    return list(zip(names, provider_options, strict=True))


def _pair(provider: Any) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(provider, str):
        return provider, {}
    match provider:
        case (str() as name, dict() as options) if isinstance(provider, tuple):
            return name, options
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def choose_target(
    providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[Any, Any]] | None
) -> ChosenTarget:
    """Return the target for a list of providers: the first that this machine has.

    Without a list every provider of the machine is asked for, as in ONNX Runtime.
    """
    available = get_available_providers()
    names, options = check_and_normalize_provider_args(
        providers or available, provider_options if providers else None, available
    )
    for name in names:
        if name not in ALL:
            raise RuntimeError(f"Unknown Provider Type: {name}")
    by_name = dict(zip(names, options, strict=True))
    used = [name for name in names if name in available and name != CPU]
    before_cpu = names.index(CPU) if CPU in names else len(names)
    fast = [name for name in used if names.index(name) < before_cpu]
    kept = {name: by_name.get(name, {}) for name in used} | {CPU: {}}
    if not fast:
        return ChosenTarget("cpu", [*used, CPU], kept)
    gpu = _number(by_name[fast[0]].get("device_id", "0"))
    return ChosenTarget(f"gpu:{gpu}", [*used, CPU], kept, gpu)


def _number(text: str) -> int:
    """Return the number of a GPU; raise RuntimeError for one that cannot be used."""
    if not text.isdecimal():
        raise RuntimeError(f"the provider option device_id must be a number, got {text!r}")
    if problem := _problem(text):
        raise RuntimeError(f"the provider option device_id names no usable GPU: {problem}")
    return int(text)
