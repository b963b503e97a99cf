"""All options of Monograph. Environment variables `MONOGRAPH_<NAME>` set their defaults."""

from __future__ import annotations

import operator
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from monograph.errors import ConfigError, did_you_mean

TARGETS = ("cpu", "gpu", "reference")
GPUS = ("gpu", "gpu:NUMBER", "gpu:ARCHITECTURE", "gpu:interpreter")
"""The forms of GPU targets."""
INTERPRETER = "interpreter"
"""The device name of Triton's interpreter as a target."""
PRECISIONS = ("f32", "f16", "bf16")
TUNING = ("off", "fast", "full")
CAPTURE = ("auto", "off", "require")
SPECIALISE = ("auto", "now", "off")
INSTRUCTION_SETS = ("avx512_vnni", "avx512", "avx2", "sse2", "neon", "baseline")
"""The names of the instruction sets that CPU code can be compiled for."""
_GPU = re.compile(r"gpu(?::([0-9]{1,3}|sm_[0-9]+|gfx[0-9a-f]+|interpreter))?\Z")
"""A GPU target: the first GPU, one by its number, an architecture, or Triton's interpreter."""
_PREFIX = "MONOGRAPH_"
DEBUG_VARIABLE = _PREFIX + "DEBUG"
"""The variable that makes the command line show tracebacks; it is not an option of a session."""
_CACHE_HOME = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
_OF_GPUS = ("precision", "tf32", "tune", "tuning_cache", "pin_inputs")
"""Options that only GPU targets have."""
_RENAMED = {
    "shapes_kept": "max_cached_shapes",
    "features": "cpu_isa",
    "lock_arrays": "pin_inputs",
}
"""New names of renamed options by their old names, which warn for one release."""
_HABITS = {
    "providers": 'target="cpu" or target="gpu"; monograph.onnxruntime takes providers',
    "provider_options": "options are arguments of load; monograph.onnxruntime takes providers",
    "sess_options": "options are arguments of load, for example threads=4",
}
"""Arguments of ONNX Runtime's sessions, and the same in Monograph."""
_BOOLS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Config:
    """The options for compiling and running a model."""

    target: str = "cpu"
    """The target: "cpu" or "gpu" (compiled code), or "reference" (numpy, the oracle).

    "gpu:1" is the second GPU of the machine; "gpu:sm_90" compiles for an architecture and runs
    nothing; "gpu:interpreter" runs GPU kernels without a GPU, very slowly.
    """
    max_cached_shapes: int = 16
    """The number of shape bindings that a session keeps; the least recently used one is dropped."""
    optimise: bool = False
    """Optimise the graph with the rewrite pipeline, once for each set of shapes."""
    threads: int = 0
    """The number of threads of a run; 0 for all that this process may use."""
    cpu_isa: str = ""
    """The instruction set to compile for, one of `INSTRUCTION_SETS`; "" for the host's."""
    winograd: bool = True
    """Allow Winograd for 3x3 convolutions: fewer products, a few times the rounding error."""
    cache_dir: str = os.path.join(_CACHE_HOME, "monograph")
    """The directory that keeps compiled objects between processes; "" for none."""
    cache_bytes: int = 8 << 30
    """The size limit of that directory; the least recently used entries are deleted first. A
    decoder stores its packed weights there once for each length of fed tokens.
    """
    precision: str = "f32"
    """The precision of f32 models on a GPU: "f32", "f16" or "bf16"; sums and norms stay f32."""
    tf32: bool = False
    """Allow a GPU to round the operands of f32 products to TF32, with 10 bits of mantissa."""
    tune: str = "fast"
    """The choice of GPU kernels: "off" takes the defaults, "fast" measures the most promising
    candidates, "full" measures all of them.
    """
    tuning_cache: str = ""
    """The JSON file of measured kernels; "" for tuning.json in `cache_dir`."""
    pin_inputs: bool = True
    """Lock host arrays that are fed repeatedly in memory, so that a GPU reads them directly."""
    capture: str = "auto"
    """Run a model as one launch: "auto" where possible, "off" launches each GPU kernel by itself,
    "require" raises an error where it is not possible.
    """

    specialise: str = "auto"
    """The code of a model with open dimensions: "off" compiles once, with open dimensions as
    run-time values, and runs any shape; "now" compiles exact code for each set of shapes; "auto"
    runs any shape, and compiles exact code in the background for shapes that keep coming back.
    """
    checked: bool = False
    """Check every memory access of a kernel against its buffer: for tests and debugging, several
    times slower. Of the GPU targets only "gpu:interpreter" can check.
    """

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
        choices = (
            ("precision", PRECISIONS),
            ("tune", TUNING),
            ("capture", CAPTURE),
            ("specialise", SPECIALISE),
        )
        for name, known in choices:
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(
                    f"no such {name}",
                    expected=" | ".join(known),
                    given=value,
                )
        if self.max_cached_shapes < 1:
            raise ConfigError(
                "`max_cached_shapes` must be at least 1",
                expected=">= 1",
                given=self.max_cached_shapes,
            )
        if self.threads < 0:
            raise ConfigError("`threads` must not be negative", expected=">= 0", given=self.threads)
        if self.cache_bytes < 0:
            raise ConfigError(
                "`cache_bytes` must not be negative", expected=">= 0", given=self.cache_bytes
            )
        if self.specialise == "off" and not self.compiles_any_shape:
            raise ConfigError(
                "code for any shape needs a device to run on",
                expected='target="cpu", "gpu" or "gpu:interpreter", or specialise="now"',
                given=self.target,
            )
        if not self.on_gpu:
            _refuse_gpu_options(self)
        elif self.checked and self.device != INTERPRETER:
            raise ConfigError(
                "`checked` needs a CPU or the interpreter",
                expected=f"cpu | gpu:{INTERPRETER}",
                given=self.target,
                hint="remove `checked`, or set one of these targets",
            )
        if self.target == "reference" and self.capture == "require":
            raise ConfigError(
                "`capture` needs a target that launches kernels",
                expected="auto | off",
                given=self.capture,
                hint='set target="gpu" or target="cpu"',
            )

    @property
    def on_gpu(self) -> bool:
        """True if the target is a GPU."""
        return _GPU.match(self.target) is not None

    @property
    def compiles_any_shape(self) -> bool:
        """True if the target is a device, which can compile for any shape."""
        return self.target == "cpu" or (self.on_gpu and not re.match("sm_|gfx", self.device))

    @property
    def device(self) -> str:
        """The GPU of the target: a number, an architecture, "interpreter", or "" for the first."""
        return self.target.partition(":")[2]


def _refuse_gpu_options(config: Config) -> None:
    """Raise an error if a target other than a GPU is given an option that only GPUs have."""
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
    """Build the configuration from options, then the environment, then the defaults."""
    known = {f.name: f for f in fields(Config)}
    options = _renamed(options)
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(
            "no such option",
            expected=", ".join(known),
            given=", ".join(unknown),
            hint=_HABITS.get(unknown[0]) or did_you_mean(unknown, known),
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
        # A default for GPUs in the environment does not apply to other targets.
        given = {n for n, v in options.items() if v is not None}
        values = {n: v for n, v in values.items() if n not in _OF_GPUS or n in given}
        # no other target chooses kernels, so any value is wrong
        if "tune" in given and target in TARGETS:
            raise _of_gpus("tune", options["tune"], target)
    if target.startswith("gpu") and target != f"gpu:{INTERPRETER}" and not options.get("checked"):
        # a GPU cannot check; a default from the environment does not apply
        values.pop("checked", None)
    if target == "reference":
        # The reference neither launches nor compiles: defaults from the environment do not apply.
        for name in ("capture", "specialise"):
            if options.get(name) is None:
                values.pop(name, None)
    return Config(**values)


@contextmanager
def cache_directory(path: str | None) -> Iterator[None]:
    """Use a directory as the default of `cache_dir`; "" uses none, and None changes nothing.

    Processes that are started meanwhile have the same default.
    """
    variable = _PREFIX + "CACHE_DIR"
    before = os.environ.get(variable)
    if path is not None:
        os.environ[variable] = path
    try:
        yield
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


def option_value(name: str, text: str) -> Any:
    """Return the value of an option that is given as text."""
    known = {f.name: f for f in fields(Config)}
    if name not in known:
        raise ConfigError(
            "no such option",
            expected=", ".join(known),
            given=name,
            hint=did_you_mean([name], known),
        )
    return _parse(name, text, type(known[name].default))


def _renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by their new names; an old name gives a DeprecationWarning."""
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
    """Return the text of an option's environment variable, also under the option's old name."""
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
    """Return an option's value as its declared type: integer types as int, paths as str."""
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind is int and not isinstance(value, bool):
        with suppress(TypeError):
            value = operator.index(value)
    if type(value) is not kind:
        raise ConfigError(f"`{name}` must be of type {kind.__name__}", given=repr(value))
    return value


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        raise ConfigError(
            f"{_PREFIX}{name.upper()} must be a truth value",
            expected=" | ".join(_BOOLS),
            given=text,
        )
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(
            f"{_PREFIX}{name.upper()} must be of type {kind.__name__}",
            expected=kind.__name__,
            given=text,
        ) from None
