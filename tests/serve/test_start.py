"""The start of a server: what is in the cache or in a package needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import monograph
from tests.serve.models import affine

CODE = """
import sys
from pathlib import Path
import monograph.serve.server
from monograph.serve.repository import Repository
from monograph.serve.settings import read_settings
made = Repository(read_settings(Path(sys.argv[1]), http=0))
made.load_all()
assert made.ready
print(*sorted(sys.modules))
made.close()
"""
COMPILER = ("onnx", "monograph.ops", "monograph.passes", "monograph.frontend.onnx",
            "monograph.codegen.llvm.matmul", "monograph.generate.rewrite.surgery")  # fmt: skip


def compiler_modules(models: Path, cache: Path) -> list[str]:
    """Return the modules of the compiler that a start of a server imports."""
    env = os.environ | {"MONOGRAPH_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", CODE, str(models)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [m for m in done.stdout.split() if m in COMPILER]


def test_a_second_start_imports_no_compiler(tmp_path: Path) -> None:
    affine(tmp_path / "models" / "affine.onnx")
    first, second = (compiler_modules(tmp_path / "models", tmp_path / "cache") for _ in range(2))
    assert "onnx" in first
    assert "monograph.ops" in first
    assert second == []


def test_a_package_starts_without_the_compiler(tmp_path: Path) -> None:
    model = affine(tmp_path / "affine.onnx")
    with monograph.load(model, specialise="off") as session:
        session.run({"x": np.ones((2, 4), np.float32)})
        (tmp_path / "models").mkdir()
        session.save(tmp_path / "models" / "affine.mono")
    assert compiler_modules(tmp_path / "models", tmp_path / "cache") == []
