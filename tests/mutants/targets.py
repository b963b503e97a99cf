"""What is mutated, in three groups, and which tests are to notice: the most specific ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = "src/monograph"
CAPTURE = (
    "capture", "replay", "slots", "graphs", "recorded", "attempts", "staging", "quick", "launches",
    "stretches", "conditions", "running", "states", "cuda_graphs", "cuda_nodes", "ports",
)  # fmt: skip
INDEX = (
    "program/index.py", "program/access.py", "program/strided.py", "program/ends.py",
    "program/place.py", "program/ranges.py", "program/bounded.py", "codegen/llvm/elements.py",
    "codegen/llvm/generate.py", "codegen/llvm/gather.py", "codegen/llvm/halo.py",
    "codegen/triton/reading.py", "codegen/triton/elements.py", "codegen/triton/moves.py",
)  # fmt: skip


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
    ("rules/*.py", "passes/*.py", "rewrite/*.py"),
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
        ("tests/program", "tests/cpu/test_gather.py", "tests/cpu/test_pad.py"),
        ("tests/cpu",),
        ("tests/campaign", "tests/conformance", "tests/fuzz"),
        ("tests",),
    ),
)
GRAPHS = Group(
    "capture",
    tuple(f"runtime/gpu/{n}.py" for n in CAPTURE),
    (
        (
            "tests/gpu/test_slots.py",
            "tests/gpu/test_conditions.py",
            "tests/gpu/test_cuda_graphs.py",
            "tests/gpu/test_replay.py",
            "tests/gpu/test_session_capture.py",
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
