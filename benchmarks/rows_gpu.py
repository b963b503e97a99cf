"""Products of few rows and decoding attention on a GPU: every candidate, checked and timed.

    python -m benchmarks.rows_gpu --results DIR [--rows 2,8,32,64] [--formats f16,int4]
        [--products qkv,o,gate,down,head,attention] [--shape llama-1b] [--limit 200]

The products are those of a decoder's layer, with the work that is fused into them: a norm before
qkv and gate, a gate behind gate, a residual behind o and down. Weights rotate among copies, so that
the device's cache does not help. Every candidate is compared with torch in f32. Beside them:
torch's own product of the same rows (cuBLAS) without the work around it, and the floor, weights
over the best bandwidth seen.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decode_gpu import bandwidth
from benchmarks.decoder_shapes import SHAPES, Shape, shape_of
from monograph.codegen.triton.matmul import matrix_weights
from monograph.codegen.triton.module import select
from monograph.codegen.triton.module.kernel import GpuContext
from monograph.codegen.triton.module.layout import GpuModule, lay_out
from monograph.ir import Graph, Input, TensorType, Value, constant, dtype
from monograph.ops.composite import RmsNorm, Silu
from monograph.ops.elementwise import Add, Mul
from monograph.ops.linear import Dot
from monograph.ops.quant import Dequantize
from monograph.ops.shape import Slice, Transpose
from monograph.runtime.gpu.build.tune import Tuner, build, requests_of
from monograph.runtime.gpu.build.tuning_cache import FULL, TuningCache
from monograph.runtime.gpu.executable import GpuExecutable, lower_for_gpu

GROUP = 128
PLACE = ["cuda"]
TOLERANCE = 4e-3
"""Of the difference from f32 over the size of the result: f16 sums and roundings of weights."""


@dataclass
class Problem:
    """A graph of one step, its feeds, and the right result on the device."""

    name: str
    graph: Graph
    feeds: dict[str, Any]
    right: Any
    nbytes: int
    plain: Callable[[], Any] | None = None


def tensor(name: str, kind: str, *shape: int) -> Value:
    return Input(name, TensorType(dtype(kind), shape))()


class Weights:
    """Weights of a product: numbers, or codes of 4 bits in groups with zero points."""

    def __init__(self, form: str, k: int, n: int, draw: np.random.Generator) -> None:
        import torch

        kind = "bf16" if form.startswith("bf16") else "f16"
        self.kind, narrow = kind, torch.bfloat16 if kind == "bf16" else torch.float16
        if form in ("f16", "bf16"):
            self.nbytes = k * n * 2
            data = (draw.standard_normal((n, k), np.float32) * k**-0.5).astype(dtype(kind).numpy)
            self.torch = torch.from_numpy(data.astype(np.float32)).to(PLACE[0]).to(narrow)
            self.value: Value = constant(np.ascontiguousarray(data.T))
            return
        bits = 8 if form.endswith("int8") else 4
        group = k if bits == 8 else GROUP
        self.nbytes = k * n * bits // 8 + (k // group) * n * 4
        codes = draw.integers(0, 1 << bits, (n, k), np.uint8)
        scales = (draw.random((n, k // group)) * k**-0.5 / 4 + 1e-3).astype(dtype(kind).numpy)
        zeros = draw.integers(4, 12, (n, k // group), np.uint8)
        of = dtype("u8" if bits == 8 else "u4").numpy
        given = [constant(codes.astype(of)), constant(scales), constant(zeros.astype(of))]
        self.value = Transpose((1, 0))(Dequantize(axis=1, block=group, to=dtype(kind))(*given))
        s, z = (
            torch.from_numpy(x.astype(np.float32)).to(PLACE[0]).repeat_interleave(group, 1)
            for x in (scales, zeros)
        )
        self.torch = ((torch.from_numpy(codes).to(PLACE[0]).float() - z) * s).to(narrow)


KEPT: dict[tuple[str, str], Weights] = {}
"""Weights by format and product: all numbers of rows share them."""


def problems(shape: Shape, form: str, rows: int, wanted: list[str]) -> Iterator[Problem]:
    draw = np.random.default_rng(rows)
    width, keys = shape.width, shape.groups * shape.head_size
    sizes = {
        "qkv": (width, width + 2 * keys), "o": (width, width), "gate": (width, 2 * shape.hidden),
        "down": (shape.hidden, width), "head": (width, shape.vocab),
    }  # fmt: skip
    for name in wanted:
        if name in sizes:
            if (form, name) not in KEPT:
                KEPT[form, name] = Weights(form, *sizes[name], draw)
            yield _product(name, KEPT[form, name], *sizes[name], rows, draw)


def _product(
    name: str, weights: Weights, k: int, n: int, rows: int, draw: np.random.Generator
) -> Problem:
    import torch
    import torch.nn.functional as F

    narrow = weights.torch.dtype
    x = tensor("x", weights.kind, rows, k)
    data = torch.from_numpy(draw.standard_normal((rows, k), np.float32)).to(PLACE[0]).to(narrow)
    feeds = {"x": data}
    normed = name in ("qkv", "gate", "head")
    y = Dot()(RmsNorm((1,), 1e-5)(x) if normed else x, weights.value)
    wide = data.float()
    wide = F.rms_norm(wide, (k,), eps=1e-5) if normed else wide
    right = wide @ weights.torch.float().T
    inputs = [x]
    if name == "gate":
        half = n // 2
        gate, up = (Slice((0, at), (rows, at + half), (1, 1))(y) for at in (0, half))
        y = Mul()(Silu()(gate), up)
        right = F.silu(right[:, :half]) * right[:, half:]
    elif name in ("o", "down"):
        r = tensor("r", weights.kind, rows, n)
        inputs.append(r)
        feeds["r"] = (
            torch.from_numpy(draw.standard_normal((rows, n), np.float32)).to(PLACE[0]).to(narrow)
        )
        y, right = Add()(r, y), right + feeds["r"].float()
    copies = [
        weights.torch.clone() for _ in range(max(1, min(20, (100 << 20) // weights.torch.nbytes)))
    ]
    turn = iter(range(1 << 30))

    def plain() -> Any:
        return data @ copies[next(turn) % len(copies)].T

    return Problem(name, Graph(tuple(inputs), (("y", y),)), feeds, right, weights.nbytes, plain)


def measure(problem: Problem, tuner: Tuner, most: int) -> dict[str, GpuModule]:
    program = lower_for_gpu(problem.graph)
    (step,) = program.steps
    found = select.candidates(GpuContext(program, step, tuner.device.arch))[:most]
    return {c.name: lay_out(program, [(step, c.make())]) for c in found}


def timed(
    problem: Problem, modules: dict[str, GpuModule], failed: Any, tuner: Tuner
) -> dict[str, Any]:
    """us and error of each candidate, the quickest first."""
    import torch

    found: dict[str, Any] = {}
    for name, module in modules.items():
        bad = [r for r in requests_of(module) if r in failed]
        if bad:
            found[name] = {"failed": " ".join(str(failed[bad[0]]).split())[:200]}
            continue
        executable = GpuExecutable(module, tuner.device)
        try:
            made = torch.as_tensor(executable.run(problem.feeds)[0]).float()
        except Exception as e:
            found[name] = {"failed": str(e)[:200]}
            continue
        error = float((made - problem.right).norm() / problem.right.norm())
        us = tuner._time(module, True)
        found[name] = {"us": us, "error": error}
    return dict(sorted(found.items(), key=lambda i: i[1].get("us") or 1e9))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--rows", default="2,8,32,64")
    parser.add_argument("--formats", default="f16,int4")
    parser.add_argument("--products", default="qkv,o,gate,down,head")
    parser.add_argument("--widths", default="", help="words of a unit of codes, as 16")
    parser.add_argument("--most", type=int, default=40, help="candidates of a product")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds")
    parser.add_argument("--dry-run", action="store_true", help="tiny, by Triton's interpreter")
    a = parser.parse_args()
    if a.dry_run:
        os.environ["TRITON_INTERPRET"], a.shape, a.most = "1", "tiny-llama", 2
    import torch

    from monograph.runtime.gpu.driver.cuda import CudaDevice
    from monograph.runtime.gpu.driver.devices import Interpreter

    if a.widths:
        matrix_weights.WIDTHS = tuple(map(int, a.widths.split(",")))
    device: Any = Interpreter() if a.dry_run else CudaDevice()
    PLACE[0] = "cpu" if a.dry_run else "cuda"
    tuner = Tuner(device, TuningCache(None), FULL)
    began = time.perf_counter()
    best = bandwidth(a.dry_run)
    record: dict[str, Any] = {
        "date": date.today().isoformat(), "device": str(device.name), "torch": torch.__version__,
        "bandwidth": best, "shape": a.shape, "products": {},
    }  # fmt: skip
    shape = shape_of(a.shape)
    a.results.mkdir(parents=True, exist_ok=True)
    for form in a.formats.split(","):
        for rows in map(int, a.rows.split(",")):
            if time.perf_counter() - began > a.limit:
                print("no time left for", form, rows)
                continue
            todo = list(problems(shape, form, rows, a.products.split(",")))
            modules = [measure(p, tuner, a.most) for p in todo]
            failed = build(device, [m for group in modules for m in group.values()])
            for problem, group in zip(todo, modules, strict=True):
                found = timed(problem, group, failed, tuner)
                other = None if a.dry_run else device.measure(problem.plain)
                floor = problem.nbytes / best * 1e6
                record["products"][f"{form} {rows} {problem.name}"] = {
                    "floor_us": floor, "cublas_us": other, "candidates": found,
                }  # fmt: skip
                shown = [f"{n} {v['us']:.1f}" for n, v in list(found.items())[:3] if v.get("us")]
                worst = max((v["error"] for v in found.values() if "error" in v), default=0)
                bad = [
                    n
                    for n, v in found.items()
                    if not v.get("error", 1) < (4 if form.startswith("bf16") else 1) * TOLERANCE
                ]
                print(
                    f"{form} {rows:3} {problem.name:5} floor {floor:6.1f} cublas"
                    f" {other or 0:6.1f} | {'; '.join(shown)} | worst {worst:.1e}"
                    f" bad {len(bad)} {bad[:2]} {time.perf_counter() - began:.0f}s",
                    flush=True,
                )
                for n in bad[:2]:
                    print("   ", n, found[n])
            (a.results / "rows-gpu.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
