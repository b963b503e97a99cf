"""Compiles kernels for every architecture without a device: `python -m tests.gpu.cross`.

Its own process, because Triton decides while it is imported whether to interpret.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from monograph.codegen.triton import select
from monograph.codegen.triton.kernel import GpuContext, Launch
from monograph.codegen.triton.layout import lay_out
from monograph.ir import Graph, parse
from monograph.runtime.gpu.build import ARCHES, build, request
from monograph.runtime.gpu.executable import lower_for_gpu

CHECKED = ("sm_80", "sm_90", "gfx942", "gfx1100", "gfx1151", "gfx1201")


def compile_everywhere(graph: Graph, every: bool = False, arches: Iterable[str] = CHECKED) -> int:
    """Compiles a graph's kernels for each architecture; how many that were."""
    count = 0
    program = lower_for_gpu(graph)
    for name in arches:
        arch = ARCHES[name]
        for step in program.steps:
            found = select.candidates(GpuContext(program, step, arch))
            for candidate in found if every else found[:1]:
                module = lay_out(program, [(step, candidate.make())])
                for bound in module.every:
                    if not isinstance(bound.work, Launch):
                        continue
                    dtypes = tuple(a.dtype for a in bound.arguments)
                    aligned = tuple(a.aligned for a in bound.arguments)
                    build(request(bound.work, dtypes, aligned, step.region.kind), arch)
                    count += 1
    return count


def main(files: list[str]) -> None:
    """Compiles the kernels of graphs in text form, one a file."""
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0")
    for file in files:
        count = compile_everywhere(parse(Path(file).read_text()))
        print(f"{Path(file).stem}: {count} kernels")


if __name__ == "__main__":
    main(sys.argv[1:])
