"""Memory that compiling leaves behind is given back, and only memory that can be had again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from monograph.codegen.llvm.module.features import host_features
from monograph.ops.elementwise import Exp
from monograph.runtime.cpu.executable import compile_graph
from monograph.runtime.cpu.trim_memory import release_memory, unwritten
from tests.rules.checks import graph_of, value

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
SMAPS = """\
1000-3000 r--p 00000000 fe:00 17 /x/libllvmlite.so
Size: 8 kB
Anonymous:             0 kB
3000-8000 r-xp 00002000 fe:00 17 /x/libllvmlite.so
Anonymous:             0 kB
8000-9000 r--p 00007000 fe:00 17 /x/libllvmlite.so
Anonymous:             4 kB
9000-a000 rw-p 00008000 fe:00 17 /x/libllvmlite.so
Anonymous:             0 kB
a000-b000 r-xp 00000000 fe:00 18 /x/libother.so
Anonymous:             0 kB
b000-c000 r--p 00000000 00:00 0
Anonymous:             0 kB
c000-d000 r--p 00000000 fe:00 17 /a directory/libllvmlite.so
Anonymous:             0 kB
"""


def test_only_what_is_as_in_the_file_is_dropped() -> None:
    found = unwritten(SMAPS, "libllvmlite")
    assert found == [(0x1000, 0x2000), (0x3000, 0x5000), (0xC000, 0x1000)]


def resident_file_pages() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


@LINUX
def test_the_compiler_works_before_and_after() -> None:
    x = value("f32[64]")
    feeds = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
    executable = compile_graph(graph_of(Exp()(x)), host_features(), 2)
    (before,) = executable.run(feeds)
    held = resident_file_pages()
    release_memory()
    assert resident_file_pages() < held - 4 * 1024
    (after,) = executable.run(feeds)
    np.testing.assert_array_equal(before, after)
    (again,) = compile_graph(graph_of(Exp()(x)), host_features(), 1).run(feeds)
    np.testing.assert_array_equal(before, again)
