"""Has Triton read kernels for an architecture, up to its own first form of them.

    python -m tests.gpu.front              # samples, odd shapes, 300 random graphs: a minute
    python -m tests.gpu.front --first 300 --graphs 1000
    python -m tests.gpu.front --every      # all candidates, not only the defaults

Whether values, pointers and masks have shapes that go together is decided there, and it takes a
tenth of the time of machine code (`tests.gpu.cross`): so many more kernels can be tried. Exits with
1 where Triton refuses one. Its own process, because Triton decides while it is imported whether to
interpret.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from monograph.codegen.triton.module.launch import ARCHES, Arch
from monograph.ir import Graph
from monograph.runtime.gpu.build.binaries import CompileRequest
from monograph.runtime.gpu.build.compiler import function
from tests.cpu import sweep_cases
from tests.gpu.cross import requests, samples
from tests.gpu.indexing import single

GRAPHS = 300


def read(wanted: CompileRequest, arch: Arch) -> None:
    """Raises what Triton has against a kernel."""
    name = int(arch.name.removeprefix("sm_")) if arch.backend == "cuda" else arch.name
    target = GPUTarget(arch.backend, name, arch.warp)
    backend: Any = make_backend(target)
    signature = {f"p{i}": kind for i, kind in enumerate(wanted.types)}
    source = ASTSource(function(wanted.source, wanted.stem), signature)
    given = {"num_warps": wanted.warps, "num_stages": wanted.stages}
    if wanted.dependent:
        given["launch_pdl"] = True
    options = backend.parse_options(given)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    made = source.make_ir(target, options, functions, backend.get_module_map(), context)
    assert made.verify(), "it is no correct module"


def graphs(first: int, count: int) -> Iterator[tuple[str, Graph]]:
    """A sample of every op, odd shapes, single elements, random graphs."""
    yield from samples(every=False)
    for case in itertools.chain(
        sweep_cases.odd(), single.cases(), sweep_cases.random(first, count)
    ):
        yield case.name, case.graph


def refused(
    named: Iterable[tuple[str, Graph]], arch: Arch, count: int | None
) -> tuple[int, dict[str, str]]:
    """Return how many kernels were read, and what Triton refused, by the graph's name."""
    seen: set[CompileRequest] = set()
    found: dict[str, str] = {}
    for name, graph in named:
        new = set(requests(graph, arch, count)) - seen
        seen |= new
        for one in new:
            try:
                read(one, arch)
            except Exception as e:  # whatever it is, the others are read too
                found[f"{name} ({one.stem})"] = str(e)
    return len(seen), found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default="sm_90", choices=ARCHES)
    parser.add_argument("--first", type=int, default=0, help="the first random graph's seed")
    parser.add_argument("--graphs", type=int, default=GRAPHS, help="how many random graphs")
    parser.add_argument("--every", action="store_true", help="all candidates of every step")
    options = parser.parse_args()
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0"), "this compiles: do not interpret"
    began = time.monotonic()
    chosen = graphs(options.first, options.graphs)
    number, wrong = refused(chosen, ARCHES[options.arch], None if options.every else 1)
    for what, why in wrong.items():
        print(f"REFUSED {what}: {why}", flush=True)
    print(f"{number} kernels read, {len(wrong)} refused, in {time.monotonic() - began:.0f} s")
    return 1 if wrong or not number else 0


if __name__ == "__main__":
    sys.exit(main())
