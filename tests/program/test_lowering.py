"""One statement of the lowering order: `inspect` shows the programs that run, and nobody else
calls the steps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.ir import Op
from monograph.ops.attention import CacheUpdate
from monograph.ops.composite import DecodeAttention
from monograph.ops.control import Scan
from monograph.ops.recurrent import Gru
from monograph.ops.signal import Dft
from monograph.ops.sort import NonZero
from monograph.program.lowering import CPU_LOWERING, GPU_LOWERING
from monograph.report.commands.launch_regions import launching_of
from monograph.runtime.dynamic.stage_compiler import Compiler
from monograph.runtime.dynamic.staged import compile_stages
from tests.program import inspected
from tests.samples import sample_graph

SRC = Path(__file__).parents[2] / "src" / "monograph"
LOWERING = SRC / "program" / "lowering.py"
STEP_ROOMS = ("dynamic", "fusion.fuse", "launch_regions", "legalise", "memory")
NO_STEPS = {"Halo", "MemoryPlan", "Places", "StageSplit", "held_by_host"}
"""Names that the lowering imports from those rooms, and that change no graph or program."""
ALONE = {
    "codegen/llvm/control/subprograms.py": {"plan"},  # memory of a sub-program inside its step
    "codegen/llvm/module/compile.py": {"plan"},  # the same temporaries and kernels' scratch memory
    "codegen/llvm/module/select.py": {"in_parts"},  # which ops of an import stay complex
    "report/commands/launch_regions.py": {"SplitAtHost"},  # graphs without conditional nodes
    "program/work.py": {"expand"},  # operations of a body, of which no program is made
}
"""Modules that use a single step for something other than a program."""


@pytest.mark.parametrize("name", inspected.CASES)
def test_inspect_shows_the_program_that_runs_on_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOGRAPH_CACHE_DIR", "")
    shown, executable = inspected.both(name, "cpu", tmp_path)
    assert executable.launches == len(shown.regions)
    assert executable.kernels == sum(shown.count(r) for r in shown.regions)


@pytest.mark.parametrize("op", [CacheUpdate, DecodeAttention, Dft, Gru, NonZero, Scan])
def test_inspect_shows_the_program_of_an_op(op: type[Op]) -> None:
    for sample in op.samples:
        graph, _ = sample_graph(op, sample)
        made = compile_stages(graph, Compiler(host_features(), 1))
        assert str(launching_of(graph, "cpu").program) == str(made.programs[0])


def imported_steps(path: Path) -> set[tuple[str, str]]:
    """(module, name) of the functions and modules of the lowering's rooms that a file imports."""
    rooms = tuple(f"monograph.program.{room}" for room in STEP_ROOMS)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(a.name, "") for a in node.names if a.name.startswith(rooms)}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("monograph.program"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole.startswith(rooms):
                    found.add((str(node.module), alias.name))
    return found


STEPS = {(m, n) for m, n in imported_steps(LOWERING) if n not in NO_STEPS}
MODULES = {m for m, _ in STEPS}


def test_no_other_module_calls_the_steps() -> None:
    alone = {}
    for path in sorted(SRC.rglob("*.py")):
        used = imported_steps(path)
        whole = {f"{m}.{n}".rstrip(".") for m, n in used} & MODULES
        assert not whole, f"{path}: import the names that are needed, so that this test sees them"
        if path != LOWERING and used & STEPS:
            alone[path.relative_to(SRC).as_posix()] = {n for _, n in used & STEPS}
    assert alone == ALONE


def test_the_steps_have_one_order_for_each_target() -> None:
    orders = [
        [s.name for stage in table for s in stage.steps] for table in (CPU_LOWERING, GPU_LOWERING)
    ]
    for order in orders:
        assert len(order) == len(set(order))
    cpu, gpu = orders
    assert [name for name in cpu if name in gpu] == gpu
    assert set(cpu) - set(gpu) == {
        "lower_complex",
        "split_decoding",
        "split_open_constants",
        "split_axes",
        "split_zero_points",
        "widen_convolutions",
    }
    assert len(STEPS) >= len(cpu) - 1  # merging regions is a question to the target
