"""Imports point only leftwards in the order of the design."""

from __future__ import annotations

import ast
from functools import cache
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
    {"model", "targets"},
    {"bindings"},
    {"calls", "specialiser"},
    {"session"},
    {"compat", "generate", "onnxruntime"},
    {"report"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(SRC.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which many tests read."""
    return ast.parse(path.read_text())


def part_of(module: str) -> str:
    """The part of the package that a dotted module name belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of everything a file imports from the package."""
    found = []
    for node in ast.walk(parsed(path)):
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
    """Code that both use lives in `codegen.common`, which imports neither of them."""
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
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


FLAT = ("ops", "frontend/onnx/convert")
"""Op families and converters: their names are plain."""
ROOM = 25
"""The most modules a folder may hold."""


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


CALL_PATH = ("run", "run_async", "run_full", "try_run", "start", "try_start")
"""The methods of sessions, executables and fast paths that a run goes through."""
HELD = {"executable", "target", "gpu", "side", "backend", "cost"}
"""Names by which code holds an executable or a target."""


def classes() -> dict[str, tuple[Path, ast.ClassDef]]:
    return {
        node.name: (path, node)
        for path in FILES
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef)
    }


def implementations(*protocols: str) -> dict[str, tuple[Path, ast.ClassDef]]:
    """The classes that inherit from a protocol, the protocol included."""
    known, found = classes(), set(protocols)
    while more := {
        name
        for name, (_, node) in known.items()
        if name not in found and found & {ast.unparse(b) for b in node.bases}
    }:
        found |= more
    return {name: known[name] for name in found}


def test_executables_and_targets_implement_their_protocols() -> None:
    executables = {"NativeExecutable", "CpuExecutable", "LoadedExecutable", "ComplexExecutable"}
    executables |= {"StagedExecutable", "ReferenceExecutable", "OfflineExecutable", "TensorStages"}
    executables |= {"GpuProgram", "GpuExecutable", "LoadedGpuExecutable", "Replay", "Eager"}
    assert executables <= set(implementations("Executable"))
    targets = {"ReferenceTarget", "CpuBackend", "GpuBackend", "CrossCompiler"}
    assert targets <= set(implementations("Target"))


def test_no_executable_and_no_target_is_a_proxy() -> None:
    for name, (path, node) in implementations("Executable", "Target").items():
        defined = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        hooks = defined & {"__getattr__", "__getattribute__"}
        assert not hooks, f"{path.relative_to(SRC)}: {name} defines {hooks}"


def test_no_code_probes_executables_or_targets() -> None:
    """A property that differs between them is a member of the protocol."""
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (
                "hasattr",
                "getattr",
            ):
                continue
            given = ast.unparse(node.args[0]).split(".")[-1]
            where = f"{path.relative_to(SRC)}:{node.lineno}: {ast.unparse(node)}"
            assert given not in HELD, where


def test_the_call_path_is_typed() -> None:
    """`Any` stands for no more than the data of a model, which has a name of its own."""
    holders = [*implementations("Executable").values(), *implementations("Calls").values()]
    holders += [found for name, found in classes().items() if name in ("KnownFeeds", "FastPath")]
    nodes: list[ast.AST] = [parsed(SRC / "calls.py")]
    for _, node in holders:
        nodes += [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in CALL_PATH]
    names = [n for top in nodes for n in ast.walk(top) if isinstance(n, ast.Name)]
    assert sum(n.id == "Any" for n in names) < 10


@cache
def _module(name: str) -> Path | None:
    """Return the file of a module or package of this repository, None for other names."""
    root = SRC.parent if name.split(".")[0] == SRC.name else SRC.parents[1]
    path = root.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


@cache
def _names(path: Path) -> set[str]:
    """Return the names that a module binds at its top level."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names}
    return found


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts"])
def test_imported_names_exist(folder: str) -> None:
    """The type checker reads `src` only; the others import torch, or run on a device alone."""
    missing = []
    for path in sorted((SRC.parents[1] / folder).rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module.split(".")[0] not in ("monograph", "tests", "benchmarks"):
                continue
            source = _module(node.module)
            known = _names(source) if source is not None else set()
            for alias in node.names:
                if alias.name in known or _module(f"{node.module}.{alias.name}"):
                    continue
                if alias.name != "*" or source is None:
                    missing.append(f"{path}:{node.lineno}: {node.module}.{alias.name}")
    assert missing == []
