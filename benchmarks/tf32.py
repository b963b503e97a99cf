"""TF32 on a GPU: error and time of YOLOv10n for each way to round operands, and who truncates.

    python -m benchmarks.tf32 --record carry/tf32.npz    # once, anywhere: the f64 reference
    python -m benchmarks.tf32 --against carry/tf32.npz   # on the device, about 5 minutes

Ways are measured by turns, so that clocks and heat are the same for all. `off` truncates, as the
matrix units do by themselves; `add` rounds what a kernel reads; `stored` rounds what a
kernel writes instead, a bound on what rounding at the producer could gain.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

import monograph
from monograph.codegen.triton.emit import elements
from monograph.codegen.triton.matmul import product

HERE = Path(__file__).parent
BOXES, SCORES = "/model.23/Split_output_0", "/model.23/Split_output_1"
"""The tensors from which the rows of the detector are chosen."""
WAYS = ("off", product.ADD, "stored")
ROUNDS, REPLAYS = 15, 50


def folder() -> Path:
    places = (HERE.parent / "carry", HERE.parents[1] / "shared" / "models")
    return next(p for place in places if (p := place / "ul_yolov10n_e2e").is_dir())


def cut_model() -> onnx.ModelProto:
    model = onnx.load(folder() / "model.onnx")
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in (BOXES, SCORES)
    )
    return model


def image() -> np.ndarray:
    recorded = np.load(folder() / "io.npz")
    return np.asarray(recorded[next(n for n in recorded.files if n.startswith("in:"))])


def record(path: Path) -> None:
    """Write what the reference makes of the recorded image."""
    session = monograph.load(cut_model(), target="reference")
    outputs = session.run({session.inputs[0].name: image()})
    found = dict(zip((p.name for p in session.outputs), outputs, strict=True))
    np.savez(path, boxes=found[BOXES], scores=found[SCORES])


@contextmanager
def rounding(way: str) -> Iterator[None]:
    """Let kernels that are written meanwhile round in a way."""
    plain = elements.TritonElements.store

    def store(self: Any, value: Any, at: Any, scalar: Any, point: Any) -> None:
        if value.dtype == product.f32:
            asm = '"cvt.rna.tf32.f32 $0, $1;", "=r,r"'
            text = f"tl.inline_asm_elementwise({asm}, [{scalar.reg}], tl.float32, True, 1)"
            scalar = type(scalar)(self.w.set("float", text), scalar.dtype)
        plain(self, value, at, scalar, point)

    read = product.OFF if way in ("off", "stored") else way
    patches: list[Any] = [mock.patch.object(product, "rounding", return_value=read)]
    if way == "off":
        patches.append(mock.patch.object(product, "round_array", lambda x: x))
    if way == "stored":
        patches.append(mock.patch.object(elements.TritonElements, "store", store))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def prepared(way: str, model: Any, x: Any, caches: Path, tune: str) -> Callable[[], list[Any]]:
    """A session whose kernels were chosen and captured, as a function that enqueues a run."""
    with rounding(way):
        # What is compiled is kept by model and options, which do not tell the ways apart.
        kept = {"cache_dir": str(caches / way), "tuning_cache": str(caches / f"{way}.json")}
        session = monograph.load(model, target="gpu", tf32=True, tune=tune, **kept)  # type: ignore[arg-type]
        name = session.inputs[0].name
        for _ in range(3):
            session.run({name: x})
    return lambda: list(session.run({name: x}))


def device_us(run: Callable[[], Any], count: int = REPLAYS) -> float:
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3 / count


def errors(run: Callable[[], list[Any]], right: dict[str, np.ndarray]) -> str:
    """Differences of scores and boxes: rms, rms by that of what is right, and the mean."""
    _, boxes, scores = (np.asarray(t.double().cpu()) for t in run())
    found = []
    for given, wanted in ((scores, right["scores"]), (boxes, right["boxes"])):
        wide = wanted.astype(np.float64)
        off = given.reshape(wide.shape) - wide
        rms = float(np.sqrt(np.mean(off**2)))
        found.append(f"{rms:9.2e} {rms / np.sqrt(np.mean(wide**2)):9.2e} {off.mean():10.2e}")
    return " | ".join(found)


def library_biases() -> Iterator[tuple[str, float]]:
    """By how much the libraries' sums of positive products are too small in TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    draw = torch.Generator("cuda").manual_seed(0)

    def some(*shape: int) -> Any:
        return torch.rand(shape, generator=draw, device="cuda") * 1.5 + 0.5

    for m, k, n in ((64, 64, 64), (400, 512, 128), (1024, 1024, 1024), (8, 1024, 1024)):
        x, y = some(m, k), some(k, n)
        wide = x.double() @ y.double()
        yield f"cuBLAS {m}x{k}x{n}", float((1 - torch.matmul(x, y).double() / wide).mean())
    for size, channels, kernel in ((80, 32, 3), (20, 128, 3), (40, 64, 1)):
        x = some(1, channels, size, size).to(memory_format=torch.channels_last)
        w = some(channels, channels, kernel, kernel).to(memory_format=torch.channels_last)
        wide = torch.nn.functional.conv2d(x.double(), w.double())
        pair = [0, 0], [1, 1], [1, 1]
        made = torch.ops.aten.cudnn_convolution(x, w, *pair, 1, True, False, True)
        yield f"cuDNN {size} c{channels} k{kernel}", float((1 - made.double() / wide).mean())
    torch.backends.cuda.matmul.allow_tf32 = False


def kernel_biases(caches: Path) -> Iterator[tuple[str, float]]:
    """The same of our kernels, for each way."""
    import torch

    helper, f = onnx.helper, onnx.TensorProto.FLOAT
    draw = np.random.default_rng(0)
    w = (draw.random((512, 128)) * 0.5 + 0.25).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", f, (400, 512))],
        [info("y", f, (400, 128))],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = torch.as_tensor((draw.random((400, 512)) * 1.5 + 0.5).astype(np.float32), device="cuda")
    wide = x.double() @ torch.as_tensor(w, device="cuda").double()
    plain, odd = x.clone(), torch.full_like(x, 1.0)
    odd[0, 0], odd[1, 0], odd[2, 0] = torch.inf, torch.nan, torch.finfo(torch.float32).max
    odd.view(torch.int32)[3, 0] = 0x7FFFFFFF
    odd[:4, 1:] = 0
    for way in WAYS[:3]:
        run = prepared(way, model, x, caches, "off")
        (made,) = run()
        yield f"kernel, {way}", float((1 - made.double() / wide).mean())
        x.copy_(odd)
        print(f"  infinity, NaN, largest, NaN of ones * {w[0, 0]:.3f}:", run()[0][:4, 0].tolist())
        x.copy_(plain)


def measure(right: dict[str, np.ndarray], budget: float, ways: list[str], tune: str) -> None:
    import torch

    began = time.monotonic()
    caches = Path(tempfile.mkdtemp())
    for name, bias in (*library_biases(), *kernel_biases(caches)):
        told = "truncates" if bias > 2**-12 else "rounds" if abs(bias) < 2**-14 else "?"
        print(f"{name:26}{bias:11.2e}  {told}", flush=True)
    x, model = torch.as_tensor(image(), device="cuda"), cut_model()
    plain = folder() / "model.onnx"
    runs: dict[str, Callable[[], list[Any]]] = {}
    print("way        scores: rms   relative       mean | boxes: rms  relative       mean")
    for way in ways:
        started = time.monotonic()
        if runs and 2 * started - began > budget + (started - began) / 4:
            print(f"{way:8} left out: no time left")
            continue
        cut = prepared(way, model, x, caches, "off")
        print(f"{way:8}", errors(cut, right), flush=True)
        runs[way] = prepared(way, plain, x, caches, tune)
        print(f"{way:8} ready after {time.monotonic() - started:.0f} s", flush=True)
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(ROUNDS):
        for way, run in runs.items():
            times[way].append(device_us(run))
    for way, found in times.items():
        print(f"{way:8}{statistics.median(found):9.1f} us  (least {min(found):.1f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--budget", type=float, default=330.0, help="seconds for all of it")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--tune", default="fast", choices=("off", "fast", "full"))
    options = parser.parse_args()
    if options.record is not None:
        record(options.record)
    if options.against is not None:
        right = dict(np.load(options.against))
        measure(right, options.budget, options.way or list(WAYS), options.tune)


if __name__ == "__main__":
    main()
