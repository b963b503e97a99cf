"""What is mutated, in three groups, and which tests are to notice: the most specific ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = "src/monograph"
CAPTURE = (
    "runtime/gpu/capture/capture.py",
    "runtime/gpu/capture/replay.py",
    "runtime/gpu/capture/pointer_params.py",
    "runtime/gpu/driver/graphs.py",
    "runtime/gpu/capture/captured_graph.py",
    "runtime/gpu/capture/capture_policy.py",
    "runtime/gpu/capture/staging.py",
    "runtime/gpu/capture/replay_fast_path.py",
    "runtime/gpu/capture/launches.py",
    "runtime/gpu/capture/partial_graphs.py",
    "runtime/gpu/capture/conditions.py",
    "runtime/gpu/bound_program.py",
    "runtime/gpu/rng_state.py",
    "runtime/gpu/driver/cuda_graphs.py",
    "runtime/gpu/driver/cuda_nodes.py",
    "runtime/gpu/ports.py",
)
INDEX = (
    "program/index.py",
    "program/fusion/access.py",
    "program/memory/strided.py",
    "program/memory/output_views.py",
    "program/memory/buffer_assignment.py",
    "program/ranges.py",
    "program/dynamic/bounded.py",
    "codegen/llvm/emit/elements.py",
    "codegen/llvm/indexing/index_kernels.py",
    "codegen/llvm/indexing/gather.py",
    "codegen/llvm/module/halo.py",
    "codegen/triton/emit/indexed_load.py",
    "codegen/triton/emit/elements.py",
    "codegen/triton/indexing/index_kernels.py",
)


@dataclass(frozen=True)
class Group:
    """Files that are mutated, and stages of tests that run one after the other."""

    name: str
    files: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    on_gpu: bool = False
    """Whether the tests need torch and triton; kernels run by Triton's interpreter then."""


RULES = Group(
    "rules",
    ("rules/*.py", "passes/*.py", "passes/*/*.py", "rewrite/*.py"),
    (
        ("tests/rules", "tests/rewrite", "tests/passes"),
        ("tests/fuzz/test_rewrites.py", "tests/test_pipeline.py", "tests/report", "tests/program"),
        ("tests/cpu", "tests/campaign", "tests/cli", "tests/generate"),
        ("tests",),
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
        ("tests/gpu",),
    ),
    on_gpu=True,
)
GROUPS = {g.name: g for g in (RULES, MAPS, GRAPHS)}


def files(root: Path, group: Group) -> Iterator[Path]:
    """The files of a group."""
    for pattern in group.files:
        for path in sorted((root / SOURCE).glob(pattern)):
            if path.name != "__init__.py":
                yield path


def stages(root: Path, group: Group, path: Path) -> list[tuple[str, ...]]:
    """The stages of tests for a file; tests that bear its name come before all others."""
    own = sorted(
        str(p.relative_to(root))
        for p in (root / "tests").rglob(f"test_{path.stem}*.py")
        if group.on_gpu == ("gpu" in p.relative_to(root).parts)
    )
    on_gpu = ["triton" in path.parts]
    found = [tuple(own)] if own and not any(on_gpu) else []
    return [*found, *group.stages]
