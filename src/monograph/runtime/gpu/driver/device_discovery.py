"""Opens the device that a target names, or reports what is missing and the remedy.

Imports torch only after checking that it is installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

from monograph.codegen.triton.module.launch import ARCHES
from monograph.errors import ConfigError

if TYPE_CHECKING:
    from monograph.codegen.triton.module.launch import Arch
    from monograph.runtime.gpu.driver.devices import Device

INSTALL = "pip install 'monograph[gpu]' (in a checkout: pip install '.[gpu]')"
OLDEST = 80
"""Compute capability (times ten) of the oldest NVIDIA devices that code is generated for."""
INTERPRETER = "interpreter"


def need(*modules: str) -> None:
    """Raise a ConfigError if modules are missing."""
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        raise ConfigError(
            f"the gpu target needs {' and '.join(missing)}, which cannot be imported here",
            hint=f"{INSTALL}, or choose another target",
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent is missing or broken
        return False


def architecture(name: str) -> Arch:
    """Return an architecture by its name."""
    check_architecture(name)
    need("torch", "triton")
    return ARCHES[name]


def check_architecture(name: str) -> None:
    """Raise a ConfigError for an architecture that no code is generated for."""
    if name not in ARCHES:
        raise ConfigError(
            "no code is generated for this architecture",
            expected=" | ".join(ARCHES),
            given=name,
        )


def names_architecture(device: str) -> bool:
    """Return whether a target names an architecture to compile for, not a device."""
    return device.startswith(("sm_", "gfx"))


def open_device(device: str) -> Device:
    """Open the device with a number ("" for the first), or the interpreter."""
    if device == INTERPRETER:
        return _interpreter()
    need("torch", "triton")
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            "torch is installed without support for GPUs",
            given=f"torch {torch.__version__}",
            hint="install a build of torch for CUDA or ROCm, or choose another target",
        )
    index = int(device or 0)
    _check_present(torch, index)
    if torch.version.hip is not None:
        return _amd(torch, index)
    return _nvidia(torch, index)


def _check_present(torch: Any, index: int) -> None:
    """Raise a ConfigError if the machine lacks the device."""
    try:
        torch.cuda.init()
    except Exception as e:  # torch has no error class for driver errors
        text = str(e).splitlines()[0] if str(e) else type(e).__name__
        old = "driver" in text.lower() and "too old" in text.lower()
        raise ConfigError(
            "the GPU's driver is too old for this torch" if old else "no GPU can be used",
            given=text,
            hint="update the driver, or install a torch for an older CUDA" if old else _look(torch),
        ) from None
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            "there is no such GPU" if count else "there is no GPU",
            expected=f"gpu:0 to gpu:{count - 1}" if count else "a GPU",
            given=f"gpu:{index}",
            hint=None if count else _look(torch),
        )


def _look(torch: Any) -> str:
    tool = "nvidia-smi" if torch.version.hip is None else "rocm-smi"
    return f'check that `{tool}` lists one, or load with target="cpu"'


def _nvidia(torch: Any, index: int) -> Device:
    major, minor = torch.cuda.get_device_capability(index)
    if 10 * major + minor < OLDEST:
        raise ConfigError(
            "this GPU's architecture is too old",
            expected=f"sm_{OLDEST} or newer",
            given=f"sm_{major}{minor} ({torch.cuda.get_device_name(index)})",
            hint='load with target="cpu"',
        )
    need("cuda.bindings")
    from monograph.runtime.gpu.driver.cuda import CudaDevice

    return CudaDevice(index)


def _amd(torch: Any, index: int) -> Device:
    from monograph.runtime.gpu.driver.torch_driver import HipDevice

    name = str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
    architecture(name)
    return HipDevice(index)


def make_ready(device: str) -> None:
    """Check that torch and triton are installed, before anything imports them.

    Triton decides while it is imported whether it interprets.
    """
    if names_architecture(device):
        check_architecture(device)
    need("torch", "triton")
    if device != INTERPRETER:
        return
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            "Triton was already imported to compile kernels, not to interpret them",
            hint="set TRITON_INTERPRET=1 before anything imports triton",
        )


def _interpreter() -> Device:
    make_ready(INTERPRETER)
    from monograph.runtime.gpu.driver.devices import Interpreter

    return Interpreter()
