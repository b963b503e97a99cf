"""The models of fault tests for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from monograph.codegen.triton.module.launch import ARENA, PORT, BufferRef
from monograph.ir import Graph, constant, unpack
from monograph.ir.dtype import bf16, f16, f32
from monograph.ops.control import If, Loop
from monograph.ops.elementwise import Add, Less, Mul, Sub
from monograph.ops.functions import Exp
from monograph.ops.linear import Dot
from monograph.ops.shape import Reshape, Slice
from monograph.runtime.gpu.bound_program import DevicePort, GpuLayout, GpuProgram
from monograph.runtime.gpu.capture.control import BRANCH, REPEAT, ConditionalLaunch, LaunchTree
from monograph.runtime.gpu.driver.devices import Device
from monograph.runtime.gpu.driver.graphs import TO_DEVICE, CopyNode
from monograph.runtime.gpu.executable import GpuExecutable, compile_for_gpu
from tests.gpu.against import device
from tests.gpu.capture.replay_models import three_towers
from tests.rules.checks import graph_of, value

ROWS, WIDTH = 128, 256
LANES, DEEPEST = 8, 4
"""At least as many streams as a model has side by side, and inside each other."""


@cache
def shared_graphs() -> Any:
    """Graphs of their own for these tests, which say how they are made."""
    from monograph.runtime.gpu.driver.cuda_graphs import CudaGraphs

    return CudaGraphs(torch.device("cuda", 0))


def new_device() -> Any:
    """The device as a session opens it."""
    from monograph.runtime.gpu.driver.cuda import CudaDevice

    return CudaDevice()


def warm_up() -> None:
    """Has the streams and modules made that all captures share, those of sessions too."""
    from monograph.runtime.gpu.driver.cuda_graphs import cuda_graphs

    for graphs in (shared_graphs(), cuda_graphs(0)):
        graphs.streams(LANES)
        graphs._own_streams(graphs._inner, DEEPEST)
        graphs.prepare(ConditionalLaunch(LaunchTree(REPEAT, (1,))))
        for narrowed in (None, f16, bf16):
            graphs.prepare(CopyNode(0, 0, 16, TO_DEVICE, control=1, narrowed=narrowed))


def executable(graph: Graph, on: Device | None = None) -> GpuExecutable:
    place = on or device()
    return GpuExecutable(compile_for_gpu(graph, place.arch), place)


def model(_: Any = None) -> GpuProgram:
    """Three towers side by side, kernels of our own."""
    return executable(three_towers())


def library(_: Any = None) -> GpuProgram:
    """y = (x w) w by a library, through the arena."""
    torch.manual_seed(0)
    weights = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5

    def product(x: torch.Tensor, to: torch.Tensor) -> None:
        torch.mm(x, weights, out=to)

    shape = (ROWS, WIDTH)
    calls = [(Call(product, shape, shape), ("x", "0")), (Call(product, shape, shape), ("0", "y"))]
    return of_calls(calls, {"x": shape}, {"y": shape})


def decided(_: Any = None) -> GpuProgram:
    """y = x w or x w w, as the first number of x says, by a library."""
    torch.manual_seed(0)
    weights = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5

    def decide(x: torch.Tensor, to: torch.Tensor) -> None:
        to.view(torch.uint8)[:1].copy_(x[0, :1] < 0)

    def once(x: torch.Tensor, to: torch.Tensor) -> None:
        torch.mm(x, weights, out=to)

    def twice(x: torch.Tensor, to: torch.Tensor) -> None:
        torch.mm(torch.mm(x, weights), weights, out=to)

    shape, nest = (ROWS, WIDTH), LaunchTree(BRANCH, (1, 1))
    calls = [
        (Call(decide, shape, (1,)), ("x", "0")),
        (ConditionalLaunch(nest), ("0",)),
        (Call(once, shape, shape), ("x", "y")),
        (Call(twice, shape, shape), ("x", "y")),
    ]
    return of_calls(
        calls, {"x": shape}, {"y": shape}, nests=(LaunchTree(), nest, LaunchTree(), LaunchTree())
    )


def through_temporaries(count: int) -> GpuProgram:
    """Of so many rows, a few products by a library, by way of memory that it takes for a while."""

    def products(x: torch.Tensor, to: torch.Tensor) -> None:
        to.copy_((x * 3 + 1).relu() @ x.t().contiguous() @ x)

    shape = (count, WIDTH)
    return of_calls([(Call(products, shape, shape), ("x", "y"))], {"x": shape}, {"y": shape})


def temporaries(_: Any = None) -> GpuProgram:
    """Through memory that a library takes for a while."""
    return through_temporaries(ROWS)


def state(_: Any = None) -> GpuProgram:
    """present = past + x, written over past; y = 10 * present."""
    x, past = value("f32[64]", "x"), value("f32[64]", "past")
    present = Add()(past, x)
    y = Mul()(present, constant(np.full(64, 10, np.float32)))
    outputs = (("present", present), ("y", y))
    return executable(Graph((x, past), outputs, donations=(("present", "past"),)))


def growing(limit: float) -> Graph:
    """Adds a product to the state while its first element stays below a limit."""
    i, go = value("i64[]", "i"), value("bool[]", "go")
    s, w = value("f32[3, 17]", "s"), value("f32[17, 17]", "w")
    new = Add()(s, Dot()(Exp()(Sub()(s, s)), w))
    first = Reshape(())(Slice((0, 0), (1, 1), (1, 1))(new))
    outputs = (("y0", Less()(first, constant(np.float32(limit)))), ("y1", new))
    return Graph((i, go, s, w), outputs)


def loop_graph(limit: float = 5.0) -> Graph:
    """A loop that ends by its data, after at most so many turns as are fed."""
    weights = constant(np.full((17, 17), 0.01, np.float32))
    operands = value("i64[]", "n"), value("bool[]", "go"), value("f32[3, 17]"), weights
    return graph_of(*unpack(Loop(growing(limit), 1)(*operands)))


def loop(_: Any = None) -> GpuProgram:
    """A loop whose turns the data decide."""
    return executable(loop_graph())


def branch(_: Any = None) -> GpuProgram:
    """x + x or x * x, as a bool says."""
    x = value("f32[3, 17]", "s")
    choice = If(Graph((x,), (("y0", Add()(x, x)),)), Graph((x,), (("y0", Mul()(x, x)),)))
    given = value("f32[3, 17]")
    return executable(graph_of(*unpack(choice(value("bool[]", "c"), given, given))))


def feeds(kind: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).cuda()

    if kind == "model":
        return {"x": some(4, 16)}
    if kind in ("library", "temporaries", "decided"):
        return {"x": some(ROWS, WIDTH)}
    if kind == "state":
        return {"x": some(64), "past": some(64)}
    if kind == "branch":
        return {"x": some(3, 17), "c": torch.tensor(bool(seed % 2)).cuda()}
    turns, go = torch.tensor(7 * seed % 20).cuda(), torch.tensor(True).cuda()
    return {"x": some(3, 17), "n": turns, "go": go}


class Call:
    """A function of torch on tensors of shapes, as a library's launch."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        self.function, self.shapes = function, shapes
        self.tensors: list[Any] = [None] * len(shapes)

    def point(self, position: int, memory: torch.Tensor, offset: int) -> None:
        shape = self.shapes[position]
        size = 4 * int(np.prod(shape))
        self.tensors[position] = memory[offset : offset + size].view(torch.float32).view(shape)

    def launch(self, stream: int) -> None:
        self.function(*self.tensors)


def of_calls(
    calls: Sequence[tuple[Any, Sequence[str]]],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    over: dict[str, str] | None = None,
    nests: tuple[LaunchTree, ...] = (),
) -> GpuProgram:
    """An executable of calls; arguments are ports, or offsets in the arena."""

    def where(name: str) -> BufferRef:
        if name.isdigit():
            return BufferRef(ARENA, int(name), f32)
        return BufferRef(PORT, 0, f32, f"{'input' if name in inputs else 'output'}:{name}")

    layout = GpuLayout(
        tuple(DevicePort(n, f32, s) for n, s in inputs.items()),
        tuple(DevicePort(n, f32, s, (over or {}).get(n, "")) for n, s in outputs.items()),
        tuple(tuple(map(where, names)) for _, names in calls),
        1 << 20,
        256,
        (),
        (),
        nests=nests,
    )
    return GpuProgram(layout, lambda: [c for c, _ in calls], device(), np.zeros(1, np.uint8))
