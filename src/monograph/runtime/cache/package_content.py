"""The content of a package: the code that a session has compiled so far."""

from __future__ import annotations

from collections.abc import Iterable

from monograph.errors import ConfigError
from monograph.runtime.counts import why_not_one_launch
from monograph.runtime.cpu.any_shape import AnyShape, AnyShapeExecutable
from monograph.runtime.cpu.tiers import TieredExecutable
from monograph.runtime.executable import ANY_SHAPE, CompiledArtefact, Executable
from monograph.runtime.kept_executables import Key
from monograph.runtime.shape_code import ShapeCode


def package_content(
    made: Iterable[tuple[Key, Executable]],
    codes: Iterable[ShapeCode],
    on_gpu: bool,
    values_decide: bool,
) -> tuple[dict[Key, CompiledArtefact], list[CompiledArtefact]]:
    """Return exact code by shapes, and the code for any shape.

    Raises ConfigError for what no package can hold.
    """
    artefacts = {}
    for key, executable in made:
        if _in_variant(executable, on_gpu):
            continue
        artefact = executable.artefact()
        if values_decide or artefact is None or not artefact.whole:
            raise ConfigError(
                "the model cannot be saved: its native code is not all that a run takes",
                given=_parts_of(executable, values_decide),
                hint="only models that compile as a whole can be saved",
            )
        artefacts[key[0]] = artefact
    if not artefacts and on_gpu:
        raise ConfigError(
            "a package has no code for any shape of a GPU",
            hint='load the model with specialise="now", run it, then save',
        )
    # The same model gives the same file, however long its compilation took.
    variants: list[CompiledArtefact] = [
        c.artefact.timed(0.0) for c in codes if isinstance(c, AnyShape)
    ]
    return artefacts, variants


def _in_variant(executable: Executable, on_gpu: bool) -> bool:
    """Return True if a package holds the code of an executable as a variant, if at all."""
    own = executable.inner if isinstance(executable, TieredExecutable) else executable
    return (on_gpu and executable.tier == ANY_SHAPE) or isinstance(own, AnyShapeExecutable)


def _parts_of(executable: Executable, values_decide: bool) -> str:
    """Return why an executable is more than one function, in the words of `inspect`."""
    if values_decide:
        return "what inputs hold decides shapes"
    if reason := why_not_one_launch(executable):
        return reason
    return "complex inputs, outputs without memory of their own, or no code for a device"
