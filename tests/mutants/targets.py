"""Targets of mutation, in three groups, and the tests that are to notice: most specific first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = "src/monograph"
GPU = "tests/gpu"
Stage = tuple[str, ...]
"""Files and folders of tests that run together."""
CAPTURE = (
    "runtime/gpu/capture/capture.py",
    "runtime/gpu/capture/replay.py",
    "runtime/gpu/capture/pointer_params.py",
    "runtime/gpu/driver/graphs.py",
    "runtime/gpu/capture/captured_graph.py",
    "runtime/gpu/capture/capture_policy.py",
    "runtime/gpu/capture/replay_fast_path.py",
    "runtime/gpu/capture/launches.py",
    "runtime/gpu/capture/partial_graphs.py",
    "runtime/gpu/capture/control.py",
    "runtime/gpu/bound_program.py",
    "runtime/gpu/memory.py",
    "runtime/gpu/driver/cuda_graphs.py",
    "runtime/gpu/driver/cuda_calls.py",
    "runtime/gpu/ports.py",
)
INDEX = (
    "program/index.py",
    "program/fusion/region.py",
    "program/memory/strided.py",
    "program/memory/buffer_assignment.py",
    "program/fusion/index_bounds.py",
    "program/dynamic/bounded.py",
    "codegen/llvm/emit/elements.py",
    "codegen/llvm/indexing/index_kernels.py",
    "codegen/llvm/indexing/gather.py",
    "codegen/llvm/module/memory.py",
    "codegen/triton/emit/tile.py",
    "codegen/triton/emit/elements.py",
    "codegen/triton/indexing/index_kernels.py",
)


@dataclass(frozen=True)
class Group:
    """Files that are mutated, and stages of tests that run one after the other."""

    name: str
    files: tuple[str, ...]
    stages: tuple[Stage, ...]


RULES = Group(
    "rules",
    ("rules/*.py", "passes/*.py", "passes/*/*.py", "rewrite/*.py"),
    (
        ("tests/rules", "tests/rewrite", "tests/passes"),
        ("tests/fuzz/test_rewrites.py", "tests/test_pipeline.py", "tests/report", "tests/program"),
        ("tests/cpu", "tests/campaign", "tests/cli", "tests/generate"),
        ("tests",),
        (GPU,),
    ),
)
MAPS = Group(
    "index",
    INDEX,
    (
        ("tests/program", "tests/cpu/indexing/test_gather.py", "tests/cpu/indexing/test_pad.py"),
        ("tests/cpu",),
        ("tests/campaign", "tests/conformance", "tests/fuzz"),
        ("tests",),
        (GPU,),
    ),
)
GRAPHS = Group(
    "capture",
    CAPTURE,
    (
        (
            "tests/gpu/capture/test_pointer_params.py",
            "tests/gpu/control/test_conditions.py",
            "tests/gpu/driver/test_cuda_graphs.py",
            "tests/gpu/capture/test_replay.py",
            "tests/gpu/capture/test_session_capture.py",
            "tests/gpu/test_counts.py",
        ),
        ("tests/gpu/faults",),
        (GPU,),
    ),
)
TRITON: tuple[Stage, ...] = (("tests/gpu/emit", "tests/gpu/indexing"), (GPU,))
"""Tests that notice code for a GPU, whichever group it is in."""
GROUPS = {g.name: g for g in (RULES, MAPS, GRAPHS)}


def files(root: Path, group: Group) -> Iterator[Path]:
    """The files of a group."""
    for pattern in group.files:
        for path in sorted((root / SOURCE).glob(pattern)):
            if path.name != "__init__.py":
                yield path


def needs_torch(stage: Stage) -> bool:
    """Tell whether tests need torch and triton; Triton's interpreter runs kernels then."""
    return all(s.startswith(GPU) for s in stage)


def stages(root: Path, group: Group, path: Path) -> list[Stage]:
    """The stages of tests for a file; tests that bear its name come before all others.

    Only tests of the GPU notice code for a GPU; of the CPU's own code they run nothing.
    """
    listed = TRITON if "triton" in path.parts else group.stages
    if "llvm" in path.parts:
        listed = tuple(s for s in listed if not needs_torch(s))
    names = (root / "tests").rglob(f"test_{path.stem}*.py")
    named = sorted(p.relative_to(root).as_posix() for p in names)
    own = [
        tuple(n for n in named if needs_torch((n,)) == gpu)
        for gpu in sorted({needs_torch(s) for s in listed})
    ]
    return [*filter(None, own), *listed]
