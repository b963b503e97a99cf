"""Imports point only leftwards in the order of the design."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "monograph"
LAYERS = [
    {"errors"},
    {"config"},
    {"ir"},
    {"ops"},
    {"frontend", "rewrite"},
    {"rules"},
    {"passes"},
    {"program"},
    {"codegen"},
    {"runtime"},
    {"pipeline"},
    {"model"},
    {"bindings"},
    {"calls"},
    {"session"},
    {"compat", "generate"},
    {"report", "serve"},
    {"cli"},
    {"__main__"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(SRC.rglob("*.py"))


def part_of(module: str) -> str:
    """The part of the package that a dotted module name belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of everything a file imports from the package."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{a.name}") for a in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_leftwards(path: Path) -> None:
    own = path.relative_to(SRC).with_suffix("").parts[0]
    for line, module in imports(path):
        assert not module.startswith("onnx.reference"), f"{path}:{line} imports onnx.reference"
        other = part_of(module)
        if not module.startswith("monograph.") or own == "__init__" or other not in RANK:
            continue
        assert own in RANK, f"{own} has no place in the order of the design"
        same_part = own == other
        assert same_part or RANK[other] < RANK[own], f"{path}:{line}: {own} imports {other}"


def test_every_part_has_a_place() -> None:
    parts = {p.relative_to(SRC).with_suffix("").parts[0] for p in FILES} - {"__init__", "__main__"}
    assert parts <= set(RANK), f"no place in the order for {parts - set(RANK)}"


def test_the_code_generators_do_not_import_each_other() -> None:
    """What both use lives in `codegen.common`, which imports neither of them."""
    rooms = {"llvm": {"triton"}, "triton": {"llvm"}, "common": {"llvm", "triton"}}
    for room, others in rooms.items():
        for path in sorted((SRC / "codegen" / room).rglob("*.py")):
            found = [m for _, m in imports(path) if m.startswith("monograph.codegen.")]
            wrong = [m for m in found if m.split(".")[2] in others]
            assert not wrong, f"{path.relative_to(SRC)} imports {wrong[0]}"


def test_no_public_class_has_the_name_of_another() -> None:
    """A reader who meets a class name finds one class."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


FLAT = ("ops", "frontend/onnx/convert")
"""Op families and converters: their names are plain."""
ROOM = 25
"""How many modules a folder may hold."""


@pytest.mark.parametrize("top", [SRC, SRC.parents[1] / "tests"], ids=["src", "tests"])
def test_no_folder_is_crowded(top: Path) -> None:
    counts: dict[str, int] = {}
    for path in top.rglob("*.py"):
        folder = path.parent.relative_to(top).as_posix()
        if path.name != "__init__.py" and folder not in FLAT:
            counts[folder] = counts.get(folder, 0) + 1
    assert {folder: n for folder, n in counts.items() if n > ROOM} == {}


FOREIGN = {"torch", "module"}
"""Names of other libraries' modules, whose underscore names are theirs to change."""


def private_reaches(path: Path, text: str) -> list[str]:
    """Accesses to `x._name` outside of the classes that define `_name`."""
    found: list[str] = []

    def walk(node: ast.AST, own: frozenset[str]) -> None:
        if isinstance(node, ast.ClassDef):
            own |= private_names(node)
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            inner = ast.unparse(node.value)
            foreign = inner.split(".")[0] in FOREIGN or node.attr == "_replace"
            if inner not in ("self", "cls", "super()") and node.attr not in own and not foreign:
                found.append(f"{path.relative_to(SRC)}:{node.lineno}: {ast.unparse(node)}")
        for child in ast.iter_child_nodes(node):
            walk(child, own)

    walk(ast.parse(text), frozenset())
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(node: ast.ClassDef) -> set[str]:
    """The private methods and attributes that a class defines."""
    names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    names |= {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names |= {inner.attr} if ast.unparse(inner.value) == "self" else set()
    return {name for name in names if is_private(name)}


def test_no_code_reaches_into_private_attributes_of_another_object() -> None:
    assert [reach for path in FILES for reach in private_reaches(path, path.read_text())] == []


def test_a_reach_into_a_private_attribute_is_found() -> None:
    text = (
        "class A:\n    def _f(self, x: A): return x._f(self._g, torch._C)\ndef f(a): return a._f\n"
    )
    assert private_reaches(SRC / "example.py", text) == ["example.py:3: a._f"]
