"""Mutation operators by example, how mutants are drawn, and that tests kill them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants import draw as drawing
from tests.mutants import run as running
from tests.mutants.draw import Mutant, draw, find, mutants_of
from tests.mutants.operators import OPERATORS, apply, changes
from tests.mutants.targets import GPU, GROUPS, files, needs_torch, stages

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    ("swap_comparison", "x = a < b", "x = (a <= b)"),
    ("negate_condition", "if a:\n    b()", "if (not (a)):\n    b()"),
    ("drop_guard", "def f():\n    if a:\n        return Reject('no')", "False"),
    ("swap_function", "x = min(a, b)", "x = max(a, b)"),
    ("swap_function", "x = math.ceil(a)", "x = math.floor(a)"),
    ("round_otherwise", "x = -(-a // b)", "x = (a // b)"),
    ("round_otherwise", "x = a // b", "x = (-(-(a) // b))"),
    ("change_constant", "x = 3", "x = (4)"),
    ("change_arithmetic", "x = a + b", "x = (a - b)"),
    ("drop_clause", "x = a and b", "x = ((b))"),
    ("skip_call", "f(x)", "pass"),
    ("reverse_order", "x = sorted(a)", "x = sorted(a)[::-1]"),
    ("change_axis", "x = a[0]", "x = a[-1]"),
    ("swap_truth", "x = True", "x = False"),
    ("swap_branches", "x = a if b else c", "x = (c if b else a)"),
]


@pytest.mark.parametrize(("name", "before", "after"), EXAMPLES)
def test_an_operator_changes_what_it_says(name: str, before: str, after: str):
    made = [apply(before, c) for c in changes(before) if c.operator == name]
    assert any(after in text for text in made), made


def test_every_operator_has_an_example():
    assert {name for name, _, _ in EXAMPLES} == set(OPERATORS)


@pytest.mark.parametrize(
    "source",
    [
        '"""3 < 4"""',
        "def f(x: Literal[3] = 4) -> int: ...",
        "raise E(f'{a + 1}', 3)",
        "assert a < 3",
        "def f():\n    return Reject(f'{a} < {b}', 3)",
        "log.info('x', 3)",
    ],
)
def test_messages_and_annotations_are_left_alone(source: str):
    assert not changes(source)


def test_columns_count_characters():
    source = 'x = "ä" if a < b else c'
    assert '"ä" if (a <= b) else c' in {
        apply(source, c).removeprefix("x = ") for c in changes(source)
    }


def test_an_id_stays_when_lines_move(tmp_path: Path):
    path = tmp_path / "f.py"
    path.write_text("x = a < b\n")
    once = {m.id for m in mutants_of.__wrapped__(tmp_path, "rules", path)}
    path.write_text("# a comment\n\nx = a < b\n")
    assert {m.id for m in mutants_of.__wrapped__(tmp_path, "rules", path)} == once


@pytest.mark.parametrize("group", GROUPS.values(), ids=list(GROUPS))
def test_groups_name_files_and_tests_that_exist(group):
    for pattern in group.files:
        assert list((ROOT / "src/monograph").glob(pattern)), pattern
    for stage in group.stages:
        assert all((ROOT / s).exists() for s in stage), stage


def test_mutants_are_drawn_evenly_and_again(monkeypatch: pytest.MonkeyPatch):
    few = {g: list(files(ROOT, GROUPS[g]))[:2] for g in GROUPS}
    monkeypatch.setattr(drawing, "files", lambda root, group: few[group.name])
    drawn = draw(ROOT, list(GROUPS), 7, 3)
    assert [m.id for m in drawn] == [m.id for m in draw(ROOT, list(GROUPS), 7, 3)]
    assert sorted(sum(m.group == g for m in drawn) for g in GROUPS) == [2, 2, 3]
    assert find(ROOT, list(GROUPS), [drawn[4].id]) == [drawn[4]]


def test_tests_of_the_same_name_come_first():
    path = ROOT / "src/monograph/rules/slices.py"
    assert stages(ROOT, GROUPS["rules"], path)[0] == ("tests/rules/test_slices.py",)


@pytest.mark.parametrize(
    ("group", "path", "first", "kinds"),
    [
        ("index", "codegen/triton/emit/elements.py", "tests/gpu/emit/test_elements.py", {True}),
        ("index", "program/index.py", "tests/program/test_index.py", {False, True}),
        ("index", "codegen/llvm/indexing/gather.py", "tests/cpu/indexing/test_gather.py", {False}),
        ("capture", "runtime/gpu/driver/cuda_graphs.py", "tests/gpu/driver/test_cuda_graphs.py",
         {True}),
    ],
)  # fmt: skip
def test_code_for_a_gpu_is_tested_as_such(group: str, path: str, first: str, kinds: set[bool]):
    """Shared code is tested on both sides, and all that survives by all tests of its side."""
    listed = stages(ROOT, GROUPS[group], ROOT / "src/monograph" / path)
    assert first in listed[0]
    assert {needs_torch(s) for s in listed} == kinds
    assert listed[-1] == ((GPU,) if True in kinds else ("tests",))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one module, with a test of one of its two functions."""
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "twice.py").write_text(
        "def two(x):\n    return x + 2\n\ndef top():\n    return 9\n"
    )
    (root / "tests" / "rules").mkdir(parents=True)
    test = "from twice import two\n\ndef test_two():\n    assert two(1) == 3\n"
    (root / "tests" / "rules" / "test_twice.py").write_text(test)
    monkeypatch.setattr(running, "ROOT", root)
    return root


def run(tree: Path, mutant: Mutant) -> running.Result:
    copy = tree.parent / "copy"
    running.copy_tree(copy)
    options = argparse.Namespace(python=sys.executable, gpu_python="", seconds=120.0, stages=1)
    return running.run_one(mutant, copy, options, set())


def test_a_mutant_is_killed_or_survives(
    tree: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    path = tree / "src" / "twice.py"
    every = mutants_of.__wrapped__(tree, "rules", path)
    noticed = next(m for m in every if m.change.before == "x + 2")
    unnoticed = next(m for m in every if m.change.before == "9")
    killed = run(tree, noticed)
    assert killed.killed
    assert killed.by == "tests/rules/test_twice.py::test_two"
    restored = tree.parent / "copy" / "src" / "twice.py"
    assert restored.read_text() == path.read_text()
    options = argparse.Namespace(python=sys.executable, gpu_python="", seconds=120.0, stages=1)
    survived = running.run_one(unnoticed, tree.parent / "copy", options, set())
    assert not survived.killed
    argued = tmp_path / "argued.json"
    argued.write_text("{}")
    monkeypatch.setattr(command, "ARGUED", argued)
    assert command.show([killed, survived], 1.0, tmp_path / "r.json") == 1
    assert "NO TEST NOTICES" in capsys.readouterr().out
    argued.write_text(json.dumps({unnoticed.id: "nobody calls it"}))
    assert command.show([killed, survived], 1.0, None) == 0
    assert [r["killed"] for r in json.loads((tmp_path / "r.json").read_text())] == [True, False]
