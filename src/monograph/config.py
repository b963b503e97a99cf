"""Every option of Monograph, once. Environment variables `MONOGRAPH_<NAME>` set defaults."""

from __future__ import annotations

import operator
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from monograph.errors import ConfigError, did_you_mean

TARGETS = ("cpu", "gpu", "reference")
GPUS = ("gpu", "gpu:NUMBER", "gpu:ARCHITECTURE", "gpu:interpreter")
"""How targets on GPUs are written."""
INTERPRETER = "interpreter"
"""The device of a target that is Triton's interpreter."""
PRECISIONS = ("f32", "f16", "bf16")
TUNING = ("off", "fast", "full")
CAPTURE = ("auto", "off", "require")
INSTRUCTION_SETS = ("avx512_vnni", "avx512", "avx2", "sse2", "neon", "baseline")
"""What CPU code may be compiled for; here by name, without what a compiler has to know of them."""
_GPU = re.compile(r"gpu(?::([0-9]{1,3}|sm_[0-9]+|gfx[0-9a-f]+|interpreter))?\Z")
"""A target on GPUs: the first, one by its number, an architecture, or Triton's interpreter."""
_PREFIX = "MONOGRAPH_"
DEBUG_VARIABLE = _PREFIX + "DEBUG"
"""Has the command line show tracebacks: nothing that a session has an option for."""
_CACHE_HOME = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
_OF_GPUS = ("precision", "tf32", "tune", "tuning_cache", "pin_inputs")
"""Options that only GPUs have."""
_RENAMED = {
    "shapes_kept": "max_cached_shapes",
    "features": "cpu_isa",
    "lock_arrays": "pin_inputs",
}
"""Options by their old names, which warn for one release."""
_BOOLS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Config:
    """How a model is compiled and run."""

    target: str = "cpu"
    """What runs the model: "cpu" or "gpu" (compiled code), or "reference" (numpy, the oracle).

    "gpu:1" is the second GPU of the machine; "gpu:sm_90" compiles for an architecture and runs
    nothing; "gpu:interpreter" runs GPU kernels without a GPU, very slowly.
    """
    max_cached_shapes: int = 16
    """How many shape bindings a session keeps ready; the least recently used one goes first."""
    optimise: bool = False
    """Whether the graph goes through the pipeline of rewrites, once for each set of shapes."""
    threads: int = 0
    """Threads that run a model; 0 for as many as this process may use."""
    cpu_isa: str = ""
    """The instruction set to compile for, one of `INSTRUCTION_SETS`; "" for the host's."""
    winograd: bool = True
    """Whether 3x3 convolutions may save multiplications at a few times the rounding error."""
    cache_dir: str = os.path.join(_CACHE_HOME, "monograph")
    """Where compiled objects are kept between processes; "" for nowhere."""
    cache_bytes: int = 8 << 30
    """How large that directory may grow; the least recently used entries go first. A decoder
    keeps its packed weights there once for each length that tokens were fed in."""
    precision: str = "f32"
    """What a GPU computes f32 models in: "f32", "f16" or "bf16"; sums and norms stay in f32."""
    tf32: bool = False
    """Whether a GPU may round the operands of f32 products to TF32, with 10 bits of mantissa."""
    tune: str = "fast"
    """How kernels for a GPU are chosen: "off" takes the defaults, "fast" measures the most
    promising rivals, "full" all of them."""
    tuning_cache: str = ""
    """The JSON file that keeps what was measured; "" for tuning.json in `cache_dir`."""
    pin_inputs: bool = True
    """Whether arrays of the host that are fed again and again are locked in memory, so that a GPU
    fetches them by itself."""
    capture: str = "auto"
    """Whether a run is one launch: "auto" where it can be, "off" for every kernel by itself on a
    GPU, "require" to fail where it cannot be."""

    checked: bool = False
    """Whether every access of a kernel to memory is checked against its buffer: for tests and
    debugging, several times slower. On a GPU only "gpu:interpreter" can check."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = _checked(f.name, getattr(self, f.name), type(f.default))
            object.__setattr__(self, f.name, value)
        if self.target not in TARGETS and _GPU.match(self.target) is None:
            raise ConfigError(
                "no such target",
                expected=" | ".join((*TARGETS, *GPUS[1:])),
                given=self.target,
            )
        choices = (("precision", PRECISIONS), ("tune", TUNING), ("capture", CAPTURE))
        for name, known in choices:
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"no such {name}", expected=" | ".join(known), given=value)
        if self.max_cached_shapes < 1:
            raise ConfigError(
                "max_cached_shapes is too small", expected=">= 1", given=self.max_cached_shapes
            )
        if self.threads < 0:
            raise ConfigError("threads is negative", expected=">= 0", given=self.threads)
        if self.cache_bytes < 0:
            raise ConfigError("cache_bytes is negative", expected=">= 0", given=self.cache_bytes)
        if not self.on_gpu:
            _refuse_gpu_options(self)
        elif self.checked and self.device != INTERPRETER:
            raise ConfigError(
                "only code for CPUs and interpreted kernels can be checked",
                expected=f"cpu | gpu:{INTERPRETER}",
                given=self.target,
                hint="leave checked out, or take one of these targets",
            )
        if self.target == "reference" and self.capture == "require":
            raise ConfigError(
                "the reference launches nothing, so there is nothing to capture",
                expected="auto | off",
                given=self.capture,
                hint='take target="gpu" or target="cpu"',
            )

    @property
    def on_gpu(self) -> bool:
        """Whether the target is a GPU, whichever."""
        return _GPU.match(self.target) is not None

    @property
    def device(self) -> str:
        """Which GPU: a number, an architecture, "interpreter", or "" for the first."""
        return self.target.partition(":")[2]


def _refuse_gpu_options(config: Config) -> None:
    """Nothing but a GPU computes in another precision than the model says, or is tuned."""
    for name in _OF_GPUS:
        given = getattr(config, name)
        if given != getattr(Config, name):
            raise _of_gpus(name, given, config.target)


def _of_gpus(name: str, given: Any, target: str) -> ConfigError:
    return ConfigError(
        f"{name} is an option of the gpu target",
        expected=" | ".join(GPUS),
        given=f"{name}={given} on {target}",
        hint=f'leave {name} out, or take target="gpu"',
    )


def make_config(**options: Any) -> Config:
    """The configuration from options, then the environment, then the defaults."""
    known = {f.name: f for f in fields(Config)}
    options = _renamed(options)
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(
            "no such option",
            expected=", ".join(known),
            given=", ".join(unknown),
            hint=did_you_mean(unknown, known),
        )
    values: dict[str, Any] = {}
    for name, f in known.items():
        text = _variable(name)
        if options.get(name) is not None:
            values[name] = options[name]
        elif text is not None:
            values[name] = _parse(name, text, type(f.default))
    target = str(values.get("target", Config.target))
    if not target.startswith("gpu"):
        # A default for GPUs is no wish for other targets.
        given = {n for n, v in options.items() if v is not None}
        values = {n: v for n, v in values.items() if n not in _OF_GPUS or n in given}
        if "tune" in given and target in TARGETS:  # whatever it is: none of them chooses kernels
            raise _of_gpus("tune", options["tune"], target)
    if target.startswith("gpu") and target != f"gpu:{INTERPRETER}" and not options.get("checked"):
        values.pop("checked", None)  # a device cannot check: a default is no wish here either
    if values.get("target") == "reference" and options.get("capture") is None:
        values.pop("capture", None)  # nor is one for targets that launch
    return Config(**values)


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by their new names; an old name gives a DeprecationWarning."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        new = _RENAMED.get(name, name)
        if new != name and options.get(new) is not None:
            raise ConfigError(
                f"{name} is the old name of {new}: give one of them",
                given=f"{name}={value}, {new}={options[new]}",
            )
        if new != name:
            _deprecated(f"option {name}", new)
        found[new] = value if found.get(new) is None else found[new]
    return found


def _variable(name: str) -> str | None:
    """The text of an option's environment variable, also under the option's old name."""
    text = os.environ.get(_PREFIX + name.upper())
    if text is not None:
        return text
    for old, new in _RENAMED.items():
        if new == name and (text := os.environ.get(_PREFIX + old.upper())) is not None:
            _deprecated(_PREFIX + old.upper(), _PREFIX + new.upper())
            return text
    return None


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=4)


def _checked(name: str, value: Any, kind: type) -> Any:
    """An option as its own kind: any kind of integer is an int, any kind of path a str."""
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind is int and not isinstance(value, bool):
        with suppress(TypeError):
            value = operator.index(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} is not of its kind", expected=kind.__name__, given=repr(value))
    return value


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        raise ConfigError(
            f"{_PREFIX}{name.upper()} is not of its kind", expected=" | ".join(_BOOLS), given=text
        )
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{_PREFIX}{name.upper()} is not of its kind", expected=kind.__name__, given=text
        ) from None
