"""Compiles kernels for every architecture without a device.

    python -m tests.gpu.cross                     # a fair selection: a few minutes
    python -m tests.gpu.cross --arch gfx942 -v
    python -m tests.gpu.cross --every             # all candidates of all samples: long
    python -m tests.gpu.cross graph.txt           # graphs in text form

The selection has a sample of every op, and larger products, convolutions, attention and
reductions with several of their candidates. Its own process, because Triton decides while it is
imported whether to interpret; and compilers in processes of their own, because some mistakes
(inline PTX for AMD) take the process along. Exits with 1 where a kernel does not compile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.launch import ARCHES, Arch
from monograph.codegen.triton.module.layout import lay_out
from monograph.errors import CodegenError, MonographError
from monograph.ir import Graph, Input, Item, TensorType, Value, constant, dtype, parse_graph, unpack
from monograph.ir.sizes import SizeScope
from monograph.ops import OPS
from monograph.ops.attention import Attention
from monograph.ops.composite import LayerNorm, RmsNorm, Silu, Softmax
from monograph.ops.control import Loop
from monograph.ops.conv import Conv
from monograph.ops.elementwise import Add, Less, Mul
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.recurrent import Lstm
from monograph.ops.reduce import ReduceMax, ReduceSum
from monograph.ops.shape import Slice, Transpose
from monograph.program.dynamic.bounded import bounded_loop
from monograph.program.fusion.op_classes import is_native
from monograph.runtime.gpu.build.binaries import CompileRequest
from monograph.runtime.gpu.build.compiler import build_all
from monograph.runtime.gpu.build.tune import requests_of
from monograph.runtime.gpu.executable import lower_for_gpu, only_host
from tests.cpu.any_shape_cases import opened
from tests.samples import sample_graph

CHECKED = ("sm_80", "sm_90", "gfx942", "gfx1100", "gfx1151", "gfx1201")
TF32 = "tf32"
"""Prefixes of the names of graphs whose products may be rounded."""
OPENED = ("dot f16 128", "dot f32 128", "conv", "attention 128", "softmax", "sum", "layer norm")
"""Prefixes of the names of larger problems that are compiled for open sizes too."""
OPENED_SAMPLES = ("add", "gather", "max_pool", "average_pool", "resize", "pad", "cum_sum")
"""Ops whose first sample is."""
SEVERAL = 4
"""Candidates of the larger problems that are compiled."""


def tensor(name: str, kind: str, *shape: int) -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


def weight(kind: str, *shape: int) -> Value:
    data = np.random.default_rng(1).normal(size=shape) * 0.2
    return constant(data.astype(dtype(kind).numpy))


def graph_of(value: Value, *inputs: Value) -> Graph:
    return Graph(inputs, (("y", value),))


def larger() -> Iterator[tuple[str, Graph]]:
    """Problems of the sizes that models have."""
    for kind in ("f32", "f16", "bf16"):
        for rows in (1, 128):
            x = tensor("x", kind, rows, 512)
            y = Silu()(Add()(Dot()(x, weight(kind, 512, 256)), weight(kind, 256)))
            yield f"dot {kind} {rows}", graph_of(y, x)
    x = tensor("x", "f16", 1, 20, 20, 64)
    for name, shape, groups in (("3x3", (64, 64, 3, 3), 1), ("depthwise", (64, 1, 3, 3), 64)):
        y = conv(x, weight("f16", *shape), groups)
        yield f"conv {name}", graph_of(Silu()(Add()(y, weight("f16", 64))), x)
    for length in (1, 128):
        q = tensor("q", "f16", 1, 8, length, 64)
        k, v = (tensor(n, "f16", 1, 8, 128, 64) for n in "kv")
        yield f"attention {length}", graph_of(Attention()(q, k, v), q, k, v)
    x = tensor("x", "f16", 128, 2048)
    yield "softmax", graph_of(Softmax(1)(x), x)
    yield "sum", graph_of(ReduceSum((1,))(x), x)
    y = LayerNorm((1,))(x, weight("f16", 2048), weight("f16", 2048))
    yield "layer norm", graph_of(y, x)
    x = tensor("x", "f16", 3, 17, 40)
    sizes = ((512, 40), (512, 128), (512,), (384,), (1, 128), (1, 128))
    cell = Lstm()(x, *(weight("f16", *shape) for shape in sizes))
    yield "lstm", Graph((x,), (("y", Item(0)(cell)), ("h", Item(1)(cell))))
    x, w = tensor("x", "u8", 128, 512), np.arange(512 * 64, dtype=np.int64).reshape(512, 64)
    yield "dot bytes", graph_of(Dot(dtype("i32"))(x, constant(w.astype(np.int8))), x)
    yield "loop", looping()
    yield from decoding()
    yield from in_tf32()


def in_tf32() -> Iterator[tuple[str, Graph]]:
    """Products whose operands are rounded: by the host, or by the kernel."""
    x, y = tensor("x", "f32", 128, 512), tensor("y", "f32", 512, 64)
    yield f"{TF32} dot", graph_of(Dot()(x, weight("f32", 512, 64)), x)
    yield f"{TF32} dot of inputs", graph_of(Dot()(x, y), x, y)
    x = tensor("x", "f32", 1, 20, 20, 64)
    yield f"{TF32} conv", graph_of(conv(x, weight("f32", 64, 64, 3, 3), 1), x)
    q, k, v = (tensor(n, "f32", 1, 8, 128, 64) for n in "qkv")
    yield f"{TF32} attention", graph_of(Attention()(q, k, v), q, k, v)
    x = tensor("x", "f32", 3, 17, 40)
    sizes = ((512, 40), (512, 128), (512,), (384,), (1, 128), (1, 128))
    yield f"{TF32} lstm", graph_of(Item(0)(Lstm()(x, *(weight("f32", *s) for s in sizes))), x)


def decoding() -> Iterator[tuple[str, Graph]]:
    """A product of few rows that normalises them and applies a gate, of plain and coded weights."""
    for codes, rows, zeros in (("", 1, False), ("", 4, False), ("u4", 1, True), ("i8", 1, False)):
        x = tensor("x", "f16", rows, 2048)
        weights = weight("f16", 2048, 128)
        if codes:
            draw = np.random.default_rng(1)
            data = constant(draw.integers(0, 8, (128, 2048)).astype(dtype(codes).numpy))
            given = [constant(draw.random((128, 16)).astype(np.float16))]
            given += [constant(np.full((128, 16), 3).astype(dtype(codes).numpy))] if zeros else []
            weights = Transpose((1, 0))(Dequantize(dtype("f16"), 1, 128)(data, *given))
        scale = (weight("f16", 2048),) if codes else ()
        y = Dot()(RmsNorm((1,))(x, *scale), weights)
        gate, up = (Slice((0, at), (rows, at + 64), (1, 1))(y) for at in (0, 64))
        yield f"gated {codes or 'f16'} {rows}", graph_of(Mul()(Silu()(gate), up), x)


def looping() -> Graph:
    """Doubles a number while it is small, and collects what it was."""
    number, go, state = tensor("i", "i64"), tensor("go", "bool"), tensor("s", "f32", 3)
    most = ReduceMax((0,))(state)
    outputs = (Less()(most, weight("f32")), Add()(state, state), state)
    body = Graph((number, go, state), tuple((f"y{i}", v) for i, v in enumerate(outputs)), "body")
    start, first = tensor("start", "bool"), tensor("x", "f32", 3)
    loop = bounded_loop(Loop(body, 1)(constant(np.int64(9)), start, first))
    assert loop is not None
    return Graph((start, first), tuple((f"y{i}", v) for i, v in enumerate(unpack(loop))))


def conv(x: Value, weights: Value, groups: int) -> Value:
    ones = (1, 1)
    return Conv(ones, ones, ones, ones, groups, layout="channels_last")(x, weights)


def samples(every: bool) -> Iterator[tuple[str, Graph]]:
    """A sample of every op that is native, or all of them."""
    for op in OPS.values():
        found = (sample_graph(op, s)[0] for s in op.samples)
        native = [g for g in found if all(map(is_native, g.values))]
        for number, graph in enumerate(native if every else native[:1]):
            yield f"{op.name} {number}", graph


def open_sizes() -> Iterator[tuple[str, Graph]]:
    """Problems with open sizes: of activations all but the last dimension."""
    graphs = [(n, g) for n, g in larger() if n.startswith(OPENED)]
    for name in OPENED_SAMPLES:
        graphs.append((name, sample_graph(OPS[name], OPS[name].samples[0])[0]))
    for name, graph in graphs:
        ranks = {
            n: len(v.tensor.static) for n, v in zip(graph.input_names, graph.inputs, strict=True)
        }
        made = opened(graph, SizeScope(), lambda n, i, ranks=ranks: i < max(ranks[n] - 1, 1))
        yield f"open {name}", made


def requests(
    graph: Graph, arch: Arch, count: int | None, tf32: bool = False
) -> Iterator[CompileRequest]:
    """The kernels of the first candidates of every step; None for all of them."""
    program = lower_for_gpu(graph)
    for step in program.steps:
        if only_host(step.region) or not select.serves(step.region):
            continue
        for candidate in select.candidates(GpuContext(program, step, arch, tf32))[:count]:
            yield from requests_of(lay_out(program, [(step, candidate.make())]))


def compile_all(
    graphs: Iterable[tuple[str, Graph, int | None]], arch: Arch
) -> tuple[int, dict[str, str]]:
    """Compiles for an architecture: how many kernels, and what failed, by the graph's name."""
    wanted: dict[CompileRequest, str] = {}
    failed: dict[str, str] = {}
    for name, graph, count in graphs:
        try:
            for one in requests(graph, arch, count, name.startswith(TF32)):
                wanted.setdefault(one, name)
        except MonographError as e:
            failed[name] = str(e)
    for one, made in build_all(wanted, arch).items():
        if isinstance(made, CodegenError):
            failed[f"{wanted[one]} ({one.stem})"] = str(made)
    return len(wanted), failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="graphs in text form")
    parser.add_argument("--arch", action="append", choices=ARCHES, help="only this architecture")
    parser.add_argument("--every", action="store_true", help="all candidates of all samples")
    parser.add_argument("-v", action="store_true", help="print the whole of what fails")
    options = parser.parse_args()
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0"), "this compiles: do not interpret"
    count = None if options.every else 1
    graphs: list[tuple[str, Graph, int | None]]
    if options.files:
        graphs = [(f.stem, parse_graph(f.read_text()), count) for f in options.files]
    else:
        graphs = [(n, g, count) for n, g in samples(options.every)]
        graphs += [(n, g, None if options.every else SEVERAL) for n, g in larger()]
        graphs += [(n, g, None if options.every else 1) for n, g in open_sizes()]
    wrong = 0
    print(f"{'architecture':16}{'kernels':>8}{'failed':>8}{'s':>8}", flush=True)
    for name in options.arch or CHECKED:
        began = time.monotonic()
        number, failed = compile_all(graphs, ARCHES[name])
        seconds = time.monotonic() - began
        print(f"{name:16}{number:>8}{len(failed):>8}{seconds:>8.0f}", flush=True)
        for what, why in failed.items():
            text = why if options.v else " ".join(why.split())[:200]
            print(f"FAILED {name} {what}: {text}", flush=True)
        wrong += len(failed) + (number == 0)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
