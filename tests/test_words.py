"""Plain English in the code: docstrings name things, and names use the words of the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "monograph"
ROOMS = sorted({p.parent.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py")})
RIDDLE = re.compile(r"(What|Whether|Who|Whose|How|Where|Which|When|Why|That)\b")
AVOIDED = {
    "slab", "slabs", "lane", "lanes", "laned", "wish", "wishes", "foretold", "foretell", "spoil",
    "spoils", "spoiled", "parking", "stretch", "stretches", "goes", "asked", "answered", "taken",
    "apart", "stands",
}  # fmt: skip
"""Words that the glossary replaces, where the word alone decides."""
VECTORS = {"lane", "lanes"}
"""Elements of a vector: the code generators may say so."""


def files(room: str) -> list[Path]:
    return sorted((SOURCE / room).glob("*.py"))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def public_names(tree: ast.Module) -> Iterator[str]:
    """Names of public classes, functions and methods."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node.name


def words(name: str) -> set[str]:
    return {w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


@pytest.mark.parametrize("top", ["src", "tests", "benchmarks", "scripts"])
def test_docstrings_start_with_a_verb_or_a_noun(top: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, text in texts(ast.parse(path.read_text("utf-8")))
        if RIDDLE.match(text.strip())
    ]
    assert found == []


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_use_the_words_of_the_glossary(room: str) -> None:
    avoided = AVOIDED - VECTORS if room.startswith("codegen") else AVOIDED
    found = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in files(room)
        for name in (path.stem, *public_names(ast.parse(path.read_text("utf-8"))))
        if words(name) & avoided
    ]
    assert found == []


def test_a_riddle_is_found() -> None:
    tree = ast.parse('def f():\n    """Whether it is."""\n')
    assert [bool(RIDDLE.match(text)) for _, text in texts(tree)] == [True]
    assert words("goes_without") & AVOIDED
    assert words("SlabPool") & AVOIDED
