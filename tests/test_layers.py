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
    {"cli_common", "cli_options"},
    {"cli_compile", "cli_generate", "cli_profile", "cli_tune", "cli_verify"},
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
