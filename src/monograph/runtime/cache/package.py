"""A model compiled ahead of time, in one file: `monograph compile model.onnx -o model.mono`.

    manifest.json      versions, options, signature; every other member with its size and SHA-256
    manifest.sha256    the digest of the manifest
    0/layout ...       the members of each executable (see `artefact`)
    any0/layout ...    the members of each variant of the code for any shape
    weights/...        the large constants of all of them, by the digests of their bytes

It is a zip of uncompressed members. Each is checked when the package is opened or its executable is
first needed. Nothing is unpickled. Its code is run: trust a package like a shared library.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import llvmlite.binding as llvm
import numpy as np

import monograph
from monograph.codegen.common.shared_weights import share_weight, weight_in_process
from monograph.codegen.llvm.module.bounds_checks import SLACK
from monograph.codegen.llvm.module.features import choose_features
from monograph.config import Config
from monograph.errors import ConfigError, ModelError, MonographError
from monograph.ir import Array
from monograph.runtime.atomic_write import replacing_named
from monograph.runtime.cache.any_shape_artefact import AnyShapeArtefact
from monograph.runtime.cache.artefact import (
    FORMAT,
    Artefact,
    Weights,
    signature_from_json,
    signature_to_json,
)
from monograph.runtime.cache.object_cache import Buffer, as_bytes
from monograph.runtime.cache.store import Shapes, UnreadModel
from monograph.runtime.cpu.launch import aligned_bytes
from monograph.runtime.feeds import ModelSignature

if TYPE_CHECKING:
    from monograph.runtime.gpu.artefact import GpuArtefact

_KIND = "monograph package"
_MANIFEST, _DIGEST = "manifest.json", "manifest.sha256"
_VARIANT, _WEIGHTS = "any", "weights/"
_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that the same model gives the same file."""
_BROKEN = (
    zipfile.BadZipFile,
    MonographError,
    ValueError,
    KeyError,
    TypeError,
    ArithmeticError,
    RecursionError,
    OSError,
)
T = TypeVar("T")


class Members(Protocol):
    """A compiled program that can be written as named members."""

    @property
    def weights(self) -> Mapping[str, Array]:
        """The large constants by digest."""

    def members(self) -> dict[str, Buffer]:
        """Return the members by name."""


def write_package(
    path: Path,
    signature: ModelSignature,
    options: Mapping[str, Any],
    artefacts: Mapping[tuple[tuple[str, tuple[int, ...]], ...], Members],
    variants: Sequence[Members] = (),
    arch: str = "",
) -> None:
    """Write a package atomically.

    artefacts: the code for each set of shapes. variants: the code for any shape. arch: the GPU
    architecture of GPU code.
    """
    stored = {str(number): artefact for number, artefact in enumerate(artefacts.values())}
    stored |= {f"{_VARIANT}{number}": variant for number, variant in enumerate(variants)}
    members = {
        f"{place}/{name}": as_bytes(data)
        for place, artefact in stored.items()
        for name, data in artefact.members().items()
    }
    for artefact in stored.values():
        members |= {f"{_WEIGHTS}{d}": as_bytes(data) for d, data in artefact.weights.items()}
    manifest = {
        "kind": _KIND,
        "format": FORMAT,
        "monograph": monograph.__version__,
        **({"arch": arch} if arch else {"triple": llvm.get_default_triple()}),
        "options": dict(options),
        "signature": signature_to_json(signature),
        "shapes": [{name: list(shape) for name, shape in shapes} for shapes in artefacts],
        "variants": len(variants),
        "members": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
        },
    }
    head = json.dumps(manifest, indent=1).encode()
    with replacing_named(path, "the package") as file, zipfile.ZipFile(file, "w") as archive:
        _add(archive, _MANIFEST, head)
        _add(archive, _DIGEST, hashlib.sha256(head).hexdigest().encode())
        for member, data in members.items():
            _add(archive, member, data)


def open_package(
    source: UnreadModel, config: Config, dims: Mapping[str, int], donate: Mapping[str, str]
) -> Package:
    """Open the package that a source is; options must match what it was compiled with."""
    package = Package(Path(source.given))  # type: ignore[arg-type]
    package.check(config, dims, donate)
    return package


class Package:
    """The compiled programs of one model in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                head = archive.read(_MANIFEST)
                digest = archive.read(_DIGEST).decode()
            if hashlib.sha256(head).hexdigest() != digest:
                raise ValueError("the manifest does not match its digest")
            self._manifest: dict[str, Any] = json.loads(head)
            if self._manifest["kind"] != _KIND:
                raise ValueError("the zip is not a package")
            self.arch: str = self._manifest.get("arch", "")
            """The GPU architecture of its code; "" for CPU code."""
            self._check_versions()
            self._signature = signature_from_json(self._manifest["signature"])
            self.shapes: list[Shapes] = [
                {name: tuple(shape) for name, shape in shapes.items()}
                for shapes in self._manifest["shapes"]
            ]
            """The input shapes that it holds exact code for."""
            self.variants = int(self._manifest["variants"])
            """The number of variants of code for any shape."""
            self.options: dict[str, Any] = self._manifest["options"]
        except ConfigError:
            raise
        except _BROKEN as e:
            raise self._refused(e) from None
        if not self.arch:
            choose_features(self.options["features"])

    def signature(self, dims: Mapping[str, int] | None = None) -> ModelSignature:
        """Return the inputs and outputs, with these open dimensions set to sizes."""
        return self._signature.sized(dims) if dims else self._signature

    @property
    def sizes(self) -> list[dict[str, int]]:
        """Return the sizes of named dimensions, for each set of shapes that it holds code for."""
        ports = (*self._signature.inputs, *self._signature.optional)
        return [
            self.options["dims"]
            | {
                dim: size
                for port in ports
                for dim, size in zip(port.shape or (), shapes.get(port.name, ()), strict=False)
                if isinstance(dim, str)
            }
            for shapes in self.shapes
        ]

    def find(self, shapes: Shapes) -> Artefact | GpuArtefact | None:
        """Return the exact program for these input shapes, if it was compiled."""
        if shapes not in self.shapes:
            return None
        of: Callable[..., Artefact | GpuArtefact] = Artefact.of
        if self.arch:
            from monograph.runtime.gpu.artefact import GpuArtefact

            of = GpuArtefact.of
        return self._read(str(self.shapes.index(shapes)), of)

    def find_variant(self, number: int) -> AnyShapeArtefact | None:
        """Return a variant of the code for any shape, if there are so many."""
        if number >= self.variants:
            return None
        return self._read(f"{_VARIANT}{number}", AnyShapeArtefact.of)

    def no_code(self, shapes: Shapes, misfits: Sequence[str]) -> ConfigError:
        """Return the error for input shapes that the package has no code for."""
        held = [*map(_listed, self.shapes), *(f"any shape, but {why}" for why in misfits)]
        return ConfigError(
            "the package holds no code for inputs of these shapes",
            expected="; ".join(held),
            given=_listed(shapes),
            hint="compile the model for them, or load the model itself",
        )

    def _read(self, place: str, of: Callable[[Mapping[str, memoryview], Weights], T]) -> T:
        """Return what the members under a place hold, after all checks."""
        prefix = f"{place}/"
        try:
            with zipfile.ZipFile(self._path) as archive:
                members = {
                    name.removeprefix(prefix): _checked(archive, name, stated)
                    for name, stated in self._manifest["members"].items()
                    if name.startswith(prefix)
                }
            return of(members, self._weights)
        except ModelError:  # of damaged weights
            raise
        except _BROKEN as e:
            raise self._damaged(e) from None

    def _weights(self, digests: Sequence[str]) -> dict[str, Array]:
        """Return large constants by digest: those that this process holds, else those stored."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                return self._read_weights(archive, digests)
        except _BROKEN as e:
            raise self._damaged(e) from None

    def _read_weights(self, archive: zipfile.ZipFile, digests: Sequence[str]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for digest in digests:
            held = weight_in_process(digest)
            if held is None:
                name = f"{_WEIGHTS}{digest}"
                stated = self._manifest["members"][name]
                if stated["sha256"] != digest:
                    raise ValueError(f"{name} is named after other data")
                data = np.frombuffer(_checked(archive, name, stated), np.uint8)
                held = aligned_bytes(data.size + SLACK)[: data.size]
                held[:] = data
                share_weight(digest, held)
            found[digest] = held
        return found

    def check(self, config: Config, dims: Mapping[str, int], donate: Mapping[str, str]) -> None:
        """Raise a ConfigError for options that need other code than the package holds."""
        compiled = self.options
        asked = {
            "target": ("gpu" if config.on_gpu else config.target, "gpu" if self.arch else "cpu"),
            "donate": (donate or compiled["donate"], compiled["donate"]),
        }
        if self.arch:
            default = Config.precision
            chosen = compiled["precision"] if config.precision == default else config.precision
            asked["precision"] = (chosen, compiled["precision"])
            asked["tf32"] = (config.tf32 or compiled["tf32"], compiled["tf32"])
        else:
            asked["threads"] = (config.threads or compiled["threads"], compiled["threads"])
            asked["cpu_isa"] = (config.cpu_isa or compiled["features"], compiled["features"])
            asked["winograd"] = (config.winograd and compiled["winograd"], compiled["winograd"])
            asked["checked"] = (config.checked or compiled["checked"], compiled["checked"])
        exact = any(dims.items() <= sizes.items() for sizes in self.sizes)
        if not exact and not (self.variants and self._opens(dims)):
            asked["dims"] = (_sizes_text(dims), "; ".join(map(_sizes_text, self.sizes)))
        for name, (given, expected) in asked.items():
            if given != expected:
                raise ConfigError(
                    f"the package was compiled with another value of {name}",
                    expected=expected,
                    given=given,
                    hint=f"load it with target={expected!r}"
                    if name == "target"
                    else f"leave {name} out{_unset(name)}, or load the model itself",
                )

    def _opens(self, dims: Mapping[str, int]) -> bool:
        """Return True if all of these dimensions are open in the model."""
        ports = (*self._signature.inputs, *self._signature.optional)
        return dims.keys() <= {d for p in ports for d in p.shape or () if isinstance(d, str)}

    def check_device(self, arch: str) -> None:
        """Raise a ConfigError for a device of another architecture than the code's."""
        if arch != self.arch:
            raise ConfigError(
                "the package was compiled for another GPU architecture",
                expected=self.arch,
                given=arch,
                hint=f"compile the model again with `monograph compile --target gpu:{arch}`",
            )

    def _check_versions(self) -> None:
        own = {
            "format": FORMAT,
            "monograph": monograph.__version__,
            **({} if self.arch else {"triple": llvm.get_default_triple()}),
        }
        for name, value in own.items():
            if self._manifest[name] != value:
                raise ConfigError(
                    f"the package was compiled for another {name}",
                    expected=value,
                    given=self._manifest[name],
                    hint="compile the model again with `monograph compile`",
                )

    def _refused(self, error: Exception) -> ModelError:
        """Return why the file cannot be opened: it is not a package, or it is damaged."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                names = archive.namelist()
        except _BROKEN:
            return self._damaged(error)
        if _MANIFEST in names:
            return self._damaged(error)
        from monograph.frontend.onnx.formats import archive_format

        found = archive_format(names)
        return ModelError(
            f"not an ONNX model: the file is {found.name}",
            given=str(self._path),
            hint=found.remedy,
        )

    def _damaged(self, error: Exception) -> ModelError:
        return ModelError(
            f"the package is damaged: {error}",
            given=str(self._path),
            hint="compile the model again with `monograph compile`",
        )


def _unset(name: str) -> str:
    """Return a hint if an option came from the environment."""
    variable = f"MONOGRAPH_{name.upper()}"
    return f" (unset {variable})" if variable in os.environ else ""


def _checked(archive: zipfile.ZipFile, name: str, stated: Mapping[str, Any]) -> memoryview:
    data = archive.read(name)
    if len(data) != stated["bytes"] or hashlib.sha256(data).hexdigest() != stated["sha256"]:
        raise ValueError(f"{name} does not match its digest")
    return memoryview(data)


def _add(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    archive.writestr(zipfile.ZipInfo(name, _TIME), data)


def _listed(shapes: Shapes) -> str:
    return ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "none"
