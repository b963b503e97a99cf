"""The contenders of the GPU benchmarks: Monograph, and torch in the ways it is run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import monograph
from benchmarks.gpu_timing import Contender, captured
from benchmarks.torch_model import TorchModel
from monograph.ir import Graph
from monograph.passes.base import Environment
from monograph.pipeline import PassOptions, optimise
from monograph.report.commands.input_files import draw_inputs
from monograph.rewrite import GPU_COST
from monograph.runtime.gpu.driver.devices import Device, Interpreter
from monograph.runtime.gpu.executable import (
    MAX_STREAMS,
    GpuExecutable,
    compile_for_gpu,
    lower_for_gpu,
)
from monograph.runtime.gpu.tensors import raw, torch_type

MONOGRAPH = "monograph"
EAGER, IN_GRAPH, COMPILED = "torch eager", "torch in a graph", "torch.compile"
ONNXRUNTIME = "onnxruntime CUDA"
Made = Iterator[tuple[str, Callable[[], Contender]]]
"""Names of contenders, and how to make each."""


@dataclass
class Problem:
    """A model with inputs, and how it is to be compiled."""

    path: Path
    dry: bool
    tune: str
    tuning: Path | None
    mode: str
    """The mode in which torch compiles."""

    def __post_init__(self) -> None:
        session = monograph.load(self.path, target="reference")
        self.feeds = random_feeds(session)
        self.graph = session.bound_graph(self.feeds)
        if self.dry:
            self.device: Device = Interpreter()
        else:
            from monograph.runtime.gpu.driver.cuda import CudaDevice

            self.device = CudaDevice()
        self.place = self.device.place
        torch.backends.cudnn.benchmark = True  # what others would set too
        self.model = onnx.load(self.path)
        half = torch.float32 if self.dry else torch.float16
        self.inputs = [self._tensor(x, half) for x in self.feeds.values()]
        self._torch: TorchModel | None = None

    def _tensor(self, array: np.ndarray, kind: torch.dtype) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(self.place)
        if tensor.is_floating_point():
            tensor = tensor.to(kind)
        if tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    @property
    def half(self) -> torch.dtype:
        return torch.float32 if self.dry else torch.float16

    def torch_model(self) -> TorchModel:
        if self._torch is None:
            self._torch = TorchModel(self.model, self.inputs, self.half)
        return self._torch

    def right(self) -> np.ndarray:
        """The first output as torch computes it in f32."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        inputs = [self._tensor(x, torch.float32) for x in self.feeds.values()]
        with torch.no_grad():
            first = TorchModel(self.model, inputs, torch.float32)(*inputs)[0]
        return np.asarray(first.double().cpu().numpy())

    def contenders(self) -> Made:
        """All there are, the ones that take long to make last."""
        yield MONOGRAPH, self.monograph
        yield EAGER, self.eager
        if not self.dry:
            yield IN_GRAPH, self.in_graph
        yield COMPILED, self.compiled
        if not self.dry and _has_onnxruntime():
            yield ONNXRUNTIME, self.onnxruntime

    def monograph(self) -> Contender:
        """Ours: the eager launches, captured with their streams side by side."""
        executable = self._executable()
        graph = executable.program.graph
        tensors = {
            f"{kind}:{name}": torch.empty(
                value.tensor.static, dtype=torch_type(value.dtype), device=self.place
            )
            for kind, ports in (("input", self._ports(graph)), ("output", graph.outputs))
            for name, value in ports
        }
        for name, array in self.feeds.items():
            tensors[f"input:{name}"].copy_(torch.from_numpy(array))
        ports = {n: raw(t) for n, t in tensors.items()}
        outputs = [tensors[f"output:{n}"] for n, _ in graph.outputs]
        run: Callable[[], Any] = lambda: executable.launch(ports)  # noqa: E731
        if not self.dry:
            count = 1 + max(b.stream for b in executable.module.works)
            streams = [torch.cuda.Stream(self.place) for _ in range(count)]
            launch_side_by_side(executable, ports, streams)
            torch.cuda.synchronize(self.place)
            run = captured(
                lambda: launch_side_by_side(executable, ports, streams), streams[:1]
            ).replay
        inputs = [tensors[f"input:{n}"] for n in graph.input_names]
        kernels = len(list(executable.module.every))
        notes = {
            "device_bytes": executable.own_bytes + executable.constant_bytes,
            "keeps": executable,
        }
        return Contender(MONOGRAPH, run, inputs, lambda: outputs, kernels, notes)

    @staticmethod
    def _ports(graph: Graph) -> list[tuple[str, Any]]:
        return list(zip(graph.input_names, graph.inputs, strict=True))

    def _executable(self) -> GpuExecutable:
        overrides: dict[str, dict[str, Any]] = {"choose_layout": {"layout": "channels_last"}}
        if not self.dry:
            overrides["convert_precision"] = {"to": "f16"}
        options = PassOptions(overrides=overrides)
        graph = optimise(self.graph, environment=Environment(GPU_COST), options=options)
        if self.dry:
            return GpuExecutable(compile_for_gpu(graph, self.device.arch), self.device)
        from monograph.runtime.gpu.build.tune import Tuner, build, compile_chosen
        from monograph.runtime.gpu.build.tuning_cache import TuningCache

        device = self.device
        tuner = Tuner(device, TuningCache.open(self.tuning), self.tune)
        program = lower_for_gpu(graph)
        tuner.tune(program)
        choose = tuner.chooser(program)
        module = compile_chosen(
            program, choose, lambda m: build(device, [m]), device.arch, streams=MAX_STREAMS
        )
        return GpuExecutable(module, device)

    def eager(self) -> Contender:
        return self._called(EAGER, self.torch_model())

    def in_graph(self) -> Contender:
        return self._captured(IN_GRAPH, self.torch_model())

    def compiled(self) -> Contender:
        """Compile with torch, in a graph of its own or captured here: its best time counts."""
        model = self.torch_model()
        if self.dry:  # no C++ compiler is needed
            return self._called(COMPILED, torch.compile(model, backend="eager"))
        compiled = torch.compile(model, mode=self.mode, dynamic=False)
        if self.mode in ("reduce-overhead", "max-autotune"):
            return self._called(COMPILED, compiled)
        return self._captured(COMPILED, compiled)

    def _called(self, name: str, model: Callable[..., tuple[torch.Tensor, ...]]) -> Contender:
        last: list[torch.Tensor] = []

        def run() -> None:
            with torch.no_grad():
                last[:] = model(*self.inputs)

        return Contender(name, run, self.inputs, lambda: last)

    def _captured(self, name: str, model: Callable[..., tuple[torch.Tensor, ...]]) -> Contender:
        last: list[torch.Tensor] = []

        def run() -> None:
            with torch.no_grad():
                last[:] = model(*self.inputs)

        side = torch.cuda.Stream(self.place)
        side.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.synchronize(self.place)
        graph = captured(run)
        return Contender(name, graph.replay, self.inputs, lambda: last)

    def onnxruntime(self) -> Contender:
        """The CUDA provider on the same file, its inputs and outputs on the device."""
        import onnxruntime

        session = onnxruntime.InferenceSession(self.path, providers=["CUDAExecutionProvider"])
        binding = session.io_binding()
        values = {}
        for name, array in self.feeds.items():
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
            binding.bind_ortvalue_input(name, values[name])
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda")
        inputs = [torch.from_dlpack(v._ortvalue) for v in values.values()]

        def outputs() -> list[torch.Tensor]:
            return [torch.from_dlpack(v._ortvalue) for v in binding.get_outputs()]

        def run() -> None:
            session.run_with_iobinding(binding)

        return Contender(ONNXRUNTIME, run, inputs, outputs, notes={"precision": "of the file"})


def _has_onnxruntime() -> bool:
    """Tell whether ONNX Runtime is here with its CUDA provider."""
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def random_feeds(session: monograph.Session) -> dict[str, np.ndarray]:
    """Inputs as `monograph bench` draws them."""
    return draw_inputs(session).feeds


def launch_side_by_side(
    executable: GpuExecutable,
    ports: Mapping[str, torch.Tensor],
    streams: Sequence[torch.cuda.Stream],
) -> None:
    """Enqueue each launch once, on its stream; the first stream waits for all others."""
    with executable.lock:
        for port, record, position, offset in executable.port_arguments:
            record.point(position, ports[port], offset)
        main = streams[0]
        begun = main.record_event()
        for stream in streams[1:]:
            stream.wait_event(begun)
        ended: dict[int, torch.cuda.Event] = {}
        awaited = {i for b in executable.module.works for i in b.waits}
        for record, bound in zip(executable.records, executable.module.works, strict=True):
            stream = streams[bound.stream]
            for other in bound.waits:
                if other in ended:  # not for a step without work
                    stream.wait_event(ended[other])
            with torch.cuda.stream(stream):
                record.launch(stream.cuda_stream)
            if bound.position in awaited:
                ended[bound.position] = stream.record_event()
        for stream in streams[1:]:
            main.wait_event(stream.record_event())
        executable.runs += 1
