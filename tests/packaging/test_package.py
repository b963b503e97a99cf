"""A wheel and an sdist install in clean environments and run there."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest
from scripts import package

import monograph
from tests.docs.pages import ROOT

NO_INDEX = (
    "No matching distribution", "Could not find a version", "ConnectionError", "Could not fetch",
    "Temporary failure", "Network is unreachable", "ensurepip is not available",
)  # fmt: skip
"""Texts of pip and venv where the machine cannot install anything."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "SECONDS", 120)
        return _or_skip(lambda: package.build(tmp_path_factory.mktemp("package")))


def _or_skip(step):
    """Return what a step returns; skip where it needs an index of packages and there is none."""
    try:
        return step()
    except package.StepError as e:
        if any(text in str(e) for text in NO_INDEX):
            pytest.skip(f"a clean environment needs an index of packages: {str(e)[-300:]}")
        raise
    except subprocess.TimeoutExpired as e:
        pytest.skip(f"the index of packages is too slow here: {e}")


def test_both_hold_every_module(built: tuple[Path, Path]) -> None:
    assert package.check_contents(*built) > 400


def test_names_have_the_version_of_the_package(built: tuple[Path, Path]) -> None:
    for file in built:
        assert file.name.startswith(f"monograph-{monograph.__version__}")


def test_a_missing_module_is_noticed(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src" / "monograph").mkdir(parents=True)
    (tmp_path / "src" / "monograph" / "absent.py").touch()
    monkeypatch.setattr(package, "ROOT", tmp_path)
    with pytest.raises(package.StepError, match="the wheel differs from src"):
        package.check_contents(*built)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1], ids=["wheel", "sdist"])
def test_installs_in_a_clean_environment(
    built: tuple[Path, Path], kind: int, tmp_path: Path
) -> None:
    python = _or_skip(lambda: package.make_environment(tmp_path / "clean"))
    _or_skip(lambda: package.install(python, built[kind]))
    package.check_demo(python, tmp_path / "demo")
    if kind == 0:
        package.check_types(python)


def test_the_version_is_stated_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "monograph.__version__"}
    tree = ast.parse((ROOT / "src" / "monograph" / "__init__.py").read_text())
    named = [n for n in tree.body if isinstance(n, ast.Assign) and "__version__" in ast.dump(n)]
    assert isinstance(named[0].value, ast.Constant), "setuptools reads it without an import"
