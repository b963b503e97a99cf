"""The Python code blocks of README and of every page run, each page in one namespace."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import monograph
from tests.docs.pages import NEEDS, PAGES, ROOT, Block, blocks, is_missing

CODE = {page: blocks(page, "python") for page in PAGES}
TUTORIALS = [page for page in PAGES if page.name.startswith("adding-")]
"""Pages that add an op, a kernel, a rule or a pass, with tests for it."""
USER_PAGES = [page for page in PAGES if CODE[page] and page not in TUTORIALS]
GUIDES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "capture", "command-line", "errors", "explain", "generate", "gpu", "migration",
            "profiling", "python-api", "untrusted-models", "index", "quick-start",
            "tutorials/detector-cpu", "tutorials/gpu-capture", "tutorials/language-model",
            "tutorials/ocr-sizes", "tutorials/serving", "how-to/containers", "how-to/start-faster",
            "how-to/wrong-numbers", "support",
        )
    ),
]  # fmt: skip
"""Pages for users."""


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


OPTIONAL = sorted({(page, b.needs) for page in USER_PAGES for b in CODE[page] if b.needs})


def _execute(block: Block, namespace: dict[str, Any]) -> None:
    padded = "\n" * (block.line - 1) + block.text  # so that errors show the page's line
    exec(compile(padded, ROOT / block.page, "exec"), namespace)


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("page", USER_PAGES, ids=_name)
def test_blocks_run(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in CODE[page]:
        if not block.needs:
            _execute(block, namespace)


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(("page", "need"), OPTIONAL, ids=[f"{_name(p)}-{n}" for p, n in OPTIONAL])
def test_blocks_with_needs_run(page: Path, need: str) -> None:
    """All blocks that need one thing run, with those around them that need nothing."""
    used = [b for b in CODE[page] if b.needs in ("", need)]
    if missing := [b for b in used if is_missing(b)]:
        pytest.skip(f"{missing[0]} needs {need}")
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in used:
        _execute(block, namespace)


@pytest.mark.parametrize("page", TUTORIALS, ids=_name)
def test_tutorial_runs(page: Path) -> None:
    """The blocks are a module whose tests pass; a process of its own, since it registers ops."""
    used = [b for b in CODE[page] if not is_missing(b)]
    code = "\n".join(b.text for b in used)
    tests = re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    assert len(tests) >= 2
    code += "".join(f"\n{name}()" for name in tests)
    environment = dict(os.environ)
    if not environment.get("MONOGRAPH_TEST_DEVICE"):
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["adding-an-op", "adding-a-kernel"])
def test_tutorials_of_ops_run_on_every_target(name: str) -> None:
    """They define an op, convert a node, and compare both targets with the reference."""
    code = "\n".join(b.text for b in CODE[ROOT / "docs" / f"{name}.md"])
    assert "(Op):" in code or "(Unary):" in code
    for part in ("@converter(", 'target="cpu"', "    check(", "    check_on_gpu("):
        assert part in code
    assert name == "adding-an-op" or code.count("kernel_for(Polyval") == 2


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_has_an_example(name: str) -> None:
    """Each has a block that runs on every machine, and a tutorial for each kind of part."""
    page = ROOT / name
    shell = [b for b in blocks(page, "sh") if not b.not_run]
    assert any(not b.needs for b in (*CODE[page], *shell))
    assert len(TUTORIALS) == 4


def test_every_need_is_known() -> None:
    named = {b.needs for page in PAGES for lang in ("python", "sh") for b in blocks(page, lang)}
    assert named - {""} <= set(NEEDS)


def _paths(tree: ast.AST) -> set[str]:
    """Return the attributes of `monograph` that code names, in branches that do not run too."""
    found = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    return {p.split("(")[0] for p in found if re.fullmatch(r"monograph(\.\w+)+", p)}


@pytest.mark.parametrize("page", USER_PAGES, ids=_name)
def test_names_of_the_package_exist(page: Path) -> None:
    for block in CODE[page]:
        for path in _paths(ast.parse(block.text)):
            first, *rest = path.split(".")[1:]
            if first in ("from_torch", "TorchModel") and block.needs == "onnxscript":
                continue  # the package imports torch for them
            given = importlib.import_module(f"monograph.{first}") if rest else monograph
            assert hasattr(given, (rest or [first])[0]), f"{block} names {path}"


def test_names_in_branches_that_do_not_run_are_seen() -> None:
    code = "try:\n    run()\nexcept monograph.FeedError:\n    monograph.errors.other(1)"
    assert _paths(ast.parse(code)) >= {"monograph.FeedError", "monograph.errors.other"}
